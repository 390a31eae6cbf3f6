"""Sections of words, aligned formulas and matrices: as lines for a terminal, and as LaTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dualmech.formulas.unicode import plain_formula

DOLLAR = "\ue000"  # stands for a dollar sign in a text that is no formula

ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r"} | {
    "\u030c": "v",
    "\u0327": "c",
    "\u0304": "=",
}
ESCAPED = {
    **{each: f"\\{each}" for each in "&%#_{}"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", DOLLAR: r"\$"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "…": r"\dots{}"},
    **{"ß": r"\ss{}", "ø": r"\o{}", "æ": r"\ae{}", "Ø": r"\O{}", "Æ": r"\AE{}", "–": "--", "×": r"$\times$"},
}
MARKS = re.compile(r"\\(?:begin|end)\{(?P<environment>[^}]*)\}|(?<!\\)[{}$]")
EXPONENT = re.compile(r"([\d.]+)e([+-])0*(\d+)")

WIDE = 64
"""Letters of a formula, and of what is said of it in LaTeX, beyond which the latter goes to a line of its own."""

BELOW = "\\\\\n& \\qquad "  # to the line below, in an alignment

PREAMBLE = r"""\documentclass[11pt]{article}
\usepackage{amsmath}
\usepackage{amssymb}
\usepackage[margin=2.5cm]{geometry}
\setcounter{MaxMatrixCols}{20}
\setlength{\parindent}{0pt}
\setlength{\parskip}{0.6ex}
\allowdisplaybreaks
\begin{document}
"""


@dataclass(frozen=True, slots=True)
class Words:
    """A sentence, with formulas between dollar signs."""

    text: str


@dataclass(frozen=True, slots=True)
class Aligned:
    """Formulas below each other: what stands before each, in words, the formula, and what is said of it."""

    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """A matrix, its entries as formulas."""

    name: str  # a formula
    rows: tuple[tuple[str, ...], ...]


Part: TypeAlias = Words | Aligned | Entries


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under one title, which is words."""

    title: str
    parts: tuple[Part, ...]


def literal(text: str) -> str:
    """Return a text that is not ours, as a name in a file, without the meaning that its dollar signs would have."""
    return text.replace("$", DOLLAR)


def plain_words(text: str) -> str:
    r"""Return words with their formulas as text.

    >>> plain_words(r"weights $\lambda \ge 0$ on neighbours")
    'weights λ ≥ 0 on neighbours'
    """
    parts = text.split("$")
    shown = (plain_formula(part) if index % 2 else part for index, part in enumerate(parts))
    return "".join(shown).replace(DOLLAR, "$")


def latex_words(text: str) -> str:
    r"""Return words as LaTeX, what has a meaning there escaped.

    >>> latex_words(r"100 % of query_1 at $\lambda_i$")
    '100 \\% of query\\_1 at $\\lambda_i$'
    """
    parts = text.split("$")
    return "".join(
        f"${_latex_number(part)}$" if index % 2 else escaped(part) for index, part in enumerate(parts)
    )


def escaped(text: str) -> str:
    """Return a text for LaTeX; letters that no font there is sure to have, by their numbers."""
    return "".join(_escaped_letter(letter) for letter in text)


def _escaped_letter(letter: str) -> str:
    if letter in ESCAPED or letter.isascii():
        return ESCAPED.get(letter, letter if letter.isprintable() else " ")
    decomposed = unicodedata.normalize("NFD", letter)
    if len(decomposed) == 2 and decomposed[0].isascii() and decomposed[1] in ACCENTS:
        return f"\\{ACCENTS[decomposed[1]]}{{{decomposed[0]}}}"
    return f"[U+{ord(letter):04X}]"


def terminal_lines(section: Section) -> Iterator[str]:
    """Yield a section line by line, its title in the first."""
    yield plain_words(section.title)
    for part in section.parts:
        if isinstance(part, Words):
            yield f"  {plain_words(part.text)}"
        elif isinstance(part, Entries):
            yield from _matrix_lines(part)
        else:
            yield from _aligned_lines(part)


def _matrix_lines(part: Entries) -> Iterator[str]:
    rows = [[plain_formula(entry) for entry in row] for row in part.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lead = f"    {plain_formula(part.name)} = "
    for index, row in enumerate(rows):
        entries = "  ".join(entry.rjust(width) for entry, width in zip(row, widths, strict=True))
        yield f"{lead if index == 0 else ' ' * len(lead)}[ {entries} ]"


def _aligned_lines(part: Aligned) -> Iterator[str]:
    shown = [
        (plain_words(lead), plain_formula(formula), plain_words(said)) for lead, formula, said in part.lines
    ]
    first = max(len(lead) for lead, _, _ in shown)
    second = max((len(formula) for _, formula, said in shown if said and len(formula) <= WIDE), default=0)
    for lead, formula, said in shown:
        before = f"    {lead.ljust(first)}  " if first else "    "
        if len(formula) <= WIDE or not said:
            yield f"{before}{formula.ljust(second)}   {said}".rstrip()
        else:
            yield f"{before}{formula}"
            yield f"{' ' * len(before)}    {said}"


def latex_section(section: Section) -> str:
    """Return a section as LaTeX, without a document around it."""
    parts = [f"\\subsection*{{{latex_words(section.title)}}}"]
    for part in section.parts:
        if isinstance(part, Words):
            parts.append(f"{latex_words(part.text)}\\par")
        elif isinstance(part, Entries):
            rows = " \\\\ ".join(" & ".join(_latex_number(entry) for entry in row) for row in part.rows)
            parts.append(f"\\[ {part.name} = \\begin{{bmatrix}} {rows} \\end{{bmatrix}} \\]")
        else:
            rows = " \\\\\n".join(_latex_row(*line) for line in part.lines)
            parts.append(f"\\begin{{align*}}\n{rows}\n\\end{{align*}}")
    return "\n".join(parts)


def _latex_row(lead: str, formula: str, said: str) -> str:
    before = f"\\text{{{latex_words(lead)}}}\\quad & {formula}" if lead else f"& {formula}"
    if not said:
        return before
    wide = len(plain_formula(formula)) + len(plain_words(said)) > WIDE
    return f"{before} {BELOW if wide else chr(92) + 'quad '}\\text{{{latex_words(said)}}}"


def _latex_number(text: str) -> str:
    return EXPONENT.sub(lambda found: f"{found[1]} \\cdot 10^{{{found[2].strip('+')}{found[3]}}}", text)


def latex_document(sections: Sequence[Section]) -> str:
    """Return sections as a document that LaTeX compiles with amsmath alone."""
    body = "\n\n".join(map(latex_section, sections))
    return f"{PREAMBLE}{body}\n\\end{{document}}\n"


def unbalanced(latex: str) -> str:
    r"""Return what of braces, dollar signs and environments is not closed, or closed too early; nothing where all is.

    >>> unbalanced(r"\begin{align*} \frac{1}{2} \end{align*}"), unbalanced(r"\begin{align*} $x")
    ('', 'align*')
    """
    opened: list[str] = []
    for found in MARKS.finditer(latex):
        mark = found["environment"] or found[0]
        closes = found[0].startswith(r"\end") or mark == "}" or (mark == "$" and opened[-1:] == ["$"])
        if not closes:
            opened.append(mark)
        elif not opened or opened.pop() != ("{" if mark == "}" else mark):
            return mark
    return "".join(opened[:1])
