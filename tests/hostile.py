"""Hostile arguments: what nobody should pass, passed everywhere, and what may come of it.

A `Call` is a public function with arguments that it takes. Each argument in turn is replaced by each of `VALUES`; what
comes of it must be an answer, or an error of the library that names the argument, and the arguments must be as before.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from decimal import Decimal
from fractions import Fraction
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

import dualmech as dm
from dualmech.errors import CertificateError, DualmechError, SamplingWarning, UncertifiedWarning, printable
from dualmech.watching import without_warnings


class Anything:
    """An object, a class and a function at once, of no use as any of them."""

    def __init__(self, *given: object, **named: object) -> None:
        pass


def _of_pandas(kind: str, data: Any, otherwise: Any) -> Any:
    try:
        return getattr(importlib.import_module("pandas"), kind)(data)
    except ImportError:
        return otherwise


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "2": lambda: 2,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "nan": lambda: np.nan,
    "inf": lambda: np.inf,
    "-inf": lambda: -np.inf,
    "1e300": lambda: 1e300,
    "1e-300": lambda: 1e-300,
    "10**9": lambda: 10**9,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "x",
    "endless number": lambda: "1e999999999",
    "endless fraction": lambda: "1e-99999999",
    "many digits": lambda: "9" * 5000,
    "no": lambda: "no",
    "NUL": lambda: "a\0b",
    "bytes": lambda: b"x",
    "[]": list,
    "[[]]": lambda: [[]],
    "[None]": lambda: [None],
    "texts": lambda: ["x", "y"],
    "numbers": lambda: [1.0, 2.0, 3.0],
    "far index": lambda: [99],
    "ragged": lambda: [[1.0, 2.0], [3.0]],
    "{}": dict,
    "dict": lambda: {"a": 1},
    "dict of None": lambda: {None: None},
    "set": lambda: {1, 2},
    "tuple of None": lambda: (None, None),
    "object": object,
    "anything": Anything,
    "class": lambda: Anything,
    "function": lambda: lambda *given, **named: "x",
    "generator": lambda: (each for each in (1.0, "x")),
    "range": lambda: range(3),
    "module": lambda: np,
    "array 0-d": lambda: np.array(2.0),
    "array empty": lambda: np.zeros(0),
    "array (0, 3)": lambda: np.zeros((0, 3)),
    "array (3, 0)": lambda: np.zeros((3, 0)),
    "array (1, 1)": lambda: np.ones((1, 1)),
    "array (3,)": lambda: np.ones(3),
    "array (4,)": lambda: np.ones(4),
    "array (4, 4)": lambda: np.eye(4),
    "array (3, 5)": lambda: np.ones((3, 5)),
    "array 3-d": lambda: np.ones((2, 2, 2)),
    "zeros (4,)": lambda: np.zeros(4),
    "zeros (4, 4)": lambda: np.zeros((4, 4)),
    "NaN (4,)": lambda: np.full(4, np.nan),
    "NaN (4, 4)": lambda: np.full((4, 4), np.nan),
    "inf (4, 4)": lambda: np.full((4, 4), np.inf),
    "huge (4,)": lambda: np.full(4, 1e300),
    "huge (4, 4)": lambda: 1e300 * np.eye(4),
    "tiny (4,)": lambda: np.full(4, 1e-300),
    "tiny (4, 4)": lambda: 1e-300 * np.eye(4),
    "indefinite": lambda: np.eye(4) - 2 * np.ones((4, 4)),
    "complex": lambda: 1j * np.eye(4),
    "objects": lambda: np.array([object(), None, "x", 1.0], dtype=object),
    "array of texts": lambda: np.array(["x", "y", "z", "w"]),
    "dates": lambda: np.array(["2020-01-01"] * 4, dtype="datetime64[D]"),
    "booleans": lambda: np.array([True, False, True, True]),
    "masked": lambda: np.ma.masked_array(np.ones(4), [True, False, False, True]),
    "structured": lambda: np.zeros(4, dtype=[("a", float)]),
    "sparse": lambda: sp.csr_array(np.eye(3)),
    "sparse empty": lambda: sp.csr_array((0, 4)),
    "sparse complex": lambda: sp.csr_array(1j * np.eye(4)),
    "sparse NaN": lambda: sp.csc_matrix(np.full((4, 4), np.nan)),
    "sparse 1-d": lambda: sp.coo_array(np.ones(4)),
    "frame": lambda: _of_pandas("DataFrame", {"a": ["x", None], "b": [1.0, 2.0]}, [{"a": 1.0}, {"b": 2.0}]),
    "series": lambda: _of_pandas("Series", {"a": 1.0, "b": 2.0}, [1.0, 2.0]),
    "fraction": lambda: Fraction(1, 3),
    "decimal": lambda: Decimal("NaN"),
    "long double": lambda: np.longdouble("1e4000"),
    "single": lambda: np.float32(1.5),
    "deque": lambda: deque([1.0, 2.0]),
    "2**14": lambda: 2**14,
    "2**31": lambda: np.int64(2**31),
    "-10**9": lambda: -(10**9),
    "missing path": lambda: Path("no folder of that name") / "no file",
    "folder": lambda: Path("/"),
}
"""Fresh values, by what they are."""

made: Any = dm

FOREIGN: dict[str, Callable[[], Any]] = {
    "workload of 3 cells": lambda: made.workloads.prefix(3),
    "tables": lambda: made.workloads.marginals({"a": 2, "b": 3}, ways=1),
    "circle": lambda: made.workloads.circular_ranges(3),
    "product": lambda: made.workloads.kron(made.workloads.prefix(2), made.workloads.prefix(2)),
    "domain": lambda: made.Domain({"a": 2}),
    "relation": lambda: made.neighbours.Relation(replace=True),
    "persons": lambda: made.neighbours.Contributions(2, attribute="month", groups=3),
    "within": lambda: made.neighbours.ReplaceWithin(2, attribute="month"),
    "mechanism of 3 cells": lambda: made.LinearGaussianMechanism(np.eye(3), np.eye(3)),
    "mechanism of tables": lambda: made.BlockMechanism.of_levels(made.Domain({"a": 2}), {(0,): 1.0}),
    "class of workloads": lambda: made.Workload,
    "class of mechanisms": lambda: made.LinearGaussianMechanism,
    "class of problems": lambda: made.FitnessForUse,
    "class of weights": lambda: made.duals.FitnessDual,
    "problem": lambda: made.TotalVariance(made.workloads.prefix(3)),
    "problem of tables": lambda: made.FitnessForUse(made.workloads.marginals({"a": 2}, ways=1), geometry="blocks"),
    "certificate": lambda: made.Certificate.of(2.0, 1.0, 0.0, 0.0),
    "pair of None": lambda: (None, None),
    "pair of texts": lambda: ("x", "y"),
    "triple of None": lambda: (None, None, None),
    "weights of 3": lambda: made.duals.FitnessDual(np.ones(3), np.ones(3)),
    "weights of None": lambda: made.duals.FitnessDual(None, None),
    "weights of objects": lambda: made.duals.FitnessDual(object(), ({}, [])),
    "weights by attribute": lambda: made.duals.FitnessDual(
        (np.ones(2), "x"), made.duals.SplitWeights((np.ones(2),), None)
    ),
    "variance weights": lambda: made.duals.VarianceDual("x"),
    "variance weights by factor": lambda: made.duals.VarianceDual((np.ones(3), np.ones((2, 2)))),
    "weighting weights": lambda: made.duals.WeightingDual(None),
    "softmax weights": lambda: made.duals.SoftmaxDual(np.ones(3), np.full(3, np.nan)),
    "reuse weights": lambda: made.duals.ReuseDual(np.ones(3), np.ones(3), "x"),
    "common weights": lambda: made.duals.CommonDual(np.ones((3, 3))),
    "local weights": lambda: made.duals.LocalDual("x", None),
    "local weights of 3": lambda: made.duals.LocalDual(np.eye(3), np.ones(3), np.ones(3)),
    "projection weights": lambda: made.duals.ProjectionDual(np.ones(2), "x"),
    "estimate weights": lambda: made.duals.EstimateDual(None),
    "point of blocks": lambda: made.duals.BlockPoint(np.ones(2), (np.eye(2), "x")),
    "point of no blocks": lambda: made.duals.BlockPoint(None, None),
    "point of split noise": lambda: made.duals.SplitPoint((np.eye(2), None), np.ones(1)),
    "point of nothing": lambda: made.duals.SplitPoint(None, "x"),
    "local point": lambda: made.duals.LocalPoint(np.ones((3, 2)), None),
    "local point of texts": lambda: made.duals.LocalPoint("x", "y"),
    "by factor": lambda: made.ByFactor(1.0, "x"),
    "orbits": lambda: made.Orbits(np.zeros(2, dtype=int), np.zeros(9, dtype=int)),
}
"""The library's own objects, where they do not belong."""


