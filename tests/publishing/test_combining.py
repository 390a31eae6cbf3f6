"""Several releases combined: dense least squares, margins, exact answers, one data set behind all tables, refusals."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan

PEOPLE = dm.Schema({"age": range(5), "sex": ["f", "m"], "hours": range(3)})


def seeded(generator: np.random.Generator) -> Any:
    """Noise that can be drawn again, for study."""

    def noise(deviation: float, count: int) -> Any:
        return np.array([int(each) for each in np.rint(generator.normal(0, deviation, count))], dtype=object)

    return noise


def drawn(mechanism: object, data: Any, generator: np.random.Generator, workload: Any = None) -> Publication:
    on_grid, asked = plan(mechanism, workload)
    return Publication(on_grid, on_grid.draw(data, seeded(generator)), asked)


def union(**tables: Any) -> dm.Workload:
    return dm.workloads.union(PEOPLE, tables)


BLOCKS = {
    "cells": lambda: union(cells=["age", "sex"]),
    "prefixes": lambda: union(ages={"age": dm.workloads.prefix(5)}),
    "classes": lambda: union(old={"age": dm.Workload([[0, 0, 0, 1, 1]], names=["old"])}, sexes=["sex", "hours"]),
    "mixed": lambda: union(
        upto={"hours": dm.workloads.prefix(3), "sex": None}, groups={"age": dm.Workload([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])}
    ),
    "marginals": lambda: dm.workloads.marginals(PEOPLE, ways=(1, 2)),
}
RELATIONS = ("add-remove", "replace", "replace within sex")


@functools.cache
def best(name: str, relation: str) -> Any:
    return fast.solve(dm.FitnessForUse(BLOCKS[name](), 1.0, neighbours=relation, geometry="blocks")).mechanism


def released(name: str, relation: str, x: Any, generator: np.random.Generator) -> Publication:
    return drawn(best(name, relation).scaled(float(generator.uniform(1, 30))), {(0, 1, 2): x}, generator)


def dense_parts(published: Publication) -> tuple[Any, Any, Any]:
    """Return queries of all tables of a release on the cells, their estimates, and their joint covariance."""
    mechanism = published.drawn.mechanism.dense()
    tables, asked = published.tables, published.workload
    rows = asked.dense()
    answers = np.concatenate([published.estimates(name).ravel() for name in tables])
    order = np.concatenate([published.published[name].rows for name in tables])
    shares = np.asarray(rows[order] @ np.linalg.pinv(mechanism.query_matrix))
    return rows[order], answers, shares @ mechanism.covariance() @ shares.T


def least_squares(parts: Any, queries: Any) -> tuple[Any, Any]:
    """Return estimates and variances of queries by generalised least squares from answers with their covariance.

    Directions with hardly any noise are conditions; the rest is fitted on what they leave.
    """
    rows, answers, noise = [], [], []
    for own, given_answers, covariance in parts:
        values, vectors = np.linalg.eigh(covariance)
        turned = vectors.T @ own
        kept = (values > 1e-7 * values[-1]) | (np.linalg.norm(turned, axis=1) > 1e-6)
        rows.append(turned[kept])
        answers.append(vectors[:, kept].T @ given_answers)
        noise.append(np.maximum(values[kept], 1e-7 * values[-1]))
    whiten = 1 / np.sqrt(np.concatenate(noise))
    stacked = np.vstack(rows) * whiten[:, None]
    inverse = np.linalg.pinv(stacked, rcond=1e-11)
    fit = queries @ inverse
    return fit @ (np.concatenate(answers) * whiten), np.sum(fit**2, axis=1)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([*BLOCKS]), min_size=2, max_size=3, unique=True),
    st.sampled_from(RELATIONS),
    st.integers(0, 2**32 - 1),
)
def test_blocks_combine_as_dense_least_squares_does(names: list[str], relation: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.integers(20, 200, PEOPLE.shape)
    every = [released(name, relation, x, generator) for name in names]
    both = dm.combine(*every)
    parts = [dense_parts(each) for each in every]
    queries = both.workload.dense()
    estimates, variances = least_squares(parts, queries)
    scale = np.sqrt(variances.max()) + 1
    for name in both.tables:
        rows = both.published[name].rows
        assert np.abs(both.estimates(name).ravel() - estimates[rows]).max() <= 1e-3 * scale
        noisy = ~both.unmoved(name).ravel()
        assert np.allclose(both.variances(name).ravel()[noisy], variances[rows][noisy], rtol=1e-4)
        for each in every:
            if name in each.tables:
                assert np.all(both.margins(name) <= each.margins(name) * (1 + 1e-9))
                still = each.unmoved(name)
                assert np.array_equal(both.estimates(name)[still], each.estimates(name)[still])
    assert both.rho == sum(each.rho for each in every)
    together = np.concatenate([both.estimates(name).ravel() for name in both.tables])
    order = np.concatenate([both.published[name].rows for name in both.tables])
    fitted = np.linalg.lstsq(queries[order], together, rcond=None)[0]
    assert np.allclose(queries[order] @ fitted, together, atol=1e-6 * scale)  # of one data vector
