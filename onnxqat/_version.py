"""The version of the package, in a file of its own so that no module imports the package for it."""

__version__ = "0.1.0"


def installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, None where it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
