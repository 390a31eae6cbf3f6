"""Files in TOML."""

from __future__ import annotations

import tomllib
from typing import Any

from dualmech.files.reading import FilePath, decoding_errors, errors_naming, opened


def read_toml(path: FilePath) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises `FileFormatError` for a file that cannot be read or is no TOML, `InputTypeError` for no path.
    """
    with errors_naming(path), opened(path) as handle, decoding_errors(path, "TOML"):
        return tomllib.load(handle)
