"""The one place of the version, for the layers below the public package."""

__version__ = "0.1.0"
