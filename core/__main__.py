"""``python -m dualmech``: the command ``dualmech``, where its script is not on the path."""

from dualmech.command.entry import main

if __name__ == "__main__":
    main()
