"""Descriptions of problems in formulas and words, for terminals and LaTeX.

Formulas are LaTeX with a small vocabulary; words contain formulas between dollar signs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dualmech.validate import Array

MAX_PRINTED_SIDE = 8
"""Maximum number of rows, and of columns, of a printed array."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A symbol, its meaning and, for small arrays, its numbers."""

    name: str  # a formula
    meaning: str  # words
    shape: tuple[int, ...] | None = None  # of its array, () for a number; None unless it is an array
    numbers: Callable[[], Array] | None = None  # computes the array, only used if it is small
    # the attribute of an answer's point or dual weights; ``itself`` for the point
    part: str = ""

    @property
    def printed(self) -> Array | None:
        """The numbers of a small array, else None."""
        if self.numbers is None or not all(0 < side <= MAX_PRINTED_SIDE for side in self.shape or ()):
            return None
        return np.asarray(self.numbers(), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A formula on a separate line, and a remark."""

    formula: str
    remark: str = ""  # words
    label: str = ""  # of a constraint in the CVXPY program


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """An optimisation problem."""

    sense: str  # minimise or maximise
    objective: str  # a formula
    over: str  # words
    constraints: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """A problem in formulas: every symbol is defined in `given`, `sought` or `weights` before it is used."""

    given: tuple[Symbol, ...]
    sought: tuple[Symbol, ...]
    program: Program
    weights: tuple[Symbol, ...]  # the dual variables
    dual: Program
    proof: tuple[Line, ...]  # that any dual weights give a bound
    notes: tuple[str, ...] = ()  # words: the structure, and special features of this problem


# Formulas as text for terminals, from a small subset of LaTeX.


LETTERS = {
    **dict(alpha="α", beta="β", gamma="γ", delta="δ", varepsilon="ε", kappa="κ", lambda_="λ", mu="μ", nu="ν"),
    **dict(pi="π", sigma="σ", tau="τ", omega="ω", Gamma="Γ", Lambda="Λ", Pi="Π", Sigma="Σ", Omega="Ω"),
}
SIGNS = {
    **{name.rstrip("_"): sign for name, sign in LETTERS.items()},
    **dict(le="≤", ge="≥", succ="≻", succeq="⪰", preceq="⪯", sum="∑", prod="∏", dots="…", cdot="·", times="×"),
    **dict(circ="∘", otimes="⊗", lVert="‖", rVert="‖", lvert="|", rvert="|", langle="⟨", rangle="⟩", subset="⊂"),
    **dict(quad="   ", top="'", infty="∞", in_="in", emptyset="∅", subseteq="⊆", neq="≠", approx="≈", pm="±"),
    **dict(log="log", exp="exp", max="max", min="min", left="", right="", star="*", mid="|", det="det"),
    **{"in": "∈", "qquad": "   ", ",": " ", ";": " ", "{": "{", "}": "}", "\\": "; ", "$": "$", "%": "%"},
}
SUPERSCRIPTS = str.maketrans("0123456789+-½⅓⅔", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻½⅓⅔")
FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼"}

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}^_&]|\s+|[^\\{}^_&\s]")
SIMPLE_TERM = re.compile(r"\w+'?")  # terms that need no brackets in a root or a fraction


class Reader:
    """A parser for the tokens of a formula."""

    def __init__(self, formula: str) -> None:
        self.tokens: Iterator[str] = iter(TOKEN.findall(formula))

    def text(self, until: str | None = None) -> str:
        parts: list[str] = []
        for token in self.tokens:
            if token == until:
                return "".join(parts)
            parts.append(self.one(token))
        if until is not None:
            raise ValueError(f"a formula ends before {until}")
        return "".join(parts)

    def argument(self) -> str:
        """Return the text of the next group or token."""
        return self.one(next(self.tokens))

    def one(self, token: str) -> str:
        if token == "{":
            return self.text("}")
        if token == "^":
            return superscript(self.argument())
        if token == "_":
            return subscript(self.argument())
        if token == "&":
            return ", "
        if token.isspace():
            return " "
        return self.command(token[1:]) if token.startswith("\\") else token

    def command(self, name: str) -> str:
        if name in SIGNS:
            return SIGNS[name]
        if name == "frac":
            numerator, denominator = bracketed(self.argument()), bracketed(self.argument())
            return FRACTIONS.get(f"{numerator}/{denominator}", f"({numerator}/{denominator})")
        if name == "sqrt":
            return f"√{bracketed(self.argument())}"
        if name in ("operatorname", "mathrm", "mathbf", "text", "bar"):
            return self.argument()
        if name == "begin":
            self.argument()
            return f"[{self.text_of_rows()}]"
        raise ValueError(f"\\{name} is not in the vocabulary of formulas")

    def text_of_rows(self) -> str:
        parts: list[str] = []
        for token in self.tokens:
            if token == r"\end":
                self.argument()
                return "".join(parts).strip()
            parts.append(self.one(token))
        raise ValueError("a matrix in a formula has no end")


def superscript(text: str) -> str:
    if text == "'" or not text:
        return text
    translated = text.translate(SUPERSCRIPTS)
    for fraction, symbol in FRACTIONS.items():
        if text.lstrip("-") == fraction:
            return f"^{'-' if text.startswith('-') else ''}{symbol}"
    if all(character in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻" for character in translated):
        return translated
    return f"^{text}" if SIMPLE_TERM.fullmatch(text) or text.lstrip("-").isalnum() else f"^({text})"


def subscript(text: str) -> str:
    return f"_{text}" if re.fullmatch(r"[\w*+]+", text) else f"_({text})"


def bracketed(text: str) -> str:
    return text if SIMPLE_TERM.fullmatch(text) or len(text) == 1 or _in_brackets(text) else f"({text})"


def _in_brackets(text: str) -> bool:
    """Return whether the first bracket of a text is closed at its end."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return place == len(text) - 1 and text.startswith("(")
    return False


def plain_formula(formula: str) -> str:
    r"""Return a formula as text.

    Raises `ValueError` for a symbol outside the vocabulary.

    >>> plain_formula(r"(B u_i)^{\top} \Sigma^{-1} (B u_i) \le \alpha")
    "(B u_i)' Σ⁻¹ (B u_i) ≤ α"
    >>> plain_formula(r"\lVert \operatorname{diag}(\sqrt{\mu}) W \rVert_*^2 + \frac{1}{t_1} H(\mu)")
    '‖diag(√μ) W‖_*² + (1/t_1) H(μ)'
    """
    text = re.sub(r" +", lambda spaces: "   " if len(spaces[0]) > 2 else " ", Reader(formula).text().strip())
    for fence in "‖|":  # no space inside a norm
        pieces = text.split(fence)
        text = fence.join(part.strip() if place % 2 else part for place, part in enumerate(pieces))
    return re.sub(r"(?<=[(⟨]) | (?=[)⟩,;])", "", text)


DOLLAR = "\ue000"  # placeholder for a dollar sign outside formulas

ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r"} | {
    "\u030c": "v",
    "\u0327": "c",
    "\u0304": "=",
}
LATEX_ESCAPES = {
    **{character: f"\\{character}" for character in "&%#_{}"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", DOLLAR: r"\$"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "…": r"\dots{}"},
    **{"ß": r"\ss{}", "ø": r"\o{}", "æ": r"\ae{}", "Ø": r"\O{}", "Æ": r"\AE{}", "–": "--", "×": r"$\times$"},
}
EXPONENT = re.compile(r"([\d.]+)e([+-])0*(\d+)")

MAX_LINE_LETTERS = 64
"""Maximum number of letters of a formula and its remark on one line."""

NEXT_LINE = "\\\\\n& \\qquad "  # in an alignment

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
    """Aligned formulas, as tuples of leading words, formula and remark."""

    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Entries:
    name: str  # a formula
    rows: tuple[tuple[str, ...], ...]


Part: TypeAlias = Words | Aligned | Entries


@dataclass(frozen=True, slots=True)
class Section:
    """Parts with a title in words."""

    title: str
    parts: tuple[Part, ...]


def literal(text: str) -> str:
    """Escape dollar signs in a user's text, such as a name in a file."""
    return text.replace("$", DOLLAR)


def plain_words(text: str) -> str:
    r"""Convert words with formulas to text.

    >>> plain_words(r"weights $\lambda \ge 0$ on neighbours")
    'weights λ ≥ 0 on neighbours'
    """
    parts = text.split("$")
    texts = (plain_formula(part) if index % 2 else part for index, part in enumerate(parts))
    return "".join(texts).replace(DOLLAR, "$")


def latex_words(text: str) -> str:
    r"""Convert words to LaTeX, with special characters escaped.

    >>> latex_words(r"100 % of query_1 at $\lambda_i$")
    '100 \\% of query\\_1 at $\\lambda_i$'
    """
    parts = text.split("$")
    return "".join(f"${_latex_number(part)}$" if index % 2 else escaped(part) for index, part in enumerate(parts))


def escaped(text: str) -> str:
    """Escape a text for LaTeX; letters that fonts may lack are written as code points."""
    return "".join(_escaped_letter(letter) for letter in text)


def _escaped_letter(letter: str) -> str:
    if letter in LATEX_ESCAPES or letter.isascii():
        return LATEX_ESCAPES.get(letter, letter if letter.isprintable() else " ")
    decomposed = unicodedata.normalize("NFD", letter)
    if len(decomposed) == 2 and decomposed[0].isascii() and decomposed[1] in ACCENTS:
        return f"\\{ACCENTS[decomposed[1]]}{{{decomposed[0]}}}"
    return f"[U+{ord(letter):04X}]"


def terminal_lines(section: Section) -> Iterator[str]:
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
    plain_lines = [
        (plain_words(lead), plain_formula(formula), plain_words(words)) for lead, formula, words in part.lines
    ]
    lead_width = max(len(lead) for lead, _, _ in plain_lines)
    formula_width = max(
        (len(formula) for _, formula, words in plain_lines if words and len(formula) <= MAX_LINE_LETTERS), default=0
    )
    for lead, formula, words in plain_lines:
        indent = f"    {lead.ljust(lead_width)}  " if lead_width else "    "
        if len(formula) <= MAX_LINE_LETTERS or not words:
            yield f"{indent}{formula.ljust(formula_width)}   {words}".rstrip()
        else:
            yield f"{indent}{formula}"
            yield f"{' ' * len(indent)}    {words}"


def latex_section(section: Section) -> str:
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


def _latex_row(lead: str, formula: str, words: str) -> str:
    left = f"\\text{{{latex_words(lead)}}}\\quad & {formula}" if lead else f"& {formula}"
    if not words:
        return left
    needs_line = len(plain_formula(formula)) + len(plain_words(words)) > MAX_LINE_LETTERS
    return f"{left} {NEXT_LINE if needs_line else chr(92) + 'quad '}\\text{{{latex_words(words)}}}"


def _latex_number(text: str) -> str:
    return EXPONENT.sub(lambda match: f"{match[1]} \\cdot 10^{{{match[2].strip('+')}{match[3]}}}", text)


def latex_document(sections: Sequence[Section]) -> str:
    body = "\n\n".join(map(latex_section, sections))
    return f"{PREAMBLE}{body}\n\\end{{document}}\n"


# Sections of a page from a formula.


def program_section(title: str, formula: Formula) -> Section:
    """Return the section with the definitions of all symbols and the program."""
    defined = symbol_parts((*formula.given, *formula.sought))
    return Section(title, (*defined, program_part(formula.program), *map(Words, formula.notes)))


def dual_section(formula: Formula) -> Section:
    """Return the section of the dual."""
    parts = (*symbol_parts(formula.weights), program_part(formula.dual))
    return Section("Its dual: any such weights prove a bound.", parts)


def symbol_parts(symbols: tuple[Symbol, ...]) -> tuple[Part, ...]:
    """Return the definitions of symbols, with the numbers of small arrays."""
    parts: list[Part] = []
    for symbol in symbols:
        shape = "" if not symbol.shape else f" ({' × '.join(map(count, symbol.shape))})"
        numbers = symbol.printed
        inline = None if numbers is None else inline_numbers(numbers)
        parts.append(Words(f"${symbol.name}${shape if inline is None else f' $=$ {inline}'}: {symbol.meaning}"))
        if numbers is not None and inline is None:
            parts.append(Entries(symbol.name, entries(numbers)))
    return tuple(parts)


def program_part(program: Program) -> Aligned:
    rows = [(program.sense, program.objective, f"over {program.over}" if program.over else "")]
    for index, line in enumerate(program.constraints):
        rows.append(("" if index else "subject to", line.formula, line.remark))
    return Aligned(tuple(rows))


def proof_part(lines: tuple[Line, ...]) -> Aligned:
    return Aligned(tuple(("", line.formula, line.remark) for line in lines))


def inline_numbers(numbers: Array) -> str | None:
    """Return a number or a vector as words, or None for a matrix."""
    if numbers.ndim == 0:
        return f"${number(float(numbers))}$"
    return in_line(map(number, numbers.tolist())) if numbers.ndim == 1 else None


def in_line(texts: Iterable[str]) -> str:
    """Return numbers in brackets, with possible line breaks between them."""
    return f"({', '.join(f'${text}$' for text in texts)})"


def entries(numbers: Array) -> tuple[tuple[str, ...], ...]:
    """Return the entries of a matrix as text."""
    return tuple(tuple(number(float(entry)) for entry in row) for row in np.atleast_2d(numbers))


def number(value: float) -> str:
    return f"{value + 0.0:.6g}"


def count(value: int) -> str:
    """Return a size as text, rounded if it is large.

    >>> count(4096), count(10**60)
    ('4096', '1e+60')
    """
    return str(value) if value < 10**9 else f"{value:.3g}"
