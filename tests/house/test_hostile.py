"""Hostile arguments at every public name: an answer or a typed error that names the argument, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import hostile
import numpy as np
import pytest
from conformance import ConformanceCase
from hostile import Call, fault_of

import dualmech as dm
from dualmech import validate
from dualmech.publishing.release import plan
from dualmech.storage import store
from dualmech.watching import without_warnings

VALUES = {**hostile.VALUES, **hostile.FOREIGN}
SAMPLED = 3
"""Values that a test run tries for each argument, others for each; `make test-slow` tries all."""

SUBJECTS = ("functions", "methods", "solvers", *store.problem_classes())
"""What is called, in parts that workers share: functions, methods, the reference layer, problems of each family."""

SUBMODULES = (
    *("accounting", "census", "crosscheck", "decisions", "designs", "duals", "fast", "files", "neighbours"),
    *("records", "reference", "results", "sampling", "strategies", "uncertainty", "workloads"),
)

EXEMPT = {
    # The library's own objects ask these of one another, with what they made themselves.
    "Solution",  # which judges alone make
    "write",  # of a publication: any text is a folder that it makes
    *("blocks_by_view", "class_basis", "counts_by_class", "extents", "over_all_classes", "places", "with_pieces"),
    *("along", "chords", "point_on", "restored", "spread", "stored", "with_bases"),
    # What readers and writers are made of.
    *("files.as_text_array", "files.atomic_folder", "files.atomic_write", "files.check_writable"),
    *("files.errors_naming", "files.read_archive", "files.read_npz", "files.require", "files.write_npz"),
    *("files.workload_arrays", "files.workload_from_arrays"),
}

ASKED_IN_JSON = '{"attributes": {"age": {"size": 4}}, "tables": [{"name": "ages", "ask": ["age"], "variance": 4}]}'

NOISE = ("covariance", "levels", "shapes", "strategy", "weights", "estimate", "mechanism", "query_matrix")
CALLED = {
    "primal": ("primal", "point", *NOISE),
    "answer": ("answer", "primal", "point", *NOISE),
    "point": ("point", "primal", *NOISE),
    "dual": ("dual", "neighbour_weights", "query_weights"),
    "method": ("method", "primal", *NOISE),
    "bases": ("bases", "basis"),
    "codes": ("code", "age", "sex"),
    "sizes": ("sizes", "domain"),
    "matrix": ("matrix", "workload"),
    "source": ("source", "record"),
    "permutations": ("permutations", "orbits"),
    "table": ("table", "attribute", "workload"),
    "values": ("values", "targets"),
    "name": ("name", "table"),
    "d": ("d", "domain", "cells", "steps"),
    "attributes": ("attribute", "workload", "name"),
    "given": ("given", "specification"),
    "basis": ("basis", "strategy"),
    "first": ("first", "attribute"),
    "second": ("second", "attribute"),
    "query": ("query", "attribute"),
    "text": ("text", "neighbours"),
    "axes": ("axes", "axis"),
    "queries": ("querie", "attribute", "workload"),
}
"""What messages call an argument, where it is not its parameter's name alone: what it holds, or stands for."""


FUNCTIONS = {"callback", "measure", "method", "rule", "sampler"}
"""Arguments that are called: what a class says of what it is given is its own."""


def words(name: str) -> tuple[str, ...]:
    return CALLED.get(name, (name.removesuffix("s"),))


