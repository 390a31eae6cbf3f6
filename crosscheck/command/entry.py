"""Where the ``dualmech`` command begins: what Ctrl-C does is settled before anything else is loaded."""

import sys

from dualmech.crosscheck.command import interruption

NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread")
"""What the system's loader and Python say where memory runs out while a library is loaded."""


def main() -> None:
    """Run the command."""
    interruption.run(_command)


def _command() -> None:
    try:
        from dualmech.crosscheck.command.main import main

        main()
    except (ImportError, RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        print(f"dualmech: not enough memory to begin: {' '.join(str(error).split())}", file=sys.stderr)
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
