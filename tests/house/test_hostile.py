"""Hostile arguments at every public name: an answer or a typed error that names the argument, and nothing else."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech.adaptive.regions import ConfidenceRegion
from dualmech.crosscheck import hostile
from dualmech.crosscheck.conformance import ConformanceCase
from dualmech.crosscheck.hostile import Call

FOLDER = Path(tempfile.mkdtemp())  # where files of good arguments lie

PREFIX = dm.workloads.prefix(4)
TABLES = dm.workloads.marginals({"age": 4, "sex": 2}, ways=(1, 2))
UNION = dm.workloads.union({"age": 4, "sex": 2}, {"ages": {"age": PREFIX}, "cells": ["age", "sex"]})
QUERIES = dm.workloads.query_tables({"age": 4, "sex": 2}, {"age": PREFIX}, ways=(1, 2))
ROWS = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
CELLS = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
TOTAL = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
CHAIN = dm.fast.chain([ROWS, CELLS])
COUNTED = {(0,): np.ones(4), (1,): np.ones(2), (0, 1): np.ones((4, 2))}
STRATEGY = np.array([[0.6, 0.2], [0.2, 0.6], [0.2, 0.2]])
LOCAL = dm.LocalMechanism(STRATEGY, 1.2, dm.workloads.prefix(2))
REGION = ConfidenceRegion(TOTAL, [50.0])
SAMPLES = dm.sampling.hit_and_run(REGION, 600)
COMMON = dm.fast.solve(dm.CommonMechanism([ROWS, CELLS])).mechanism
SOFTMAX = dm.SoftmaxFitness(PREFIX, 1.0, t1=5.0, t2=5.0)
FITNESS = dm.FitnessForUse(PREFIX)
SOLUTION = dm.fast.solve(FITNESS, tol=1e-4)
MARGINAL = dm.FitnessForUse(TABLES, geometry="blocks")
MARGINAL_ANSWER = dm.fast.solve(MARGINAL, tol=1e-4)
BLOCKS = dm.BlockMechanism.of_tables(TABLES)
SPLIT = dm.fast.solve(dm.FitnessForUse(QUERIES, geometry="split"), tol=0.1).mechanism
dm.save(CELLS, FOLDER / "good.npz")
dm.save(BLOCKS, FOLDER / "blocks.npz")
dm.save(LOCAL, FOLDER / "local.npz")
dm.save(PREFIX, FOLDER / "prefix.csv")
(FOLDER / "vector.csv").write_text("1\n2\n")
(FOLDER / "matrix.csv").write_text("1,2\n2,3\n")
(FOLDER / "named.csv").write_text("name,value\na,1\nb,2\n")

MODULES = {
    "": dm,
    **{
        f"{name}.": getattr(dm, name)
        for name in (
            *("accounting", "census", "crosscheck", "decisions", "designs", "fast", "files", "neighbours"),
            *("records", "reference", "sampling", "strategies", "uncertainty", "workloads"),
        )
    },
}

INSTANCES: dict[str, Any] = {
    "BlockMechanism": BLOCKS,
    "BlockPoint": dm.BlockPoint(np.ones(3)),
    "Certificate": SOLUTION.certificate,
    "Chain": CHAIN,
    "ChainStage": CHAIN.stages[0],
    "CircularWorkload": dm.workloads.circular_ranges(4),
    "Decomposition": dm.decomposition(CELLS, COMMON),
    "Domain": dm.Domain({"age": 4, "sex": 2}),
    "Guarantee": CHAIN.guarantee,
    "LinearGaussianMechanism": CELLS,
    "LocalMechanism": LOCAL,
    "MarginalWorkload": TABLES,
    "ProductMechanism": dm.ProductMechanism([CELLS, ROWS]),
    "ProductWorkload": dm.workloads.kron(PREFIX, PREFIX),
    "RefinementStage": dm.RefinementStage(FITNESS, np.zeros((4, 0)), np.eye(4)),
    "Samples": SAMPLES,
    "SignalToNoise": dm.decisions.SignalToNoise(ROWS, CELLS, COMMON, 0.5, 2.0),
    "SignalToNoiseRule": dm.decisions.SignalToNoiseRule(CHAIN, 0.5, 2.0),
    "SplitMechanism": SPLIT,
    "TableWorkload": QUERIES,
    "UnionWorkload": UNION,
    "Workload": PREFIX,
    "ConfidenceRegion": REGION,
    "Relation": dm.neighbours.Relation(),
}

GOOD: dict[str, Any] = {
    "workload": PREFIX,
    "design": np.eye(4),
    "matrix": np.eye(4),
    "query_matrix": np.eye(4),
    "covariance": np.eye(4),
    "mechanism": CELLS,
    "mechanisms": [ROWS, CELLS],
    "common": COMMON,
    "known": CELLS,
    "other": CELLS,
    "others": (CELLS,),
    "strategy": np.eye(4),
    "problem": FITNESS,
    "program": dm.QueryWeighting(PREFIX, np.eye(4)),
    "primal": np.eye(4),
    "released": ROWS,
    "chain": CHAIN,
    "x": np.ones(4),
    "answer": [50.0],
    "answers": [3.0, 2.0, 5.0, 4.0],
    "targets": 1.0,
    "cost": 0.5,
    "epsilon": 1.2,
    "delta": 1e-6,
    "log_delta": -10.0,
    "privacy_cost": 0.7,
    "squared_cost": 0.7,
    "margin": 5.0,
    "variance": 5.0,
    "mu": 0.7,
    "rho": 0.5,
    "share": 0.5,
    "level": 2.0,
    "factor": 2.0,
    "rng": 1,
    "d": 4,
    "n": 4,
    "m": 3,
    "ages": 103,
    "rank": 2,
    "tables": 2,
    "attributes": 3,
    "members": 2,
    "groups": [[0, 1], [2, 3]],
    "subset": [0, 1],
    "bases": [1.0, 1.0, 0.0, 0.0],
    "domain": {"age": 4, "sex": 2},
    "queries": [0, 1],
    "ways": (1, 2),
    "factors": (PREFIX, CELLS),
    "workloads": (PREFIX, PREFIX),
    "gram": np.eye(4),
    "sizes": {"age": 4, "sex": 2},
    "axes": [(0,), (0, 1)],
    "differences": np.eye(4),
    "text": "replace:2",
    "t1": 5.0,
    "t2": 5.0,
    "numbers": (np.ones(4), np.ones(4)),
    "draws": SAMPLES.draws,
    "region": REGION,
    "samples": SAMPLES,
    "count": 50,
    "name": "x",
    "a": CELLS,
    "b": ROWS,
    "primary": ROWS,
    "secondary": CELLS,
    "objective": 2.0,
    "lower_bound": 1.0,
    "violation": 0.0,
    "resolution": 0.0,
    "profile": np.ones(4),
    "permutations": [[3, 2, 1, 0]],
    "source": [[0, 1], [1, 1]],
    "chosen": [(0,), (0, 1)],
    "distribution": np.ones(4),
    "prior": None,
    "backend": "CLARABEL",
    "tol": 1e-3,
    "path": FOLDER / "good.npz",
    "thing": CELLS,
    "slack": 1e-3,
    "rule": lambda stage, answers: np.full(len(answers), stage),
    "index": 1,
    "blocks": np.ones((3, 4)),
    "criterion": "average",
    "reconstruction": None,
    "settled": np.zeros((4, 0)),
    "open": np.eye(4),
    "noise": np.ones(3),
    "table": ["age"],
    "alpha": 5.0,
    "geometry": "auto",
}
"""Arguments that most functions with a parameter of this name take."""

OWN: dict[str, dict[str, Any]] = {
    "BlockMechanism": {
        "others": (BLOCKS,),
        "other": BLOCKS,
        "common": BLOCKS,
        "first": {"age": [1, 0, 0, 0]},
        "second": {"age": [1, 1, 0, 0]},
        "query": {"age": [1, 0, 0, 0]},
        "tables": COUNTED,
        "measured": BLOCKS.measure(COUNTED),
        "domain": dm.Domain({"age": 4, "sex": 2}),
        "noise": {(): 1.0, (0,): 1.0},
        "workload": TABLES,
        "blocks": MARGINAL.geometry,
        "point": MARGINAL_ANSWER.primal,
    },
    "BlockMechanism.combine": {"others": ((BLOCKS, BLOCKS.measure(COUNTED)),)},
    "BlockMechanism.of_tables": {"workload": TABLES},
    "BlockMechanism.load": {"path": FOLDER / "blocks.npz"},
    "BlockMechanism.save": {"path": FOLDER / "written.npz"},
    "BlockMechanism.variances": {"table": TABLES},
    "ChainStage": {"mechanism": 1},
    "CircularWorkload": {"bases": [[1.0, 1.0, 0.0, 0.0]]},
    "Decomposition": {"common_answers": np.ones(2), "residual_answers": np.ones(2), "rng": 1},
    "Domain": {"attributes": ["age"], "codes": {"age": 1, "sex": 1}},
    "LocalMechanism": {
        "x": [3.0, 4.0],
        "user": 1,
        "responses": [1.0, 2.0, 3.0],
        "queries": 2,
    },
    "LocalMechanism.load": {"path": FOLDER / "local.npz"},
    "MarginalWorkload": {"x": np.ones(8), "values": 1.0, "name": "targets", "domain": UNION.domain},
    "ProductMechanism": {
        "x": np.ones((4, 4)),
        "workload": dm.workloads.kron(PREFIX, dm.Workload(ROWS.query_matrix)),
        "factors": [CELLS, CELLS],
        "queries": (np.ones(4), np.ones(4)),
    },
    "ProductWorkload": {"factors": [PREFIX, PREFIX], "x": np.ones(16)},
    "RefinementStage": {"dual": SOLUTION.dual, "neighbour_shares": np.ones(4), "query_shares": np.ones(4)},
    "SignalToNoise": {"answers": [3.0, 4.0]},
    "SignalToNoiseRule": {"stage": 0, "answers": np.ones((3, 2))},
    "SplitMechanism": {
        "tables": COUNTED,
        "attributes": ["age"],
        "residuals": SPLIT.measure(COUNTED),
        "workload": QUERIES,
        "shapes": [np.eye(4), np.eye(2)],
        "noise": np.ones(4),
    },
    "TableWorkload": {"x": np.ones(8), "axes": [0], "axis": 0, "tables": TABLES},
    "UnionWorkload": {"x": np.ones(8), "values": 1.0, "name": "ages", "table": "ages", "domain": UNION.domain, "tables": UNION.tables},
    "UnionWorkload.per_table": {"name": "targets"},
    "LinearGaussianMechanism.save": {"path": FOLDER / "written.npz"},
    "Orbits.of": {"permutations": [[0, 1, 2, 3]]},
    "crosscheck.compare": {"answers": [SOLUTION]},
    "census.per_table": {"workload": dm.workloads.census_redistricting(), "numbers": {f"P{number}": 1.0 for number in range(1, 6)}},
    "compare_privacy": {"tol": 1e-9},
    "extra_for_free": {"mechanism": ROWS, "workload": dm.Workload([[1, 1, 0, 0]]), "alpha": 4.0},
    "files.read_by_name": {"path": FOLDER / "named.csv"},
    "files.read_matrix": {"path": FOLDER / "matrix.csv"},
    "files.read_vector": {"path": FOLDER / "vector.csv"},
    "files.read_workload": {"path": FOLDER / "prefix.csv"},
    "files.write_workload": {"path": FOLDER / "written.csv"},
    "records.count": {"workload": TABLES},
    "records.marginal_of": {"domain": UNION.domain, "tables": COUNTED, "axes": (0,)},
    "reference.lower_bound": {"problem": dm.LocalStrategy(dm.workloads.prefix(2), 1.0), "time_limit": 5.0},
    "reference.reconstruct": {"workload": dm.workloads.prefix(2), "strategy": STRATEGY},
    "uncertainty.variance_reduction": {"known": COMMON, "prior": 1.0},
    "uncertainty.posterior_variances": {"prior": 1.0},
    "workloads.circular": {"bases": [[1.0, 1.0, 0.0, 0.0]]},
    "workloads.kron": {"factors": (PREFIX, PREFIX)},
    "workloads.marginals": {"ways": 1},
    "workloads.marginals_gram": {"ways": 1},
    "workloads.query_tables": {"ways": 1, "queries": {"age": PREFIX}},
    "workloads.range_marginals": {"ways": 1},
    "workloads.range_marginals_gram": {"ways": 1},
    "workloads.union": {"tables": {"ages": {"age": PREFIX}, "cells": ["age", "sex"]}},
    "workloads.circular_ranges": {"lengths": [1, 2]},
    "workloads.random_range": {"d": 6},
    "TableWorkload.__init__": {"queries": [PREFIX, None]},
    "LocalMechanism.__init__": {"strategy": STRATEGY, "workload": dm.workloads.prefix(2)},
    "LocalProjection": {"matrix": STRATEGY, "epsilon": 1.0},
    "fast.solve": {"max_iterations": 3, "method": "auto", "start": None, "orbits": None},
    "fast.eigen_design": {"tol": 1e-3, "bound_tol": 1e-3},
    "reference.solve": {"formulation": "schur", "backend": "CLARABEL", "tol": 1e-3},
}
"""Arguments of single functions, or of all methods of an object."""

NOISE = ("covariance", "levels", "shapes", "strategy", "weights", "estimate", "point", "mechanism", "query_matrix")
CALLED = {
    "primal": ("primal", *NOISE),
    "answer": ("answer", "primal", *NOISE),
    "dual": ("dual", "neighbour_weights", "query_weights"),
    "point": ("point", "primal", *NOISE),
    "bases": ("bases", "basis"),
    "codes": ("code", "age", "sex"),
    "sizes": ("sizes", "domain"),
    "matrix": ("matrix", "workload"),
    "source": ("source", "record"),
    "permutations": ("permutations", "orbits"),
    "table": ("table", "attribute", "workload"),
    "values": ("values", "targets"),
    "name": ("name", "table"),
    "d": ("d", "domain"),
    "attributes": ("attribute", "workload"),
    "first": ("first", "attribute"),
    "second": ("second", "attribute"),
    "query": ("query", "attribute"),
    "text": ("text", "neighbours"),
    "axes": ("axes", "axis"),
}
"""What a message may call an argument beside its name: what it holds."""


def words(name: str) -> tuple[str, ...]:
    """Return what a message may call an argument: its name, in the singular or the plural."""
    return CALLED.get(name, (name.removesuffix("s"),))


def arguments_of(place: str, function: Any) -> dict[str, Any]:
    """Return arguments that a public function takes: its own, those of its object, those by name, defaults."""
    label, _, _ = place.rpartition(".")
    own = OWN.get(label or place, {}) | OWN.get(f"{place}.__init__" if inspect.isclass(function) else place, {})
    found: dict[str, Any] = {}
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        parameters = []
    for each in parameters:
        if each.name in own:
            found[each.name] = own[each.name]
        elif each.default is not inspect.Parameter.empty:
            found[each.name] = each.default
        elif each.name in GOOD:
            found[each.name] = GOOD[each.name]
    for name in own.get("options", ()):
        found[name] = own["options"][name]
    return found


def on_a_release(name: str) -> Any:
    """Return a method of a release that has only begun."""
    method = getattr(dm.AdaptiveRelease, name)

    def called(*given: Any, **named: Any) -> Any:
        release = dm.AdaptiveRelease(CHAIN, np.ones(4))
        if name == "choose":
            release.advance()
        return method(release, *given, **named)

    own = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    called.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return called


def of_problem(case: ConformanceCase) -> list[Call]:
    """Return what can be asked of a problem, its solution and its solvers."""
    problem = case.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = dm.fast.solve(problem, tol=case.tol)
    taken = {"primal": answer.primal, "dual": answer.dual, "slack": 1e-3, "answer": answer.primal, "other": problem}
    taken |= {"mechanism": CELLS, "tol": 1e-3, "cost": 1.0, "bases": []}
    found = []
    label = f"<{case.label}>"
    for place, function in hostile.public_methods(label, problem):
        if exempt(place):
            continue
        found.append(Call(place, function, {name: taken[name] for name in inspect.signature(function).parameters}))
    own = inspect.signature(dm.fast.SOLVERS[type(problem)]).parameters.values()
    options = {each.name: each.default for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY}
    arguments = {"problem": problem, "tol": case.tol, "max_iterations": 3, "time_limit": 5.0, "callback": None, "verbose": False}
    found.append(Call(f"fast.solve{label}", dm.fast.solve, arguments | options))
    found.append(Call(f"crosscheck.judge{label}", dm.crosscheck.judge, {"problem": problem, "primal": answer.primal, "tol": case.tol}))
    stated = {"problem": problem, "formulation": None, "backend": "CLARABEL", "tol": 1e-2, "verbose": False}
    found.append(Call(f"reference.solve{label}", dm.reference.solve, stated))
    return found


EXEMPT = {
    # The library's own objects ask these of one another, with what they made themselves.
    *("along", "chords", "point_on", "restored", "spread", "stored", "with_bases"),
    # What readers and writers are made of.
    *("files.as_text_array", "files.atomic_folder", "files.atomic_write", "files.check_writable"),
    *("files.errors_naming", "files.read_archive", "files.read_npz", "files.require", "files.write_npz"),
    *("files.workload_arrays", "files.workload_from_arrays"),
}


def exempt(place: str) -> bool:
    return place in EXEMPT or place.rpartition(".")[2] in EXEMPT


@cache
def calls() -> list[Call]:
    places: list[tuple[str, Any]] = [(f"AdaptiveRelease.{name}", on_a_release(name)) for name in ("choose", "run")]
    for prefix, module in MODULES.items():
        places += hostile.public_functions(module, prefix)
    for label, instance in INSTANCES.items():
        places += hostile.public_methods(label, instance)
    return [Call(place, function, arguments_of(place, function)) for place, function in places if not exempt(place)]