class World:
    """Arguments that public functions take, and an object of every public class with methods."""

    def __init__(self, folder: Path, problems: dict[str, Any] | None = None) -> None:
        self.problems = problems or {}  # one of each class, by its name
        self.prefix = prefix = dm.workloads.prefix(4)
        self.tables = dm.workloads.marginals({"age": 4, "sex": 2}, ways=(1, 2))
        self.union = dm.workloads.union({"age": 4, "sex": 2}, {"ages": {"age": prefix}, "cells": ["age", "sex"]})
        self.asked = dm.workloads.query_tables({"age": 4, "sex": 2}, {"age": prefix}, ways=(1, 2))
        self.rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
        self.cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
        self.chain = dm.fast.chain([self.rows, self.cells])
        self.common = dm.fast.solve(dm.CommonMechanism([self.rows, self.cells])).mechanism
        total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
        self.region = dm.sampling.ConfidenceRegion(total, [50.0])
        self.samples = dm.sampling.hit_and_run(self.region, 2000, rng=0)
        self.counted = {(0,): np.ones(4), (1,): np.ones(2), (0, 1): np.ones((4, 2))}
        self.strategy = np.array([[0.6, 0.2], [0.2, 0.6], [0.2, 0.2]])
        self.local = dm.LocalMechanism(self.strategy, 1.2, dm.workloads.prefix(2))
        self.problem = dm.FitnessForUse(prefix)
        self.solution = dm.fast.solve(self.problem, tol=1e-4)
        self.on_blocks = dm.fast.solve(dm.FitnessForUse(self.tables, geometry="blocks"), tol=1e-4)
        self.blocks = dm.BlockMechanism.of_tables(self.tables)
        self.split = dm.fast.solve(dm.FitnessForUse(self.asked, geometry="split"), tol=0.1).mechanism
        self.stream = dm.StreamMechanism(prefix, np.ones(4), np.ones(4))
        self.causal = dm.strategies.toeplitz([1.0, 0.5], 4)
        self.folder = folder
        dm.save(self.cells, folder / "good.npz")
        dm.save_publication(self.publication(), folder / "publication.npz")
        dm.save(self.blocks, folder / "blocks.npz")
        dm.save(self.local, folder / "local.npz")
        dm.save(prefix, folder / "prefix.csv")
        (folder / "vector.csv").write_text("1\n2\n")
        (folder / "matrix.csv").write_text("1,2\n2,3\n")
        (folder / "named.csv").write_text("name,value\na,1\nb,2\n")
        (folder / "schema.toml").write_text("[age]\nsize = 4\n")
        (folder / "asked.toml").write_text("[attributes.age]\nsize = 4\n[[tables]]\nask = ['age']\nvariance = 1\n")
        self.proof = dm.prove(self.solution)
        self.proof.save(folder / "proof.json")
        self.good, self.own = self.by_name(), self.by_place()

    def objects(self) -> dict[str, Any]:
        """Return an object of every public class, problems aside."""
        return {
            "BlockMechanism": self.blocks,
            "BlockMechanism<union>": dm.BlockMechanism.of_tables(self.union),
            "BlockPoint": dm.duals.BlockPoint(np.ones(3)),
            "CausalMechanism": self.causal,
            "EpochsMechanism": dm.EpochsMechanism(self.cells, "participation:2:2"),
            "Participation": dm.neighbours.Participation(2, 2, "signs"),
            "Certificate": self.solution.certificate,
            "ClassOptimum": dm.fast.strategy(self.problem, "banded:2", bound=self.solution),
            "Chain": self.chain,
            "ChainStage": self.chain.stages[0],
            "CircularWorkload": dm.workloads.circular_ranges(4),
            "ConfidenceRegion": self.region,
            "Decomposition": dm.decomposition(self.cells, self.common),
            "Domain": self.union.domain,
            "ExactOptimum": dm.exact(dm.FitnessForUse(dm.workloads.prefix(3))),
            "Guarantee": self.chain.guarantee,
            "LinearGaussianMechanism": self.cells,
            "LocalMechanism": self.local,
            "LocalRandomiser": dm.LocalRandomiser(self.local),
            "MarginalWorkload": self.tables,
            "ProductMechanism": dm.ProductMechanism([self.cells, self.rows]),
            "ProductWorkload": dm.workloads.kron(self.prefix, self.prefix),
            "Publication": self.publication(),
            "Publication<tables>": self.publication(tables=True),
            "RefinementStage": dm.results.RefinementStage(self.problem, np.zeros((4, 0)), np.eye(4)),
            "Proof": self.proof,
            "Relation": dm.neighbours.Relation(),
            "ReleasePlan": dm.plan_release(self.cells, workload=self.prefix),
            "Samples": self.samples,
            "SignalToNoise": dm.decisions.SignalToNoise(self.rows, self.cells, self.common, 0.5, 2.0),
            "SignalToNoiseRule": dm.decisions.SignalToNoiseRule(self.chain, 0.5, 2.0),
            "Solution": self.solution,
            "SplitMechanism": self.split,
            "StepNoise": self.causal.noise(3, rng=1),
            "StreamMechanism": self.stream,
            "StreamMechanism<ranges>": dm.StreamMechanism(dm.workloads.all_range(4), np.ones(4), np.ones(4)),
            "RangeWorkload": dm.workloads.all_range(4),
            "SineWorkload": dm.workloads.sines(4),
            "StreamWorkload": self.prefix,
            "TableWorkload": self.asked,
            "UnionWorkload": self.union,
            "Workload": dm.workloads.identity(4),
        }

    def publication(self, tables: bool = False, noise: int = 0) -> dm.Publication:
        """Return what a release would publish, without any noise, or with the same number for it everywhere."""
        drawn, asked = plan(self.blocks, self.tables) if tables else plan(self.cells, self.prefix)
        data: Any = self.counted if tables else np.ones(4)
        return dm.Publication(
            drawn, drawn.draw(data, lambda deviation, count: np.full(count, noise, dtype=object)), asked
        )

    def by_name(self) -> dict[str, Any]:
        """Return arguments that most functions with a parameter of a name take."""
        return {
            **{"workload": self.prefix, "workloads": (self.prefix, self.prefix), "design": np.eye(4)},
            **{"problem": self.problem, "program": dm.QueryWeighting(self.prefix, np.eye(4))},
            **{"primal": np.eye(4), "slack": 1e-3, "targets": 1.0, "cost": 0.5, "tol": 1e-3},
            **{"mechanism": self.cells, "mechanisms": [self.rows, self.cells], "released": self.rows},
            **{"common": self.common, "known": self.cells, "other": self.cells, "others": (self.cells,)},
            **{"a": self.cells, "b": self.rows, "primary": self.rows, "secondary": self.cells},
            **{"query_matrix": np.eye(4), "covariance": np.eye(4), "matrix": np.eye(4), "gram": np.eye(4)},
            **{"strategy": np.eye(4), "criterion": "average", "fixed": np.zeros((4, 0)), "open": np.eye(4)},
            **{"x": np.ones(4), "answer": [50.0], "answers": [3.0, 2.0, 5.0, 4.0], "rng": 1},
            **{"epsilon": 1.2, "delta": 1e-6, "log_delta": -10.0, "rho": 0.5, "mu": 0.7, "alpha": 5.0},
            **{"privacy_cost": 0.7, "squared_cost": 0.7, "margin": 5.0, "variance": 5.0, "factor": 2.0},
            **{"share": 0.5, "level": 2.0, "d": 4, "n": 4, "m": 3, "rank": 2, "tables": 2, "attributes": 3},
            **{"groups": [[0, 1], [2, 3]], "subset": [0, 1], "bases": [[1.0, 1.0, 0.0, 0.0]], "members": 2},
            **{"domain": {"age": 4, "sex": 2}, "sizes": {"age": 4, "sex": 2}, "queries": [0, 1], "ways": 1},
            **{"factors": (self.prefix, self.prefix), "axes": [(0,), (0, 1)], "numbers": (np.ones(4),)},
            **{"differences": np.eye(4), "text": "replace:2", "t1": 5.0, "t2": 5.0, "region": self.region},
            **{"draws": self.samples.draws, "samples": self.samples, "count": 50, "chain": self.chain},
            **{"objective": 2.0, "lower_bound": 1.0, "violation": 0.0, "resolution": 0.0, "name": "x"},
            **{"source": [[0, 1], [1, 1]], "path": self.folder / "good.npz", "thing": self.cells, "index": 1},
            **{"rule": lambda stage, answers: np.full(len(answers), stage), "blocks": np.ones((3, 4))},
            **{"steps": 4, "decay": 0.9, "times": 2, "separation": 2, "at_least": True, "least": 0.0, "after": None},
            **{"dimension": 3, "state": self.causal.noise(3, rng=0).state},
            **{"table": ["age"], "permutations": [[0, 1, 2, 3]], "profile": np.ones(4)},
        }

    def by_place(self) -> dict[str, dict[str, Any]]:
        """Return arguments of single functions, or of an object's methods and its class."""
        two, written, measured = (
            dm.workloads.prefix(2),
            self.folder / "written.npz",
            self.blocks.measure(self.counted),
        )
        half, union = {"age": [1, 0, 0, 0]}, self.union
        chosen = {"domain": union.domain, "x": np.ones(8), "values": 1.0, "name": "targets"}
        return {
            "BlockMechanism": {
                **{"others": (self.blocks,), "other": self.blocks, "common": self.blocks},
                **{
                    "first": half,
                    "second": half,
                    "query": half,
                    "tables": self.counted,
                    "measured": measured,
                    "parts": [(self.blocks, measured)],
                },
                **{"domain": union.domain, "noise": {(): 1.0, (0,): 1.0}, "path": written},
                **{"blocks": self.on_blocks.problem.geometry, "point": self.on_blocks.primal},
            },
            "BlockMechanism<union>": {
                **{"others": (self.blocks,), "other": self.blocks, "common": self.blocks, "first": half},
                **{"second": half, "query": half, "tables": self.counted, "table": "ages", "path": written},
                **{"measured": dm.BlockMechanism.of_tables(union).measure(self.counted)},
                **{"parts": [(plain := dm.BlockMechanism.of_tables(union), plain.measure(self.counted))]},
            },
            "BlockMechanism<union>.combine": {"others": ((self.blocks, measured),)},
            "BlockMechanism.combine": {"others": ((self.blocks, measured),)},
            "BlockMechanism.as_targets": {"workload": self.tables},
            "BlockMechanism<union>.as_targets": {"workload": union},
            "crosscheck.curve": {"answer": self.solution, "rhos": [0.5], "epsilons": None},
            "crosscheck.waste": {"mechanism": self.cells, "workload": self.prefix, "rho": None},
            "BlockMechanism.of_tables": {"workload": self.tables},
            "Chain": {"stages": self.chain.stages},
            "CommonMechanism": {
                "criterion": "volume",
                "basis": np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]),
                "decisions": None,
            },
            "ChainStage": {"mechanism": 1},
            "Decomposition": {"common_answers": np.ones(2), "residual_answers": np.ones(2), "rng": 1},
            "Domain": {
                **{"axis": 0, "attributes": ["age"], "codes": {"age": 1, "sex": 1}},
                **{"ask": "values", "alone": False, "domains": [union.domain]},
            },
            **{
                f"{kind}.save": {"path": written}
                for kind in (
                    *("LinearGaussianMechanism", "ProductMechanism", "SplitMechanism", "CausalMechanism"),
                    *("StreamMechanism", "StreamMechanism<ranges>", "Guarantee"),
                )
            },
            "Publication": {
                **{"table": "prefixes", "folder": self.folder / "tables", "queries": self.prefix},
                **{"source": np.ones(4)},
            },
            "Publication<tables>": {
                **{"table": "age", "folder": self.folder / "others", "queries": half, "source": np.ones(4)}
            },
            "ReleasePlan": {"table": "prefixes", "source": np.ones(4)},
            **{
                f"{kind}.{method}": {"records": np.ones(4)}
                for kind in ("ReleasePlan", "Publication", "Publication<tables>")
                for method in ("draw", "draw_new")
            },
            **{
                f"{kind}.joined": {"publication": self.publication()}
                for kind in ("ReleasePlan", "Publication", "Publication<tables>")
            },
            **{f"{kind}.derived": {"kind": "share"} for kind in ("Publication", "Publication<tables>")},
            "ReleasePlan.__init__": {"drawn": plan(self.cells, self.prefix)[0], "answer": None},
            "Publication.__init__": {"drawn": plan(self.cells, self.prefix)[0], "measured": np.ones(4)},
            "release": {"records": np.ones(4), "workload": self.prefix},
            "plan_release": {"workload": self.prefix},
            "combine": {
                **{"first": self.publication(), "second": self.publication(noise=1)},
                **{"others": (self.publication(noise=2),)},
            },
            "save_publication": {"released": self.publication(), "path": written},
            "load_publication": {"path": self.folder / "publication.npz"},
            "Schema": {"axis": 0, "attributes": {"age": 4, "sex": ["f", "m"]}, "domains": [union.domain]},
            "Schema.of_json": {"text": '{"age": {"size": 4}}'},
            "Schema.axes": {"attributes": ["age"]},
            "Specification.of": {"given": {"attributes": {"age": 4}, "tables": [{"ask": ["age"], "variance": 1.0}]}},
            "Specification.of_json": {"text": ASKED_IN_JSON},
            "accounting.normal_quantile": {"level": 0.9},
            "PrivacyFirst": {"cost": 0.5, "rho": None},
            "accounting.cost_or_rho": {"cost": 0.5, "rho": None},
            "accounting.level_of": {"quantile": 2.0},
            "Specification.read": {"path": self.folder / "asked.toml"},
            "Schema.read": {"path": self.folder / "schema.toml"},
            "LocalMechanism": {"x": [3.0, 4.0], "user": 1, "responses": np.ones(3), "queries": 2, "path": written},
            "LocalMechanism.__init__": {"strategy": self.strategy, "workload": two},
            "LocalProjection": {"matrix": self.strategy, "epsilon": 1.0},
            "MarginalWorkload": chosen,
            "ProductMechanism": {
                **{
                    "x": np.ones((4, 4)),
                    "workload": dm.workloads.kron(self.prefix, dm.Workload(self.rows.query_matrix)),
                },
                **{"factors": [self.cells, self.cells], "queries": (np.ones(4), np.ones(4))},
            },
            "ProductWorkload": {"x": np.ones(16)},
            "RefinementStage": {"dual": self.solution.dual},
            "SignalToNoise": {"answers": [3.0, 4.0]},
            "SignalToNoiseRule": {"stage": 0, "answers": np.ones((3, 2))},
            "Solution": {"path": written, "other": self.solution},
            "prices_in_words": {"answer": self.solution},
            **dict.fromkeys(
                ("Relation", "Contributions", "ReplaceWithin"),
                {"other": dm.neighbours.Relation(), "queries": self.prefix, "attribute": "age", "size": 4},
            ),
            "SplitMechanism": {
                **{"tables": self.counted, "attributes": ["age"], "residuals": self.split.measure(self.counted)},
                **{"workload": self.asked, "shapes": [np.eye(4), np.eye(2)], "noise": np.ones(4)},
            },
            "CausalMechanism": {"strategy": self.causal._strategy},
            "StreamMechanism": {"neighbour_weights": np.ones(4), "query_weights": np.ones(4)},
            "EpochsMechanism": {"steps": self.cells, "neighbours": "participation:2:2"},
            "EpochsMechanism.save": {"path": written},
            "Participation": {
                **{"n": 4, "other": dm.neighbours.Relation(), "queries": self.prefix, "attribute": "age", "size": 4}
            },
            "Participation.matrix": {"d": 4},
            "neighbours.Participation": {"times": 2, "separation": 2, "parts": "signs", "at_least": True},
            "neighbours.participation": {"n": 4, "times": 2, "separation": 2, "of": "signs", "at_least": True},
            "neighbours.Contributions": {"members": 2, "attribute": "age", "groups": 2},
            "neighbours.ReplaceWithin": {"members": 2, "attribute": "age"},
            "fast.strategy": {"within": "banded:2", "bound": self.solution},
            "neighbours.contributions": {"groups": [0, 0, 1, 1], "records": 2, "most": 2},
            "LocalRandomiser": {"mechanism": self.local, "users": [0, 1, 1], "user": 1, "reports": [0, 2]},
            "neighbours.sign_patterns": {"n": 4, "signs": [[1.0, -1.0]]},
            "strategies.banded": {"bands": [[1.0, 1.0], [0.5, 0.0]]},
            "strategies.buffered": {"scales": [0.5], "decays": [0.5]},
            "strategies.scaled_toeplitz": {
                **{"coefficients": [1.0, 0.5], "rows": [1.0, 1.0, 2.0], "scales": [1.0], "decays": [0.9]}
            },
            "strategies.toeplitz": {"coefficients": [1.0, 0.5]},
            "TableWorkload": {"x": np.ones(8), "axes": [0], "axis": 0, "tables": self.tables},
            "TableWorkload.__init__": {"queries": [self.prefix, None]},
            "UnionWorkload": chosen | {"table": "ages", "tables": union.tables},
            "UnionWorkload.table": {"name": "ages"},
            "census.per_table": {
                **{"workload": dm.workloads.census_redistricting()},
                **{"numbers": {f"P{number}": 1.0 for number in range(1, 6)}},
            },
            "crosscheck.capped": {
                **{"workload": self.union, "targets": {"ages": 1.0}, "caps": {"cells": 4.0}, "cost": 2.0}
            },
            "crosscheck.compare": {"answers": [self.solution]},
            "exact": {"problem": dm.FitnessForUse(dm.workloads.prefix(3))},
            "extra_for_free": {"mechanism": self.rows, "workload": dm.Workload([[1, 1, 0, 0]]), "alpha": 4.0},
            **{f"fast.Softmax{kind}.of_published_code": {"basis": np.eye(4)} for kind in ("Newton", "Gradient")},
            "fast.register": {"name": "mine", "method": print, "problems": dm.FitnessForUse},
            "fast.eigen_design": {"bound_tol": 1e-3, "tol": 1e-3},
            "files.check_new_folder": {"path": self.folder / "new"},
            "files.read_by_name": {"path": self.folder / "named.csv"},
            "files.read_matrix": {"path": self.folder / "matrix.csv"},
            "files.read_vector": {"path": self.folder / "vector.csv"},
            "files.read_workload": {"path": self.folder / "prefix.csv"},
            "files.write_workload": {"path": self.folder / "written.csv"},
            "prove": {"answer": self.solution},
            "verify": {"path": self.folder / "proof.json"},
            "Proof": {"path": self.folder / "written.json"},
            "records.count": {"workload": self.tables},
            "records.Records": {"source": [[0, 0]], "count": None, "ignore": (), "persons": None, "report": print},
            "records.Bound": {"person": "tailnum", "at_most": 3, "per": "", "check": False, "groups": None},
            "records.tables": {"frames": [], "domain": dm.Schema({"age": 4, "sex": 2})},
            "reference.latex": {"formulation": "schur"},
            "reference.lower_bound": {"problem": dm.LocalStrategy(two, 1.0), "time_limit": 5.0},
            "reference.reconstruct": {"workload": two, "strategy": self.strategy},
            "ConfidenceRegion.__init__": {"mechanism": self.rows, "answer": [50.0, 60.0]},
            "sampling.hit_and_run": {"thin": 8, "burn_in": 5},
            "uncertainty.posterior_variances": {"prior": 1.0},
            "uncertainty.variance_reduction": {"known": self.common, "prior": 1.0},
            "workloads": {"ways": 1},
            "workloads.circular_ranges": {"lengths": [1, 2]},
            "workloads.query_tables": {"queries": {"age": self.prefix}},
            "workloads.random_range": {"d": 6},
            "workloads.union": {"tables": {"ages": half | {"age": self.prefix}}},
        }

    def arguments(self, place: str, function: Any) -> dict[str, Any]:
        """Return arguments that a public function takes: its own, its object's, defaults, those by name."""
        label = f"{place}.__init__" if inspect.isclass(function) else place
        room, _, short = label.partition(".")  # a class takes the same wherever it is offered
        labels = (label, short) if room in SUBMODULES and short[:1].isupper() else (label,)
        own: dict[str, Any] = {}
        for name in labels:
            own |= self.own.get(name.rpartition(".")[0], {}) | self.own.get(name, {})
        found = {}
        for each in hostile.parameters_of(function).values():
            default = self.good if each.default is inspect.Parameter.empty else {each.name: each.default}
            known = own if each.name in own else default
            if each.name not in known and place in self.problems:
                known = {name: getattr(self.problems[place], name) for name in self.problems[place].arguments}
            if each.name in known:
                found[each.name] = known[each.name]
            elif each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                raise AssertionError(f"{place} takes {each.name}: give {LISTS} a value for it")
        extra = {name: own[name] for name in own if place.startswith("fast.solve") and name not in found}
        return found | extra

    def calls(self, subject: str) -> list[Call]:
        """Return every public function, or every public method, but for those of problems."""
        places: list[tuple[str, Any]] = []
        if subject == "functions":
            places += hostile.public_functions(dm, "")
            for name in SUBMODULES:
                places += hostile.public_functions(getattr(dm, name), f"{name}.")
        else:
            for label, instance in self.objects().items():
                places += hostile.public_methods(label, instance)
        return [Call(place, function, self.arguments(place, function)) for place, function in places if asked(place)]


