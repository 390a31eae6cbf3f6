"""Drawings of the lessons that one can drag: their arithmetic is the library's, and fingers, keys and buttons reach it.

They are opened in a browser, without the site around them.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from browser import looked_at, needs_browser, opened

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine.dual_function import DenseDual

STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"
PROBLEM = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
W = PROBLEM.workload.dense()

Array = npt.NDArray[np.float64]
Case = tuple[str, tuple[Any, ...], Any]
"""The name of a function of `arithmetic.js`, arguments, and what Python makes of them."""


def page(folder: Path, body: str, scripts: tuple[str, ...]) -> Path:
    """Write a page that loads scripts of the site; return its path."""
    loaded = "".join(f'<script src="{(STATIC / name).as_uri()}"></script>' for name in scripts)
    style = f'<link rel="stylesheet" href="{(STATIC / "lessons" / "lessons.css").as_uri()}">'
    made = folder / "page.html"
    made.write_text(f'<!doctype html><meta charset="utf-8">{style}<body>{body}{loaded}</body>', encoding="utf-8")
    return made


def answered(folder: Path, body: str, scripts: tuple[str, ...], code: str) -> Any:
    """Return what the last expression of a script of a page is, which says nothing else."""
    written = f'document.body.append(drawn("pre", JSON.stringify((() => {{ {code} }})())));'
    helper = 'const drawn = (name, text) => { const made = document.createElement(name); made.id = "answer"; '
    (folder / "ask.js").write_text(f"{helper} made.textContent = text; return made; }};\n{written}", encoding="utf-8")
    said, text = opened(page(folder, body, (*scripts, str(folder / "ask.js"))), folder / "profile")
    assert not said
    found = re.search(r'<pre id="answer">(.*?)</pre>', text, re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))


def noise_cases(rng: np.random.Generator) -> list[Case]:
    """Return what lesson 1 draws, at random points and weights: variances, costs, bound, step, noise of the weights."""
    p, q = rng.standard_normal((2, 2))
    covariance = np.outer(p, p) + np.outer(q, q)
    cells, queries = rng.dirichlet([1.0, 1.0], 2) * 0.98 + 0.01
    mechanism = PROBLEM.mechanism(covariance)
    judged = PROBLEM.certify(PROBLEM.feasible(covariance), (cells, queries))
    point = DenseDual(W, None).at(np.concatenate([cells, queries]))
    shares = point.weights * point.constraint_values / point.dual_value
    half = scipy.linalg.sqrtm(np.diag(cells))
    inner = scipy.linalg.sqrtm(half @ W.T @ np.diag(queries) @ W @ half)
    noise = PROBLEM.feasible(half @ np.linalg.inv(inner) @ half)
    return [
        ("covariance", (p, q), covariance),
        ("points", (covariance,), np.linalg.cholesky(covariance).T),
        ("variances", (W, covariance), mechanism.variances(PROBLEM.workload)),
        ("costs", (covariance,), mechanism.profile),
        ("objective", (W, covariance), judged.objective),
        ("bound", (W, cells, queries), judged.lower_bound),
        ("step", (W, cells, queries), {"cells": shares[:2], "queries": shares[2:]}),
        ("noise", (W, cells, queries), noise),
        ("root", (covariance,), scipy.linalg.sqrtm(covariance)),
    ]


def factorisation_cases(rng: np.random.Generator) -> list[Case]:
    """Return what lesson 2 draws: a factorisation, whose product is the root of what its covariance costs."""
    X = rng.standard_normal((2, 2))
    Y = np.linalg.solve(X, W)
    r, s = np.linalg.norm(X, axis=1).max(), np.linalg.norm(Y, axis=0).max()
    covariance = np.linalg.inv(Y.T @ Y)
    cost = PROBLEM.certify(PROBLEM.feasible(covariance), ([0.5, 0.5], [0.5, 0.5])).objective
    return [
        ("factorisation", (W, X), {"Y": Y, "r": r, "s": s, "product": cost**0.5}),
        ("traceNorm", (X,), np.linalg.norm(X, "nuc")),
        ("modulus", (X,), scipy.linalg.sqrtm(X.T @ X)),
    ]


def common_cases(rng: np.random.Generator) -> list[Case]:
    """Return what lesson 5 draws: the common mechanism of two, what proves it, and what is left of the first."""
    P, R = (each @ each.T for each in rng.standard_normal((2, 2, 2)))
    first, second = (dm.LinearGaussianMechanism(np.eye(2), each) for each in (P, R))
    answer = fast.solve(dm.CommonMechanism([first, second], basis=np.eye(2)))
    share, Sigma = answer.dual.weights[0], answer.primal
    left = np.linalg.inv(P) - np.linalg.inv(Sigma)
    values, vectors = np.linalg.eigh(P - R)
    vector = vectors[:, 1] * np.sign(vectors[0 if P[0, 0] - R[0, 0] > P[1, 1] - R[1, 1] else 1, 1])
    return [
        ("common", (P, R), Sigma),
        ("share", (P, R), share),
        ("shareBound", (P, R, share), answer.lower_bound),
        ("residual", (P, Sigma), dm.residual(first, answer.mechanism).cost_matrix if left.any() else left),
        ("largest", (P - R,), {"value": values[1], "vector": vector}),
    ]


def held(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(held(found[name], value) for name, value in expected.items())
    return bool(np.allclose(np.array(found, dtype=float), expected, rtol=1e-8, atol=1e-8))


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("cases", [noise_cases, factorisation_cases, common_cases], ids=lambda each: each.__name__)
def test_the_arithmetic_of_a_page_is_the_librarys(cases: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    asked = [case for _ in range(40) for case in cases(rng)]
    calls = json.dumps([[name, arguments] for name, arguments, _ in asked], default=np.ndarray.tolist)
    code = f"return {calls}.map(([name, given]) => arithmetic[name](...given));"
    found = answered(tmp_path, "", ("lessons/arithmetic.js",), code)
    wrong = [case for case, value in zip(asked, found, strict=True) if not held(value, case[2])]
    assert len(found) == len(asked) and not wrong


DRIVEN = """
const place = document.querySelector(".dragged"), seen = {};
const see = () => [...place.querySelectorAll(".numbers td")].map(each => each.textContent);
const press = name => [...place.querySelectorAll("button")].find(each => each.textContent.startsWith(name)).click();
const slide = (row, value) => {
  const range = place.querySelectorAll("input")[row];
  range.value = value;
  range.dispatchEvent(new Event("input"));
};
const key = (point, code) => {
  point.rendNode.dispatchEvent(new KeyboardEvent("keydown", { keyCode: code, bubbles: true }));
};
let finger = 0; // a new one for each pull: a plane leaves out moves of the same one within 25 ms
const pull = (board, point, x, y) => {
  finger += 1;
  const box = board.containerObj.getBoundingClientRect(), node = point.rendNode;
  const fire = (name, target, [across, down]) => target.dispatchEvent(new PointerEvent(name, {
    clientX: box.left + across, clientY: box.top + down, bubbles: true, cancelable: true, isPrimary: true,
    pointerId: finger, pointerType: "mouse", button: 0, buttons: 1,
  }));
  const to = new JXG.Coords(JXG.COORDS_BY_USER, [x, y], board).scrCoords.slice(1);
  fire("pointerdown", node, point.coords.scrCoords.slice(1));
  fire("pointermove", board.containerObj, to);
  fire("pointerup", document, to);
};
"""
"""What a reader does with a drawing: press, slide, move a point by keys, drag it; and the numbers that are shown."""


def driven(folder: Path, name: str, code: str) -> Any:
    """Return what a script sees of a drawing that it uses."""
    scripts = ("jsxgraph/jsxgraphcore.js", "lessons/arithmetic.js", "lessons/drawing.js")
    place = f'<div class="dragged" id="{name}">In the site.</div>'
    return answered(folder, place, (*scripts, f"lessons/{name.replace('-', '_')}.js"), DRIVEN + code)


@pytest.mark.slow
@needs_browser
def test_noise_is_dragged_and_the_fixed_point_closes_the_gap(tmp_path: Path) -> None:
    code = """
      seen.text = place.textContent, seen.first = see();
      key(twoCells.q, 38);
      seen.key = [twoCells.q.Y(), see()];
      pull(twoCells.board, twoCells.p, 1, -0.5);
      pull(twoCells.board, twoCells.q, 0, Math.sqrt(0.75));
      slide(0, 0.67);
      slide(1, 0.33);
      seen.pulled = [see(), twoCells.Sigma()];
      press("Begin");
      seen.again = see();
      for (let step = 0; step < 12; step++) press("A step");
      seen.steps = [see(), place.querySelector(".spoken").textContent];
      seen.tabs = [twoCells.p, twoCells.q].map(each => each.rendNode.getAttribute("tabindex"));
      return seen;
    """
    seen = driven(tmp_path, "two-cells", code)
    independent = ["0.500, met", "1.000, met", "2.000", "2.000", "2.000", "1.250"]
    assert "In the site." not in seen["text"] and seen["first"] == seen["again"] == independent
    higher, after = seen["key"]
    assert higher > 0.5**0.5 and after[1].endswith("above 1")
    numbers, covariance = seen["pulled"]
    assert np.allclose(covariance, [[1, -0.5], [-0.5, 1]], atol=1e-9)
    assert numbers == ["1.000, met", "1.000, met", "1.333", "1.333", "1.333", "1.333"]
    assert seen["steps"][0][4:] == ["1.333", "1.333"] and seen["steps"][1].endswith("after 12 steps.")
    assert seen["tabs"] == ["0", "0"]


@pytest.mark.slow
@needs_browser
def test_a_factorisation_is_dragged_until_both_sides_meet(tmp_path: Path) -> None:
    code = """
      seen.first = see();
      pull(factorisation.board, factorisation.x[0], 0.5, Math.sqrt(0.75));
      pull(factorisation.board, factorisation.x[1], 1, 0);
      slide(0, 0.67);
      slide(1, 0.33);
      seen.pulled = see();
      key(factorisation.x[1], 37);
      seen.key = see();
      press("Begin");
      seen.again = see();
      return seen;
    """
    seen = driven(tmp_path, "factorisation", code)
    assert seen["first"] == seen["again"] == ["1.000", "1.414", "1.414", "1.118"]
    assert seen["pulled"] == ["1.000", "1.155", "1.155", "1.155"]
    assert float(seen["key"][2]) > 1.155


@pytest.mark.slow
@needs_browser
def test_two_mechanisms_are_dragged_until_one_says_all(tmp_path: Path) -> None:
    code = """
      const said = () => place.querySelector(".spoken").textContent;
      seen.first = [see(), said(), commonPart.common()];
      key(commonPart.handles[0][1], 38);
      seen.key = see();
      press("Begin");
      seen.again = see();
      pull(commonPart.board, commonPart.handles[1][0], 0.5, 0);
      pull(commonPart.board, commonPart.handles[1][1], 0, 0.4);
      seen.inside = [see(), said()];
      return seen;
    """
    seen = driven(tmp_path, "common", code)
    numbers, said, covariance = seen["first"]
    pair = [dm.LinearGaussianMechanism(np.eye(2), each) for each in ([[4, 1.2], [1.2, 1]], [[1, -0.6], [-0.6, 2]])]
    answer = fast.solve(dm.CommonMechanism(pair, basis=np.eye(2)))
    assert np.allclose(covariance, answer.primal)
    assert numbers[:4] == ["5.000", "3.000", f"{answer.objective:.3f}", f"{answer.lower_bound:.3f}"]
    for each, left in zip(pair, numbers[4:], strict=True):
        cost = dm.residual(each, answer.mechanism).cost_matrix
        assert left.endswith(f"variance {1 / np.linalg.eigvalsh(cost)[-1]:.3f}")
    assert said.startswith("Neither") and seen["key"] != numbers and seen["again"] == numbers
    inside, ordered = seen["inside"]
    assert inside[2:] == ["5.000", "5.000", "nothing", "two answers"]
    assert ordered == "The first can be answered from the second: it is what they share."


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", ["two-cells", "factorisation", "common"])
def test_drawings_fit_a_telephone(name: str, tmp_path: Path) -> None:
    scripts = ("jsxgraph/jsxgraphcore.js", "lessons/arithmetic.js", "lessons/drawing.js")
    page(tmp_path, f'<div class="dragged" id="{name}"></div>', (*scripts, f"lessons/{name.replace('-', '_')}.js"))
    assert looked_at(tmp_path, ["page.html"], tmp_path / "profile") == "looked at 1 pages: ."
