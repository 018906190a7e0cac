"""The version of the package, in a file of its own so that no module imports the package for it."""

__version__ = "0.1.0"
