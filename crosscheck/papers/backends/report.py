"""What general solvers call optimal, before what is proven: what each sheet asks to be computed, and how it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from dualmech.crosscheck.papers.backends import claims
from dualmech.crosscheck.papers.backends.claims import Backend, Claim, Scales
from dualmech.crosscheck.papers.report import table
from dualmech.crosscheck.papers.sheet import Sheet

LEGEND = (
    "Problems of the library whose data are of ordinary size, posed as the papers write them and in their own units. "
    "'optimal': what the backend calls so without reserve; 'reserved': what it calls inaccurate; 'none': no answer; "
    "'impossible': problems that it calls infeasible or unbounded, which none is. Of those called optimal: 'below' the "
    "proven lower end, so that no noise has this value, 'above' the proven upper end, and how many of either by more "
    "than the backend's own tolerance, taken as absolute and relative at once. Within it a value is as good as was "
    "promised. 'infeasible': raw points that break a constraint, or cost more than the value says, by more than 1e-9. "
    "Errors are relative; seconds are of all problems, with CVXPY's compiling."
)

SCALES_LEGEND = (
    "Problems whose optima are far from 1, by the size of their data. 'says' and 'value' are of the backend on the "
    "problem as it is, at its default tolerance; 'proven in units near 1' is the gap that the judge proves of the same "
    "backend's answer where the reference layer poses the problem."
)

WORDS = {claims.OPTIMAL: "optimal", claims.INACCURATE: "inaccurate"}


def _tasks(quick: bool) -> list[Callable[[], Backend]]:
    cells = claims.QUICK_CELLS if quick else claims.MOST_CELLS
    return [
        partial(claims.claims, name, version, tight, cells)
        for name, version in claims.backends().items()
        for tight in (False, True)
    ]


def _show(out: Console, title: str, rows: Iterator[Backend]) -> None:
    headings = (
        *("backend", "tolerance", "problems", "optimal", "reserved", "none", "impossible"),
        *("below", "below, beyond tolerance", "above", "above, beyond tolerance"),
        *("lowest", "highest", "infeasible", "worst excess", "seconds"),
    )
    found = [*rows]
    out.print(table(title, headings, map(_row, found), notes=[LEGEND, *_widest(found)]))


def _row(row: Backend) -> tuple[str, ...]:
    errors = [claim.error for claim in row.optimal] or [0.0]
    return (
        f"{row.name} {row.version}",
        f"{row.tolerance:.0e}",
        *map(str, (len(row.claims), len(row.optimal), row.count(claims.INACCURATE))),
        str(len(row.claims) - len(row.optimal) - row.count(claims.INACCURATE, *claims.IMPOSSIBLE)),
        str(row.count(*claims.IMPOSSIBLE)),
        *(str(len(row.below)), str(row.beyond(row.below)), str(len(row.above)), str(row.beyond(row.above))),
        *(f"{min(errors):.1e}", f"{max(errors):.1e}", str(len(row.infeasible))),
        f"{max([0.0, *(claim.excess for claim in row.optimal)]):.1e}",
        f"{sum(claim.seconds for claim in row.claims):.2g}",
    )


def _widest(rows: list[Backend]) -> list[str]:
    return [f"Widest proven interval: {max(row.gap for row in rows):.1e}, relative."] if rows else []


def _scale_tasks(quick: bool) -> list[Callable[[], Scales]]:
    names = claims.small(claims.MOST_CELLS, ordinary=False)
    return [partial(claims.at_extreme_scale, name) for name in names[: 2 if quick else None]]


def _show_scales(out: Console, title: str, rows: Iterator[Scales]) -> None:
    headings = ("problem", "optimum", "backend", "says", "value", "proven in units near 1")
    drawn = (
        (row.problem, f"{claim.lower:.4g}", name, _word(claim), _value(claim), f"{row.gaps[name]:.0e}")
        for row in rows
        for name, claim in row.claims.items()
    )
    words = ("problem", "backend", "says")
    out.print(table(title, headings, drawn, words, notes=[SCALES_LEGEND]))


def _word(claim: Claim) -> str:
    return WORDS.get(claim.status, claim.status)


def _value(claim: Claim) -> str:
    return f"{claim.value:.4g}" if claim.status in WORDS else "—"


SHEETS = {
    "claims": Sheet("what general solvers call optimal, before the proof", _tasks, _show),
    "scales": Sheet("problems in units far from 1", _scale_tasks, _show_scales),
}
