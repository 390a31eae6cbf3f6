"""Where the ``dualmech`` command begins: what Ctrl-C does is settled before anything else is loaded."""

import sys
from typing import NoReturn

from dualmech.crosscheck.command import interruption

NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread")
"""What the system's loader and Python say where memory runs out while a library is loaded."""

LEAST_MEMORY = 2**29
"""Bytes of address space below which loading the libraries of linear algebra may never end."""


def main() -> None:
    """Run the command."""
    interruption.run(_command)


def _command() -> None:
    if (limit := _address_space()) < LEAST_MEMORY:
        _too_little(
            f"{limit / 2**20:.0f} MiB of address space (ulimit -v) are less than {LEAST_MEMORY / 2**20:.0f}"
        )
    try:
        from dualmech.crosscheck.command.main import main

        main()
    except (ImportError, RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        _too_little(" ".join(str(error).split()))


def _address_space() -> float:
    """Return the limit of address space in bytes, infinite where the system has none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _too_little(said: str) -> NoReturn:
    print(f"dualmech: not enough memory to begin: {said}", file=sys.stderr)
    sys.exit(1)


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
