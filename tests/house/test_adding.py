"""Places of families, methods, geometries and builders of workloads: a forgotten step is named with its file.

The steps are those of CONTRIBUTING.md.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import random_problems
from conformance import ConformanceCase

import dualmech as dm
from dualmech import fast, geometry, problems
from dualmech.fast import methods
from dualmech.fast.custom import Custom
from dualmech.geometry import choice
from dualmech.geometry.base import KINDS
from dualmech.problems.base import OnGeometry, Problem
from dualmech.reference import solving as reference_solving
from dualmech.storage import store
from dualmech.workloads import builders
from dualmech.workloads.base import Workload

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = store.problem_classes()
SEEDS = range(20)  # of random problems, some of which are refused


def defined(package: ModuleType, base: type) -> Iterator[type]:
    """Yield the classes derived from `base` that the modules of a package define."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for kind in vars(importlib.import_module(info.name)).values():
            if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == info.name:
                yield kind


def place(family: str) -> str:
    """Return the folder of a family's own tests, as CONTRIBUTING.md names it."""
    return f"tests/problems/{FAMILIES[family].__module__.split('.')[2]}"


def test_every_problem_is_offered() -> None:
    for kind in defined(problems, Problem):
        if kind not in (Problem, OnGeometry):
            module = kind.__module__.removeprefix("dualmech")
            line = f"from {module} import {kind.__name__} as {kind.__name__}"
            assert kind.__name__ in FAMILIES, f"{kind.__name__} is not offered: add to core/__init__.pyi: {line}"


@pytest.mark.parametrize("family", FAMILIES)
class TestFamily:
    def test_names_its_arguments_and_dual_weights(self, family: str) -> None:
        kind = FAMILIES[family]
        for name in ("arguments", "dual_type"):
            assert name in vars(kind), f"{family} must have {name}, in {kind.__module__}"
        unknown = {*kind.optional_arguments} - {*kind.arguments}
        assert not unknown, f"optional_arguments of {family} must be among its arguments, got {unknown}"

    def test_has_a_judge(self, family: str) -> None:
        for name in ("certify", "feasible", "mechanism", "prices", "binding"):
            inherited = getattr(FAMILIES[family], name) is getattr(Problem, name)
            assert not inherited, f"{family} must define {name}, in {FAMILIES[family].__module__}"

    def test_has_a_fast_solver(self, family: str) -> None:
        assert family in methods.FAMILY_SOLVERS, f"{family} has no line in FAMILY_SOLVERS of fast/methods.py"
        solver = methods.FAMILY_SOLVERS[family]
        assert isinstance(solver.solve, str) and callable(pkgutil.resolve_name(solver.solve))
        assert {*solver.methods} <= {*methods.METHODS}, f"methods of {family} must be in METHODS of fast/methods.py"

    def test_has_programs_and_formulas(self, family: str) -> None:
        assert family in reference_solving.FAMILIES, f"{family} has no line in FAMILIES of reference/solving.py"
        programs = pkgutil.resolve_name(reference_solving.FAMILIES[family])
        for name in ("formulate", "solve", "formula"):
            missing = (
                f"{reference_solving.FAMILIES[family]} has no {name}: it is a field of its Formulations, or a function"
            )
            assert callable(getattr(programs, name, None)), missing

    def test_has_a_conformance_case(self, family: str, cases: list[ConformanceCase]) -> None:
        made = {type(case.make()).__name__ for case in cases}
        assert family in made, f"{family} has no conformance case: add CASES to {place(family)}/*_cases.py"

    def test_has_random_problems(self, family: str, drawn: set[str]) -> None:
        assert family in drawn, f"{family} is never drawn: add draw(rng, label) to {place(family)}/*_cases.py"

    def test_has_a_page_in_the_index(self, family: str) -> None:
        index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
        listed = re.findall(r"\((\w+\.md)\)", index.partition("\n## Problems\n")[2].partition("\n## ")[0])
        pages = [name for name in listed if family in (ROOT / "docs" / name).read_text(encoding="utf-8")]
        assert pages, f"{family} has no page: add one to docs, and to the list of problems in docs/index.md"


@pytest.fixture(scope="module")
def drawn() -> set[str]:
    """The families of random problems."""
    names = set()
    for label, draw in random_problems.families().items():
        for seed in SEEDS:
            try:
                names.add(type(draw(np.random.default_rng(seed), label).state()).__name__)
            except Exception:
                continue
            break
    return names


def test_lists_of_families_name_no_other_class() -> None:
    others = {*methods.FAMILY_SOLVERS} - {*FAMILIES}
    assert not others, f"FAMILY_SOLVERS of fast/methods.py names {others}, which core/__init__.pyi does not offer"
    others = {*reference_solving.FAMILIES} - {*FAMILIES, "RefinementStage"}
    assert not others, f"FAMILIES of reference/solving.py names {others}, which core/__init__.pyi does not offer"


def test_every_method_has_a_name_and_is_offered() -> None:
    for kind in {*defined(fast, methods.Method)} - {methods.Method, methods.ByFamily, Custom}:
        place = f"{kind.__module__}:{kind.__name__}"
        assert place in methods.METHODS.values(), f"METHODS of fast/methods.py must have the place {place!r}"
        assert getattr(fast, kind.__name__, None) is kind, f"fast/__init__.pyi must offer {kind.__name__}"


def test_every_geometry_is_asked_and_has_a_conformance_case(cases: list[ConformanceCase]) -> None:
    classes = [kind for kind in defined(geometry, object) if hasattr(kind, "offer") and hasattr(kind, "name")]
    for kind in classes:
        assert getattr(kind, "name") in KINDS, f"KINDS of core/geometry/base.py must have the name of {kind.__name__}"  # noqa: B009
    named = {*KINDS} - {"auto"}
    missing = named - {kind.name for kind in choice.geometries()}
    assert not missing, f"geometries() of core/geometry/choice.py must have the classes of {missing}"
    missing = named - {case.make().geometry.name for case in cases if hasattr(case.make(), "geometry")}
    assert not missing, f"STANDING of tests/house/conftest.py must have a workload on {missing}"


def test_every_builder_of_workloads_is_offered() -> None:
    for name, function in inspect.getmembers(builders, inspect.isfunction):
        builds = function.__module__ == builders.__name__ and "Workload" in str(function.__annotations__.get("return"))
        line = f"from .builders import {name} as {name}"
        offered = name.startswith("_") or not builds or hasattr(dm.workloads, name)
        assert offered, f"{name} is not offered: add to core/workloads/__init__.pyi: {line}"


def test_every_kind_of_workload_has_a_file() -> None:
    for name in dir(dm.workloads):
        kind = getattr(dm.workloads, name)
        if isinstance(kind, type) and issubclass(kind, Workload):
            assert name in store.KINDS, f"KINDS of core/storage/store.py must say how to make a {name} of its parts"
