"""The ``dualmech`` command, run in this process."""

from __future__ import annotations

from functools import partial

from typer.testing import CliRunner, Result

from dualmech.command.main import app


def run(*arguments: object, columns: int | None = None) -> Result:
    """Run a command line, on a terminal of so many columns if that matters."""
    environment = None if columns is None else {"COLUMNS": str(columns)}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)


run_wide = partial(run, columns=160)
"""The same on a terminal where the tables of most answers fit."""