@dataclass(frozen=True, slots=True)
class Call:
    """A public function, with arguments that it takes, by the names of its parameters."""

    place: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    @property
    def refused(self) -> bool:
        """Whether the library refuses it whatever it is given, in words of its own."""
        with without_warnings():
            try:
                self({})
            except DualmechError:
                return True
        return False

    def __call__(self, spoiled: dict[str, Any]) -> Any:
        """Call it with some of the arguments replaced; of ``*others`` the first, of ``**codes`` all."""
        given = self.arguments | spoiled
        kinds = {name: each.kind for name, each in parameters_of(self.function).items()}
        several = any(kind is inspect.Parameter.VAR_POSITIONAL for kind in kinds.values())
        positional: list[Any] = []
        for name, kind in kinds.items():
            if name not in given:
                continue
            if kind is inspect.Parameter.VAR_POSITIONAL:
                value = given.pop(name)
                positional += [value] if name in spoiled else value
            elif kind is inspect.Parameter.POSITIONAL_ONLY or (
                several and kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            ):
                positional.append(given.pop(name))
            elif kind is inspect.Parameter.VAR_KEYWORD and isinstance(self.arguments[name], dict):
                value = given.pop(name)
                given |= dict.fromkeys(self.arguments[name], value) if name in spoiled else value
        return self.function(*positional, **given)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, by name."""
    return inspect.signature(function).parameters


def public_functions(module: ModuleType, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes that a module offers, with their names: not errors, warnings or enumerations."""
    for name in getattr(module, "__all__", None) or dir(module):
        value = getattr(module, name)
        own = hasattr(module, "__all__") or getattr(value, "__module__", None) == module.__name__
        if name.startswith("_") or not callable(value) or not own:
            continue
        if inspect.isclass(value) and (issubclass(value, Exception) or hasattr(value, "__members__")):
            continue
        if not str(getattr(value, "__module__", "")).startswith("dualmech"):
            continue
        if not _plain_record(value):
            yield f"{prefix}{name}", value
        if inspect.isclass(value):
            for each, held in inspect.getmembers_static(value):
                if isinstance(held, classmethod | staticmethod) and not each.startswith("_"):
                    yield f"{prefix}{name}.{each}", getattr(value, each)


