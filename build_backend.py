"""Build dualmech with setuptools, editable installs as links, which editors, type checkers and doctests understand."""

from collections.abc import Mapping

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def build_editable(
    wheel_directory: str, config_settings: Mapping[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """Return the name of a wheel whose package is a folder of links to the files of this checkout."""
    settings = {"editable_mode": "strict", **(config_settings or {})}
    return build_meta.build_editable(wheel_directory, settings, metadata_directory)
