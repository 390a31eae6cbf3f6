"""Formulas as text: the small part of LaTeX that statements are written in, as a terminal shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

LETTERS = {
    **dict(alpha="α", beta="β", gamma="γ", delta="δ", varepsilon="ε", kappa="κ", lambda_="λ", mu="μ", nu="ν"),
    **dict(pi="π", sigma="σ", tau="τ", omega="ω", Gamma="Γ", Lambda="Λ", Sigma="Σ", Omega="Ω"),
}
SIGNS = {
    **{name.rstrip("_"): sign for name, sign in LETTERS.items()},
    **dict(
        le="≤", ge="≥", succ="≻", succeq="⪰", preceq="⪯", sum="∑", prod="∏", dots="…", cdot="·", times="×"
    ),
    **dict(
        circ="∘", otimes="⊗", lVert="‖", rVert="‖", lvert="|", rvert="|", langle="⟨", rangle="⟩", subset="⊂"
    ),
    **dict(quad="   ", top="'", infty="∞", in_="in", emptyset="∅", subseteq="⊆", neq="≠", approx="≈", pm="±"),
    **dict(log="log", exp="exp", max="max", min="min", left="", right="", star="*", mid="|", det="det"),
    "in": "∈",
    **{",": " ", ";": " ", "{": "{", "}": "}", "\\": "; ", "$": "$", "%": "%"},
}
RAISED = str.maketrans("0123456789+-½⅓⅔", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻½⅓⅔")
FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼"}

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}^_&]|\s+|[^\\{}^_&\s]")
SIMPLE = re.compile(r"\w+'?")  # what a root or a fraction may stand before, without brackets


class Reader:
    """The tokens of a formula, read one after the other."""

    def __init__(self, formula: str) -> None:
        self.tokens: Iterator[str] = iter(TOKEN.findall(formula))

    def text(self, until: str | None = None) -> str:
        """Return the text up to a token, or to the end."""
        parts: list[str] = []
        for token in self.tokens:
            if token == until:
                return "".join(parts)
            parts.append(self.one(token))
        if until is not None:
            raise ValueError(f"a formula ends before {until}")
        return "".join(parts)

    def argument(self) -> str:
        """Return the text of the next group, or of the next token alone."""
        token = next(self.tokens)
        return self.text("}") if token == "{" else self.one(token)

    def one(self, token: str) -> str:
        """Return the text of a token, with the arguments that it takes."""
        if token == "{":
            return self.text("}")
        if token == "^":
            return raised(self.argument())
        if token == "_":
            return lowered(self.argument())
        if token == "&":
            return ", "
        if token.isspace():
            return " "
        return self.command(token[1:]) if token.startswith("\\") else token

    def command(self, name: str) -> str:
        """Return the text of a command."""
        if name in SIGNS:
            return SIGNS[name]
        if name == "frac":
            above, below = bracketed(self.argument()), bracketed(self.argument())
            return FRACTIONS.get(f"{above}/{below}", f"({above}/{below})")
        if name == "sqrt":
            return f"√{bracketed(self.argument())}"
        if name in ("operatorname", "mathrm", "mathbf", "text", "bar"):
            return self.argument()
        if name == "begin":
            self.argument()
            return f"[{self.text_of_rows()}]"
        raise ValueError(f"\\{name} is not in the vocabulary of formulas")

    def text_of_rows(self) -> str:
        """Return the rows of a matrix, up to its end."""
        parts: list[str] = []
        for token in self.tokens:
            if token == r"\end":
                self.argument()
                return "".join(parts).strip()
            parts.append(self.one(token))
        raise ValueError("a matrix in a formula has no end")


def raised(text: str) -> str:
    """Return an exponent; a transpose is an apostrophe."""
    if text == "'" or not text:
        return text
    short = text.translate(RAISED)
    for long, sign in FRACTIONS.items():
        if text.lstrip("-") == long:
            return f"^{'-' if text.startswith('-') else ''}{sign}"
    if all(each in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻" for each in short):
        return short
    return f"^{text}" if SIMPLE.fullmatch(text) or text.lstrip("-").isalnum() else f"^({text})"


def lowered(text: str) -> str:
    """Return an index."""
    return f"_{text}" if re.fullmatch(r"[\w*+]+", text) else f"_({text})"


def bracketed(text: str) -> str:
    """Return a text in brackets where it is no single thing."""
    return text if SIMPLE.fullmatch(text) or len(text) == 1 or _in_brackets(text) else f"({text})"


def _in_brackets(text: str) -> bool:
    """Whether the bracket that opens a text is closed at its end, and not before."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return place == len(text) - 1 and text.startswith("(")
    return False


def plain_formula(formula: str) -> str:
    r"""Return a formula as text.

    Raises `ValueError` for what is not in the vocabulary.

    >>> plain_formula(r"(B u_i)^{\top} \Sigma^{-1} (B u_i) \le \alpha")
    "(B u_i)' Σ⁻¹ (B u_i) ≤ α"
    >>> plain_formula(r"\lVert \operatorname{diag}(\sqrt{\mu}) W \rVert_*^2 + \frac{1}{t_1} H(\mu)")
    '‖diag(√μ) W‖_*² + (1/t_1) H(μ)'
    """
    text = re.sub(r" +", lambda spaces: "   " if len(spaces[0]) > 2 else " ", Reader(formula).text().strip())
    for fence in "‖|":  # no space inside of a norm
        inside = text.split(fence)
        text = fence.join(part.strip() if place % 2 else part for place, part in enumerate(inside))
    return re.sub(r"(?<=[(⟨]) | (?=[)⟩,;])", "", text)
