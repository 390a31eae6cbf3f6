"""The house's own rules: who may import whom, what is loaded when, and what a wheel holds."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dualmech

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "core": "dualmech",
    "reference": "dualmech.reference",
    "fast": "dualmech.fast",
    "crosscheck": "dualmech.crosscheck",
}
FORBIDDEN = {
    "core": ("dualmech.reference", "dualmech.fast", "dualmech.crosscheck", "cvxpy"),
    "reference": ("dualmech.fast", "dualmech.crosscheck"),
    "fast": ("dualmech.reference", "dualmech.crosscheck", "cvxpy"),
    "crosscheck": ("cvxpy",),
}
SHARED = (
    "certificate",
    "domain",
    "errors",
    "linalg",
    "problems.evaluation",
    "problems.geometry",
    "validate",
    "workload",
)
JUDGES = {
    "fitness": ("problems.fitness",),
    "variance": ("problems.variance",),
    "softmax": ("problems.softmax", "problems.fitness"),
    "refinement": ("problems.refinement", "problems.fitness"),
    "weighting": ("problems.weighting", "problems.design"),
    "reuse": ("problems.reuse", "problems.release", "problems.fitness", "noise"),
    "common": ("problems.common", "problems.loewner", "noise", "answerability", "intersections"),
    "local": ("problems.local", "problems.factorisation", "patterns", "relaxation"),
    "projection": ("problems.projection", "problems.factorisation", "patterns", "relaxation"),
    "estimate": ("problems.estimate",),
    "marginals": ("problems.marginals", "marginals", "lattice", "tabulations"),
    "tables": (
        *("problems.tables", "query_tables", "attribute_noise"),
        *("problems.marginals", "marginals", "lattice", "tabulations"),
    ),
    "products": (
        *("problems.products", "problems.factored", "products", "problems.fitness", "problems.variance"),
        *("problems.marginals", "marginals", "lattice", "tabulations"),
    ),
    "unions": (
        *(
            "problems.unions",
            "problems.tied",
            "blocks",
            "block_rows",
            "frames",
            "unions",
            "stacking",
            "circular",
        ),
        *("query_tables", "products", "marginals", "lattice", "tabulations"),
    ),
}
"""By family, what its certificates rest on besides the shared modules."""
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    parts = [part for part in rest if part != "__init__"]
    return ".".join([FOLDERS[folder], *parts])


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_imports_only_what_its_folder_may() -> None:
    strays = [
        f"{module_name(path)} imports {name}"
        for path in SOURCES
        for name in imported(path)
        if name.partition(".")[0] in FOLDERS  # it should say dualmech, not the folder
        or any(f"{name}.".startswith(f"{one}.") for one in FORBIDDEN[path.relative_to(ROOT).parts[0]])
    ]
    assert not strays


def test_every_module_and_function_stays_readable() -> None:
    long = []
    for path in SOURCES:
        if path.read_text(encoding="utf-8").count("\n") > 330:
            long.append(module_name(path))
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno >= 45:
                    long.append(f"{module_name(path)}.{node.name}")
    assert not long


def test_importing_dualmech_loads_no_heavy_package() -> None:
    code = "import sys, dualmech; print([m for m in ('cvxpy', 'scipy.optimize', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def rests_on(module: str) -> set[str]:
    """Follow the imports of a module, those inside functions and for type checkers left out."""
    known = {module_name(path): path for path in SOURCES}
    known.pop("dualmech")  # it gathers public names; nobody inside imports them from there
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        for node in nodes(known[name])[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dualmech"):
                queue += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {name.removeprefix("dualmech.") for name in seen} - {"problems"}


@pytest.mark.parametrize("family", JUDGES)
def test_a_judge_rests_on_the_trusted_base_alone(family: str) -> None:
    assert {*JUDGES[family]} <= rests_on(f"dualmech.problems.{family}") <= {*SHARED, *JUDGES[family]}


def test_the_readme_lists_the_trusted_base() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    trusted = {*SHARED, *(name for judge in JUDGES.values() for name in judge)}
    assert all(f"core/{name.replace('.', '/')}.py" in readme for name in trusted)


def test_every_loaded_module_is_dualmechs_and_loaded_once() -> None:
    for found in pkgutil.walk_packages(dualmech.__path__, "dualmech."):
        if not found.name.endswith("__main__"):
            __import__(found.name)
    files = [
        module.__file__
        for name, module in sys.modules.items()
        if name.startswith("dualmech") and module.__file__
    ]
    assert len(files) == len(set(files))
    assert not set(FOLDERS) & set(sys.modules)


class TestPackaging:
    def test_every_package_is_listed(self) -> None:
        listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
            "packages"
        ]
        assert set(listed) == {module_name(path) for path in SOURCES if path.name == "__init__.py"}

    def test_a_wheel_holds_exactly_the_repositorys_modules(self) -> None:
        installed = importlib.metadata.files("dualmech") or []
        modules = {str(file) for file in installed if file.suffix == ".py" and file.parts[0] == "dualmech"}
        if not modules:
            pytest.skip("dualmech is installed in place, not from a wheel")
        expected = set()
        for path in SOURCES:
            folder, *rest = path.relative_to(ROOT).parts
            expected.add("/".join([*FOLDERS[folder].split("."), *rest]))
        assert modules == expected
        assert any(str(file) == "dualmech/py.typed" for file in installed)
