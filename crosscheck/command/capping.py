"""Hard limits at a given privacy, on the command line: the search for the least factor, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from dualmech.certificate import Certificate
from dualmech.crosscheck.caps import Capped, capped
from dualmech.crosscheck.command import report
from dualmech.crosscheck.command.answers import describe
from dualmech.crosscheck.command.options import Layer, UsageError
from dualmech.crosscheck.command.request import Request
from dualmech.crosscheck.command.wording import Terms, interval_text, neighbours_lines
from dualmech.solution import gap_words
from dualmech.watching import passing

TOLERANCES = {Layer.FAST: 1e-6, Layer.REFERENCE: 1e-4}
"""Width of the interval that is aimed at, by layer."""

OF_ONE_PROBLEM = ("backend", "method", "refine", "start", "time_limit", "prove")
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
    return capped_report(report.console(), found, width, request.terms), width


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


__all__ = ["capped_report", "solve_capped"]
