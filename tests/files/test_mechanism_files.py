"""Every mechanism has a file, from which its privacy is computed anew."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, files
from dualmech.storage import codec


@functools.cache
def union() -> dm.workloads.UnionWorkload:
    schema = dm.Schema({"age": 8, "sex": ["f", "m"]})
    return dm.workloads.union(schema, {"ages": {"age": dm.workloads.prefix(8)}, "cells": ["age", "sex"]})


def solved(neighbours: str | None = None) -> Any:
    return fast.solve(dm.FitnessForUse(union(), {"ages": 1.0, "cells": 4.0}, neighbours=neighbours)).mechanism


def circle() -> dm.workloads.UnionWorkload:
    return dm.workloads.union({"hour": 12}, {"runs": {"hour": dm.workloads.circular_ranges(12)}})


def renamed() -> dm.workloads.UnionWorkload:
    return dm.workloads.union({"age": 3, "sex": 2}, {"counts": ["age"], "both": ["age", "sex"]})


def product() -> Any:
    asked = dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.identity_total(3))
    return fast.solve(dm.FitnessForUse(asked, geometry="product")).mechanism


def split() -> Any:
    asked = dm.workloads.query_tables({"age": 4, "sex": 2}, {"age": dm.workloads.prefix(4)}, ways=2)
    return dm.SplitMechanism(asked, [np.eye(4), np.eye(2)], np.arange(1.0, 5.0))


MADE: dict[str, tuple[Callable[[], Any], Callable[[], dm.Workload]]] = {
    "union": (solved, union),
    "union, replaced": (lambda: solved("replace:2"), union),
    "circle": (lambda: dm.BlockMechanism.of_tables(circle()), circle),
    "named tables": (lambda: dm.BlockMechanism.of_tables(renamed()), renamed),
    "product": (product, lambda: dm.workloads.kron(dm.workloads.prefix(4), dm.workloads.identity_total(3))),
    "split": (split, lambda: split().workload),
    "stream": (lambda: dm.StreamMechanism(dm.workloads.prefix(4), np.ones(4), [1, 2, 3, 4]), lambda: prefix(4)),
    "ranges": (lambda: dm.StreamMechanism(dm.workloads.all_range(4), np.ones(4), np.ones(4), 2.0), lambda: prefix(4)),
    "tree": (lambda: dm.strategies.tree(8), lambda: prefix(8)),
    "toeplitz": (lambda: dm.strategies.sqrt_toeplitz(8).scaled(3.0), lambda: prefix(8)),
    "buffered": (lambda: dm.strategies.buffered([0.5, 0.1], [0.5, 1.0], 8).scaled(3.0), lambda: prefix(8)),
    "banded": (lambda: dm.strategies.banded([[1.0, 2.0, 3.0], [0.5, 0.5, 0.0]]), lambda: prefix(3)),
}


def prefix(cells: int) -> dm.Workload:
    return dm.workloads.prefix(cells)


@pytest.mark.parametrize("kind", MADE)
def test_a_mechanism_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    make, queries = MADE[kind]
    made, asked = make(), queries()
    dm.save(made, tmp_path / "one.npz")
    again = dm.load(tmp_path / "one.npz")
    assert type(again) is type(made) and again.rho == pytest.approx(made.rho, rel=1e-12)
    np.testing.assert_allclose(again.profile, made.profile, rtol=1e-12)
    for one, other in zip(again.variances(asked), made.variances(asked), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    dm.save(again, tmp_path / "two.npz")
    assert (tmp_path / "two.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()
    arrays = files.read_archive(tmp_path / "one.npz", {"schema", "library"})
    assert str(arrays["schema"]) == codec.MECHANISM and str(arrays["library"]) == dm.__version__


def test_names_of_values_survive_and_other_objects_are_refused(tmp_path: Path) -> None:
    dm.save(solved(), tmp_path / "union.npz")
    assert dm.load(tmp_path / "union.npz").domain == union().domain
    assert isinstance(dm.load(tmp_path / "union.npz").domain, dm.Schema)
    path = tmp_path / "other.npz"
    sums = codec.pack("mechanism", dm.workloads.prefix(4))
    files.write_npz(path, codec.MECHANISM, codec.MECHANISM_VERSION, **sums)
    with pytest.raises(dm.errors.FileFormatError, match="mechanism must be of a kind of mechanism"):
        dm.load(path)


@pytest.mark.parametrize("kind", ["union", "product", "split", "stream", "toeplitz"])
def test_every_array_is_needed_and_none_is_believed(kind: str, tmp_path: Path) -> None:
    made, path = MADE[kind][0](), tmp_path / "made.npz"
    dm.save(made, path)
    whole = files.read_archive(path)
    del whole["schema"], whole["version"]
    for key in whole:
        if key in ("library", "digest") or key.endswith((".names", ".groups", "domain_names", "domain_schema")):
            continue
        others = {name: array for name, array in whole.items() if name != key}
        for changed in (others, whole | {key: np.array([[-3.5, np.nan]])}):
            files.write_npz(path, codec.MECHANISM, codec.MECHANISM_VERSION, **changed)
            with pytest.raises(dm.errors.FileFormatError):
                dm.load(path)


def test_impossible_blocks_are_refused(tmp_path: Path) -> None:
    for changes, words in (
        ({"key_pairs": lambda pairs: pairs + 9}, "components of increasing attributes"),
        ({"key_pairs": lambda pairs: pairs[:-1]}, "key_pairs must have shape"),
        ({"moves": lambda moves: moves[:-1]}, "moves must have shape"),
        ({"covariances": lambda numbers: -numbers}, "positive"),
        ({"key_sizes": lambda sizes: -sizes}, "whole numbers"),
        ({"neighbours": lambda _: np.array("strangers")}, "neighbours"),
    ):
        path = tmp_path / "union.npz"
        dm.save(solved("replace"), path)
        arrays = files.read_archive(path)
        del arrays["schema"], arrays["version"]
        for key, change in changes.items():
            arrays[f"mechanism.{key}"] = change(arrays[f"mechanism.{key}"])
        files.write_npz(path, codec.MECHANISM, codec.MECHANISM_VERSION, **arrays)
        with pytest.raises(dm.errors.FileFormatError, match=words):
            dm.load(path)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_blocks_of_one_row_that_is_none_are_refused(value: float, tmp_path: Path) -> None:
    """Their cost would be NaN, which no comparison with a budget refuses."""
    tables = dm.workloads.union({"age": 4, "sex": 2}, {"sexes": ["sex"]})
    dm.save(dm.BlockMechanism.of_tables(tables, 9.0), tmp_path / "noise.npz")
    arrays = dict(np.load(tmp_path / "noise.npz"))
    del arrays["digest"]
    (name,) = (name for name in arrays if name.endswith("moves"))
    np.savez(tmp_path / "forged.npz", **arrays | {name: np.full_like(arrays[name], value)})
    with pytest.raises(dm.errors.FileFormatError, match="must be finite and not 0|must be positive|finite"):
        dm.load(tmp_path / "forged.npz")