LISTS = "by_name or by_place of tests/house/test_hostile.py"


def asked(place: str) -> bool:
    return place not in EXEMPT and place.rpartition(".")[2] not in EXEMPT


def of_problem(case: ConformanceCase) -> list[Call]:
    """Return what can be asked of a problem, of its solvers and of the judge."""
    problem, label = case.make(), f"<{case.label}>"
    answer = dm.fast.solve(problem, tol=case.tol)
    taken = {"primal": answer.primal, "answer": answer.primal, "dual": answer.dual, "other": problem}
    taken |= {
        "slack": 1e-3,
        "tol": 1e-3,
        "cost": 1.0,
        "least": 0.0,
        "geometry": "dense",
        "mechanism": dm.LinearGaussianMechanism(np.eye(4), np.eye(4)),
        **case.arguments,
    }
    methods = [each for each in hostile.public_methods(label, problem) if asked(each[0])]
    for place, method in methods:
        for name in sorted({*hostile.parameters_of(method)} - {*taken}):
            raise AssertionError(
                f"{place} takes {name}: give ConformanceCase({case.label!r}) arguments={{{name!r}: …}}"
            )
    found = [
        Call(place, method, {name: taken[name] for name in hostile.parameters_of(method)}) for place, method in methods
    ]
    tol = {"tol": case.tol}
    options = {"method": "auto", "start": None, "orbits": None}
    limits = tol | {"max_iterations": 3, "time_limit": 5.0, "callback": None, "verbose": False}
    made = {name: problem.argument_values()[name] for name in problem.arguments}
    made |= {"geometry": problem.geometry.name} if "geometry" in hostile.parameters_of(type(problem)) else {}
    return [
        *found,
        Call(f"{type(problem).__name__}{label}", type(problem), made),
        Call(f"fast.solve{label}", dm.fast.solve, {"problem": problem, **limits, **options}),
        Call(f"crosscheck.judge{label}", dm.crosscheck.judge, {"problem": problem, "primal": answer.primal, **tol}),
        Call(
            f"judged{label}",
            dm.judged,
            {"problem": problem, "primal": answer.primal, "dual": answer.dual, "solver": "mine", **tol},
        ),
    ]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the values are names of files, which are written where a test runs."""
    monkeypatch.chdir(tmp_path)


def subject_id(subject: str) -> str:
    """Return a subject's name in tests; that of a problem begins with its family, which `make check` asks for."""
    kind = store.problem_class(subject)
    return subject if kind is None else f"{kind.__module__.split('.')[2]}, {subject}"


