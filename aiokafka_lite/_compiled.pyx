"""The file of all compiled modules is a module, too, because tools import all that they find."""
