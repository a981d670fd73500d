"""Versions of packages, for the records that runs, benchmarks and exported files keep."""

from importlib.metadata import version


def versions(*packages: str) -> dict[str, str]:
    """The installed version of each package."""
    return {package: version(package) for package in packages}