@pytest.fixture(scope="module", params=SUBJECTS, ids=subject_id)
def calls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cases: list[ConformanceCase]
) -> list[Call]:
    if request.param in ("functions", "methods"):
        problems = {type(case.make()).__name__: case.make() for case in reversed(cases)}
        return World(tmp_path_factory.mktemp("hostile"), problems).calls(request.param)
    if request.param == "solvers":
        stated = {"formulation": None, "backend": "CLARABEL", "tol": 1e-2, "verbose": False}
        problems = {type(case.make()).__name__: case.make() for case in cases if "split" not in case.label}
        return [
            Call(f"reference.solve<{kind}>", dm.reference.solve, {"problem": problem, **stated})
            for kind, problem in problems.items()
        ]
    return [call for case in cases if type(case.make()).__name__ == request.param for call in of_problem(case)]


def sampled(call: Call, arguments: list[str], count: int) -> Iterator[dict[str, Any]]:
    """Yield hostile values for some arguments at once: other ones for every call, the same in every run."""
    labels = [*VALUES]
    start = crc32(f"{call.place}{arguments}".encode())
    for turn in range(count):
        yield {name: VALUES[labels[(start + 29 * turn + 7 * at) % len(labels)]]() for at, name in enumerate(arguments)}


def faults(calls: list[Call], count: int) -> list[str]:
    found = []
    for call in calls:
        spoilt = [[name] for name in call.arguments] + ([[*call.arguments][:2]] if len(call.arguments) > 1 else [])
        for names in spoilt:
            for values in sampled(call, names, count):
                if any(name in FUNCTIONS and inspect.isclass(value) for name, value in values.items()):
                    continue
                if fault := fault_of(call, values, words):
                    shown = ", ".join(f"{name}={validate.shown(value)}" for name, value in values.items())
                    found.append(f"{call.place}({shown}): {fault}")
    return found


