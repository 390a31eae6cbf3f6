"""The thresholds' tables in a terminal: whom each histogram is right for, and how often the rules find it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from dualmech.crosscheck.papers.common.decisions import PLAIN, SURE
from dualmech.crosscheck.papers.common.grid import COUNTED
from dualmech.crosscheck.papers.common.instances import BUCKETS
from dualmech.crosscheck.papers.common.thresholds import ThresholdRow
from dualmech.crosscheck.papers.report import print_lines, table, uncertified_mark, yes_or_no


def show(out: Console, title: str, rows: Iterator[ThresholdRow]) -> None:
    """Print Table 7 and Figure 1 for some blocks, under the printed settings or those of a grid."""
    found = list(rows)
    own = any(row.printed is None for row in found)
    setting = COUNTED if own else "ρ"
    _print_choices(out, title, found, setting)
    drawn = (
        (
            row.name,
            *(
                f"{number:.2f}"
                for number in (row.chain[PLAIN], row.chain[SURE], row.tuned, row.best, row.noisy)
            ),
            *(f"{number:.2f}" for number in (row.finer[PLAIN], row.finer[SURE])),
            *([f"{row.printed.accuracy}, {row.printed.thresholds}"] if row.printed else []),
        )
        for row in found
    )
    headings = (
        *(
            setting,
            "chain",
            f"chain, {SURE:g}σ",
            "thresholds, tuned",
            "best thresholds",
            "best, noisy counts",
        ),
        *("too fine", f"too fine, {SURE:g}σ", *([] if own else ["printed: chain, thresholds"])),
    )
    out.print(table(f"{title}: Figure 1, percent of right choices", headings, drawn))
    if found and not own:
        _print_differences(out, found)
    seconds = max((row.seconds for row in found), default=0.0)
    shares = ", ".join(f"{share:g}" for share in sorted({row.setting.gamma for row in found}))
    print_lines(
        out,
        f"All blocks released along the chain in at most {seconds:.2g} s. The thresholds see exact counts (but for "
        f"'noisy counts', which cost γ = {shares} of ρ), and are judged on the blocks that they were tuned on; no "
        "thresholds do better there than the best ones.",
    )


def _print_choices(out: Console, title: str, found: Sequence[ThresholdRow], setting: str) -> None:
    """Print for how many blocks each histogram is right, beside Table 7 where its settings are used."""
    judged, printed = any(row.judged for row in found), all(row.printed for row in found)
    drawn = (
        (
            row.name + uncertified_mark(row.certified),
            *(f"{number:.2f}" for number in (*row.shares, row.chain[PLAIN], row.saved)),
            *(
                [", ".join((*row.printed.shares, row.printed.accuracy, row.printed.saved))]
                if row.printed
                else []
            ),
            *([yes_or_no(row.fits)] if judged else []),
        )
        for row in found
    )
    where = f"{found[0].number} blocks of {found[0].blocks}" if found else ""
    headings = [setting, *BUCKETS, "right", "PLB saved", *(["printed"] * printed), *(["as printed"] * judged)]
    meaning = "PLB saved: of the privacy loss budget, what the chain knows when it decides, in the mean over blocks."
    out.print(table(f"{title}: Table 7, percent; {where}", headings, drawn, notes=[meaning]))


def _print_differences(out: Console, found: Sequence[ThresholdRow]) -> None:
    """Print how far the chain is from what is printed of it, and the thresholds from the best ones."""
    printed = max(abs(row.chain[PLAIN] - float(row.printed.accuracy)) for row in found if row.printed)
    tuned, noisy = (
        max(abs(row.best - other) for row, other in pairs)
        for pairs in ([(row, row.tuned) for row in found], [(row, row.noisy) for row in found])
    )
    print_lines(
        out,
        f"The chain is within {printed:.2f} points of the printed accuracy at every ρ; the best thresholds are within "
        f"{tuned:.2f} of the tuned ones, and for noisy counts within {noisy:.2f} of those for exact ones.",
    )
