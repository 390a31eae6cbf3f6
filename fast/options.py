"""The options of `dualmech.fast.solve` by problem, for type checkers and editors; the solvers themselves check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from dualmech.fast.softmax.published import SoftmaxOptions
from dualmech.geometry.orbits import Orbits
from dualmech.mechanisms.local import LocalMechanism
from dualmech.progress import Callback
from dualmech.solution import Solution


class MethodOptions(TypedDict, total=False):
    """What every problem takes."""

    tol: float
    max_iterations: int | None
    time_limit: float | None
    callback: Callback | None
    verbose: bool
    method: str | Callable[[Any], Any]


class StartOptions(MethodOptions, total=False):
    """Those of a solver that can begin with an earlier answer."""

    start: Solution | None


class OrbitOptions(StartOptions, total=False):
    """Those of a solver that takes symmetries."""

    orbits: Iterable[Any] | Orbits | None


class SmoothOptions(StartOptions, total=False):
    """Those of soft maxima, with the parameters of the paper's own algorithms."""

    options: SoftmaxOptions | None


class FitnessOptions(OrbitOptions, SmoothOptions, total=False):
    """Those of fitness for use."""


class LocalOptions(MethodOptions, total=False):
    """Those of local strategies."""

    rng: np.random.Generator | int
    outputs: int | None
    start: npt.ArrayLike | LocalMechanism | Solution | None
    step_size: float | None
    iterations: int | None