def test_every_public_function_is_called(calls: list[Call]) -> None:
    for call in calls:
        with without_warnings():
            try:
                call({})
            except dm.errors.DualmechError as error:
                assert "<" in call.place or "has no" in str(error), f"{call.place}: {error}"


def test_hostile_arguments_are_refused_by_name(calls: list[Call]) -> None:
    assert not (found := faults(calls, SAMPLED)), "\n".join(found)


WRONG = {
    "bool": (2, 1, "no", None, np.array([True]), []),
    "float": (True, "1", [1.0], np.array([1.0]), 1j),
    "int": (True, "1", [1], 1.5, 1j),
}
"""What is no boolean, number or count, whatever it could be taken for."""


def test_booleans_numbers_and_counts_are_what_they_say(calls: list[Call]) -> None:
    taken = []
    for call in calls:
        for name, parameter in hostile.parameters_of(call.function).items():
            kinds = {each.strip() for each in str(parameter.annotation).split("|")}
            values = WRONG.get(min(kinds - {"None"}, default=""), ()) if len(kinds - {"None"}) == 1 else ()
            for value in values if name in call.arguments else ():
                if value is None and "None" in kinds:
                    continue
                try:
                    call({name: value})
                except dm.errors.DualmechError:
                    continue
                taken.append(f"{call.place}({name}={value!r})")
    assert not taken, "\n".join(taken)


def test_tolerances_are_finite_and_positive(calls: list[Call]) -> None:
    taken = []
    exact = ("compare_privacy", "Certificate.certifies")  # where 0 asks for what is exactly so
    for call in calls:
        for name in [each for each in call.arguments if each == "tol" or each.endswith("_tol")]:
            for value in (-1.0, np.nan, np.inf, *(() if call.place in exact else (0.0,))):
                try:
                    call({name: value})
                except dm.errors.InvalidInputError:
                    continue
                taken.append(f"{call.place}({name}={value!r})")
    assert not taken, "\n".join(taken)


@pytest.mark.slow
def test_all_hostile_arguments_are_refused_by_name(calls: list[Call]) -> None:
    assert not (found := faults(calls, len(VALUES))), "\n".join(found)