def _plain_record(value: Any) -> bool:
    """Whether a class only holds what the library itself puts into it; what is in it is checked where it is used."""
    written = getattr(getattr(value, "__init__", None), "__code__", None)
    return (
        is_dataclass(value)
        and written is not None
        and written.co_filename == "<string>"
        and not hasattr(value, "__post_init__")
    )


PROTOCOL = {"__getitem__", "__matmul__", "__eq__", "__contains__", "__call__"}
"""Special methods that take an argument of the user's."""


def public_methods(label: str, instance: Any) -> Iterator[tuple[str, Any]]:
    """Yield the methods of an object, with their names."""
    for name, held in inspect.getmembers_static(type(instance)):
        if inspect.isfunction(held) and (not name.startswith("_") or name in PROTOCOL):
            yield f"{label}.{name}", getattr(instance, name)


def fault_of(
    call: Call, spoiled: dict[str, Any], names: Callable[[str], tuple[str, ...]] = lambda name: (name,)
) -> str:
    """Return what is wrong with what came of a call with hostile arguments; empty where nothing is.

    An error names the argument, or another one of the call, which it does not fit; `names` are the words by which
    it may call a parameter. Of files it names the file, and what is too large is a product of several arguments.
    """
    given = call.arguments | spoiled
    before = _photograph(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for kind in (UncertifiedWarning, SamplingWarning):
                warnings.simplefilter("ignore", kind)
            call(spoiled)
    except CertificateError:
        pass  # what contradicts itself is said of no argument
    except DualmechError as error:
        known = [word for name in given for word in names(name)]
        pattern = rf"\b({'|'.join(map(re.escape, known))})s?\b|too (large|many|long)"
        paths = [str(each) for each in spoiled.values() if isinstance(each, str | PathLike)]
        shown = [*paths, *map(repr, paths), *map(printable, paths)]
        named = re.search(pattern, str(error)) or any(path in str(error) for path in shown)
        if not named and not call.refused:
            return f"unnamed: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "an argument was changed" if _photograph(given) != before else ""


def _photograph(arguments: dict[str, Any]) -> str:
    """Return what those arguments hold that can be written to."""
    return repr([value for value in arguments.values() if isinstance(value, np.ndarray | list | dict)])
