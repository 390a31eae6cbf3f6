"""Where the ``dualmech`` command begins: what Ctrl-C does is settled before anything else is loaded."""

from dualmech.crosscheck.command import interruption


def main() -> None:
    """Run the command."""
    interruption.run(_command)


def _command() -> None:
    from dualmech.crosscheck.command.main import main

    main()


if __name__ == "__main__":
    main()
