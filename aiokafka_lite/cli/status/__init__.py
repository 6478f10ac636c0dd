"""The broker's status page: `page.py` serves what `views.py` computes."""
