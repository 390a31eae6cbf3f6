"""How much a mechanism wastes, on the command line."""

from __future__ import annotations

import typer

import dualmech as dm
from dualmech.certificate import Certificate
from dualmech.crosscheck.command import inputs, report
from dualmech.crosscheck.command.answers import privacy_text
from dualmech.crosscheck.command.options import refuse_unused
from dualmech.crosscheck.wasting import Waste, waste
from dualmech.files.atomic import check_suffix
from dualmech.mechanisms.privacy import SHOWN_DELTA
from dualmech.watching import passing

TAKEN = ("workload", "mechanism", "output", "tol")
"""The options of ``judge`` that a mechanism leaves room for: targets and neighbours are its own."""


def judge_waste(context: typer.Context, workload: str, path: str, output: str | None) -> Certificate:
    """Print how much of its cost the mechanism in a file wastes on a workload, and return its certificate."""
    refuse_unused(context, TAKEN, "--mechanism, which brings its own accuracy and neighbours")
    if output is not None:
        check_suffix(output, ".npz")
    with passing("reading") as line:
        asked, mechanism = inputs.read_workload(workload), _read(path)
        line.say("finding the least cost")
        found = waste(mechanism, asked, callback=line)
    out = report.console()
    for each in _lines(found):
        out.print(each, markup=False, soft_wrap=True)
    if output is not None:
        found.better.save(output)
    return found.certificate


def _read(path: str) -> object:
    """Return the mechanism in a file, that of a solution among them."""
    held = dm.load(path)
    return held.mechanism if isinstance(held, dm.Solution) else held


def _lines(found: Waste) -> list[str]:
    lines = [*found.words]
    if found.better is not found.mechanism:
        lines.append(f"The better one: {privacy_text(found.better, SHOWN_DELTA)}")
    return lines
