"""LaTeX mathematics as MathML, typeset when the site is built: browsers draw it without a script or a font of ours."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

BAR = "<mo>&#x02016;</mo>"  # of a norm; left to itself it would grow with the exponent that stands next to it

MODULUS = '<mo stretchy="false">&#x0007C;</mo>'  # close to what it encloses

RELATION = re.compile(
    "<mi>(&#x02AB0;|&#x02AAF;|&#x0223C;)</mi>"
)  # of matrices, and of distributions, taken for letters

TILDE = "&#x0223C;"  # the relation; the letter of the keyboard is an accent, which is drawn as high as its neighbours

ROOT = "<msqrt><mrow>"  # its bar hugs a low letter, and the sign hangs below the line, unless a strut raises the bar

SIGN = re.compile(
    r"(<mo\b[^>]*>(?!&#x00029;|&#x0005D;|&#x0007D;|&#x0007C;|&#x02016;|[)\]}!'])[^<]*</mo>)<mo>&#x02212;</mo>"
)
"""A minus behind an operator or what opens a parenthesis: the sign of a number, not a difference."""

WORD = re.compile(
    r"(?<!<msub>)(?<!<msup>)(?<!<msubsup>)(<mi>(?:log|ln|det|exp|sin|cos)</mi>|"
    r'<mrow>(?:<mi mathvariant="normal">[a-z]</mi>){2,}</mrow>)(?=<m(?:i|n|sub|sup|subsup|row|msqrt)\b)'
)
"""A function by its name, and what it is taken of without parentheses."""


def typeset(formula: str, display: str) -> str:
    """Return a formula as a MathML element; `ExtensionError` for a command or an alignment that is not known.

    >>> typeset("x^2", "inline").startswith("<math")
    True
    """
    element = convert(formula, display=display).replace("<mi>&#x0007E;</mi>", f"<mi>{TILDE}</mi>")
    if "\\" in element or "&#x0005C;" in element or "<mi>&</mi>" in element:
        raise ExtensionError(f"a command of this formula has no MathML: {formula}")
    element = element.replace(BAR, BAR.replace("<mo>", '<mo stretchy="false">'))
    element = element.replace(MODULUS, MODULUS.replace("<mo ", '<mo lspace="0" rspace="0" '))
    element = SIGN.sub(r'\1<mo form="prefix">&#x02212;</mo>', element)
    element = RELATION.sub(r'<mo lspace="0.28em" rspace="0.28em">\1</mo>', element)
    element = element.replace(ROOT, ROOT + '<mspace width="0" height="0.62em"/>')
    return WORD.sub(r'\1<mspace width="0.17em"/>', element)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(f'<span class="math">{typeset(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{typeset(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
