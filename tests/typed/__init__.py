"""What type checkers say to users: a program that is right, and mistakes that they find."""
