"""Hard limits and waste on the command line: the searches, and their reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console

import dualmech as dm
from dualmech.certificate import Certificate
from dualmech.command import inputs
from dualmech.command.answers import describe, privacy_text
from dualmech.command.options import Layer, UsageError, refuse_unused
from dualmech.command.request import Request
from dualmech.crosscheck import printing
from dualmech.crosscheck.caps import Capped, capped
from dualmech.crosscheck.printing import (
    Terms,
    interval_text,
    neighbours_lines,
)
from dualmech.crosscheck.wasting import Waste, waste
from dualmech.files.atomic import check_suffix
from dualmech.mechanisms.privacy import SHOWN_DELTA
from dualmech.solution import gap_words
from dualmech.watching import passing

TOLERANCES = {Layer.FAST: 1e-6, Layer.REFERENCE: 1e-4}
"""Width of the interval that is aimed at, by layer."""

OF_ONE_PROBLEM = ("backend", "method", "refine", "start", "time_limit", "threads", "prove")
"""Options of ``solve`` that a search over problems does not take."""


def solve_capped(
    request: Request, options: Mapping[str, Any], layer: Layer, tol: float | None, output: str | None
) -> tuple[Certificate, float]:
    """Find, print and write the least factor that hard limits leave; return its certificate and the width asked for."""
    for name in OF_ONE_PROBLEM:
        if options[name] not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is not for hard limits at a given privacy: they are a search over problems"
            )
    width = TOLERANCES[layer] if tol is None else tol
    with passing("searching for the least factor") as line:
        asked = request.search()
        found = capped(
            asked.workload,
            asked.targets,
            asked.caps,
            asked.cost,
            asked.neighbours,
            tol=width,
            geometry=asked.geometry,
            layer=layer.value,
        )
        if output is not None:
            line.say("writing")
            found.answer.save(output)
    return capped_report(printing.console(), found, width, request.terms), width


def capped_report(out: Console, found: Capped, tol: float, terms: Terms) -> Certificate:
    """Print what was proven of the factor, and what every table gets; return the certificate of the factor."""
    certificate, problem = found.certificate, found.answer.problem
    proven = certificate.certifies(tol)
    out.print(
        f"{'CERTIFIED' if proven else 'NOT CERTIFIED'}: factor on the targets that are not hard {found.high:.9g}, "
        f"optimum proven to lie in"
    )
    out.print(f"  {interval_text((found.low, found.high))}  ({gap_words(certificate, tol)})")
    out.print(
        f"  at squared privacy cost {found.cost:.6g}; below, targets that are not hard are times the factor"
    )
    out.print(f"  geometry: {problem.geometry.name}")
    for line in neighbours_lines(problem):
        out.print(f"  {line}")
    describe(problem, out, found.answer, terms)
    return certificate


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
    out = printing.console()
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
