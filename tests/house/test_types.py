"""What type checkers know of an answer; `make lint` checks this file, and the ignored errors must be there."""

from __future__ import annotations

import importlib.metadata
from typing import assert_type

import pytest

import dualmech as dm
from dualmech import fast, reference
from dualmech.mechanisms.privacy import GaussianPrivacy

SMALL = dm.workloads.prefix(2)


def test_dual_and_mechanism_are_known() -> None:
    answer = fast.solve(dm.FitnessForUse(SMALL), tol=1e-3)
    assert_type(answer.dual, dm.duals.FitnessDual)
    assert_type(answer.mechanism, GaussianPrivacy)
    assert_type(reference.solve(dm.TotalVariance(SMALL)).dual, dm.duals.VarianceDual)
    local = fast.solve(dm.LocalStrategy(SMALL, 1.0))
    assert_type(local.mechanism, dm.LocalMechanism)
    problem, start = dm.LocalStrategy(SMALL, 1.0), local.mechanism
    own = fast.solve(problem, tol=1.0, method=fast.ProjectedGradient(step_size=1e-3, iterations=2), start=start)
    assert_type(own.dual, dm.duals.LocalDual)
    assert_type(fast.solve(dm.QueryWeighting(SMALL, SMALL)).mechanism, dm.LinearGaussianMechanism)


def test_a_misspelt_option_is_seen() -> None:
    with pytest.raises(dm.errors.InputTypeError, match="did you mean 'tol'"):
        fast.solve(dm.FitnessForUse(SMALL), tool=1e-3)  # type: ignore[call-arg]
    with pytest.raises(dm.errors.InputTypeError, match="option 'start' is not for QueryWeighting"):
        fast.solve(dm.QueryWeighting(SMALL, SMALL), start=fast.solve(dm.QueryWeighting(SMALL, SMALL)))
    with pytest.raises(dm.errors.InputTypeError, match="start must be an array of real numbers"):
        fast.solve(dm.LocalStrategy(SMALL, 1.0), method="gradient", start={1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [dm.LinearGaussianMechanism, dm.BlockMechanism, dm.ProductMechanism, dm.SplitMechanism]
)
def test_every_mechanism_offers_the_same(kind: type) -> None:
    assert {"variances", "scaled", "dense", "point_on", *vars(GaussianPrivacy)} <= {*dir(kind)}


def test_the_version_is_told() -> None:
    assert dm.__version__ == importlib.metadata.version("dualmech")
