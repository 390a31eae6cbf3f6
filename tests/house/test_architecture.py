"""The house's own rules: who may import whom, what is loaded when, and what a wheel holds."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import types
from pathlib import Path

import pytest

import dualmech
from dualmech import crosscheck
from dualmech.reference import backends

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "core": "dualmech",
    "reference": "dualmech.reference",
    "fast": "dualmech.fast",
    "crosscheck": "dualmech.crosscheck",
    "studies": "dualmech.studies",
    "publishing": "dualmech.publishing",
    "command": "dualmech.command",
}


def above(*allowed: str) -> tuple[str, ...]:
    """Return the rooms that one may not import, which may import those named."""
    return tuple(name for room, name in FOLDERS.items() if room not in allowed)


FORBIDDEN = {
    "core": (*above("core"), "cvxpy"),
    "reference": above("core", "reference"),
    "fast": (*above("core", "fast"), "cvxpy"),
    "crosscheck": (*above("core", "reference", "fast", "crosscheck"), "cvxpy"),
    "studies": (*above("core", "reference", "fast", "crosscheck", "studies"), "cvxpy"),
    "publishing": (*above("core", "publishing"), "cvxpy"),
    "command": ("cvxpy",),
}

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, SETUPTOOLS = SETTINGS["project"], SETTINGS["tool"]["setuptools"]

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
        elif isinstance(node, ast.Call):
            found |= imported_by_string(node)
    return found


def imported_by_string(call: ast.Call) -> set[str]:
    """Return the module that a call of `import_module` or `__import__` names; nothing else may stand there."""
    if getattr(call.func, "attr", getattr(call.func, "id", "")) not in ("import_module", "__import__"):
        return set()
    name = call.args[0]
    if ast.unparse(name) == "f'{name}.check'":  # the proof checker, which runs as a package of any name
        return set()
    assert isinstance(name, ast.Constant), f"a module is imported by {ast.unparse(name)}"
    return {str(name.value)}


def test_every_module_imports_only_what_its_folder_may() -> None:
    strays = [
        f"{module_name(path)} imports {name}"
        for path in SOURCES
        for name in imported(path)
        if path != ROOT / "core" / "__main__.py"  # the door to the command, which nothing else goes through
        and path.parent.name != "benchmarks"  # which measure all rooms, and none imports
        if name.partition(".")[0] in FOLDERS  # it should say dualmech, not the folder
        or any(f"{name}.".startswith(f"{one}.") for one in FORBIDDEN[path.relative_to(ROOT).parts[0]])
    ]
    assert not strays


SHOWING = {f"dualmech.crosscheck.{name}" for name in ("sheet", "printing", "processes", "instances", "table2")}
"""What exists for sheets: their form, the parts of reports, workers, printed numbers, and the first paper's table."""

NOT_PUBLIC = {
    "dualmech.validate": "rivals and sweeps refuse arguments as the library does",
    "dualmech.watching": "runners collect answers, and leave warnings to the rows",
    "dualmech.files.csv": "tables from files, and to pandas",
    "dualmech.crosscheck.collection": "problems whose optima are proven, for the sheets of backends",
    "dualmech.crosscheck.library": "the same",
    "dualmech.reference.conic": "programs as files state them, for the same sheets",
    "dualmech.publishing.ledger": "how long it takes to record a release",
}
"""What studies import though users do not, with the reason."""


def public_modules() -> set[str]:
    """Return the modules that the package offers."""
    stub = (ROOT / "core" / "__init__.pyi").read_text(encoding="utf-8")
    offered = re.findall(r"^from (\.[\w.]*) import (\w+) as", stub, re.MULTILINE)
    names = {f"dualmech{place.rstrip('.')}.{name}" for place, name in offered}
    return {"dualmech"} | names & {module_name(path) for path in SOURCES}


def test_studies_are_written_against_public_names() -> None:
    allowed = public_modules() | SHOWING | {*NOT_PUBLIC}
    known = {module_name(path) for path in SOURCES}
    strays, used = [], set()
    for path in (ROOT / "studies").rglob("*.py"):
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("dualmech"):
                continue
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                module = whole if whole in known and node.module != "dualmech" else str(node.module)
                offered = hasattr(dualmech, alias.name) or whole in allowed
                used |= {module, whole}
                fits = offered if module == "dualmech" else module in allowed or module.startswith("dualmech.studies")
                fits |= any(module.startswith(f"{each}.") for each in SHOWING)
                if not fits or alias.name.startswith("_"):
                    strays.append(f"{module_name(path)}: {whole}")
    assert not strays
    assert {*NOT_PUBLIC} <= used


def test_every_module_and_function_stays_readable() -> None:
    long = []
    for path in SOURCES:
        if path.read_text(encoding="utf-8").count("\n") > 700:
            long.append(module_name(path))
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno >= 45:
                    long.append(f"{module_name(path)}.{node.name}")
    assert not long


def heart() -> list[Path]:
    """Return the files that CONTRIBUTING.md calls the heart."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    chapter = text.split("## The heart in fourteen files")[1].split("\n## ")[0]
    return [ROOT / path for path in re.findall(r"^\d+\. `([a-z_/.]+)`", chapter, re.MULTILINE)]


def lines_of_code(path: Path) -> int:
    """Return the number of lines that are neither blank, nor comments, nor docstrings."""
    texts = {
        line
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and at not in texts for at, line in lines)


def test_the_heart_is_read_in_an_hour() -> None:
    assert len(heart()) == 14
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in heart()) <= 4050
    assert sum(map(lines_of_code, heart())) <= 2550


def test_a_solve_passes_the_heart() -> None:
    code = (
        "import sys\n"
        "import dualmech as dm\n"
        "from dualmech import fast\n"
        "solve = lambda: fast.solve(dm.FitnessForUse(dm.workloads.prefix(16)))\n"
        "_, passed = solve(), set()  # after a first solve, which loads modules\n"
        "sys.setprofile(lambda frame, event, value: passed.add(frame.f_globals.get('__name__')))\n"
        "solve()\n"
        "sys.setprofile(None)\n"
        f"print({ {module_name(path) for path in heart()} } - passed)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'dualmech.reference.fitness'}\n"


NO_NAMES = {"asked", "each", "found", "given", "mine", "own", "ours", "said", "theirs", "told", "whom"}
"""Names that say how a value was got, and not what it is."""


@pytest.mark.parametrize("room", FOLDERS)
def test_local_names_say_what_a_thing_is(room: str) -> None:
    """In every room; `Specification.of` names its mapping `given`, which users may write."""
    unclear = set()
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
            names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            unclear |= {(path.name, node.name, name) for name in names & NO_NAMES}
    assert unclear <= {("specification.py", "of", "given")}


def test_solving_loads_no_heavy_package_that_it_does_not_use() -> None:
    """Nor rooms of the house that it does not enter: it loads 133 of our modules at most."""
    code = (
        "import sys\n"
        "from dualmech.command.main import app\n"
        "app(['solve', 'prefix:2'], standalone_mode=False)\n"
        "heavy = ('cvxpy', 'scipy.optimize', 'scipy.stats', 'scipy.fft', 'matplotlib', 'pandas', "
        "'dualmech.publishing.release', 'dualmech.studies.rivals', 'dualmech.crosscheck.proofs.prove')\n"
        "print('loaded:', [each for each in heavy if each in sys.modules])\n"
        "print(sum(name.startswith('dualmech') for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, loaded, count = done.stdout.splitlines()
    assert loaded == "loaded: []" and int(count) <= 131


def test_an_explanation_loads_no_solver() -> None:
    """Formulas and the names of formulations need no CVXPY, which takes a second and 60 MiB."""
    code = (
        "import sys\n"
        "from dualmech.command.main import app\n"
        "app(['explain', 'prefix:3'], standalone_mode=False)\n"
        "print('loaded:', [each for each in ('cvxpy', 'scipy.optimize', 'jax') if each in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "minimise" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_a_command_begins_as_many_threads_as_it_takes() -> None:
    """Those of BLAS beyond them spin while it is loaded: a quarter of a short command's time."""
    code = (
        "import os, sys, threadpoolctl\n"
        "from dualmech.command import entry\n"
        "sys.argv = ['dualmech', 'solve', 'prefix:2']\n"
        "try:\n"
        "    entry._command()\n"
        "except SystemExit:\n"
        "    print('threads:', {each['num_threads'] for each in threadpoolctl.threadpool_info()})\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    for threads in ("1", "2"):
        chosen = environment | {"DUALMECH_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code], env=chosen, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == f"threads: {{{threads}}}"


def test_solving_without_a_command_loads_no_special_functions() -> None:
    """A twentieth of a second; ε, which a command prints, takes them."""
    code = (
        "import sys\n"
        "import dualmech as dm\n"
        "from dualmech import fast\n"
        "answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(16)))\n"
        "print('scipy.special' in sys.modules, answer.mechanism.epsilon(1e-9) > 0, 'scipy.special' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True True\n"


def edges() -> dict[str, set[str]]:
    """Return what each module imports of ours, at whatever time; the package itself only gathers public names.

    What type checkers alone import does not count.
    """
    known = {module_name(path): path for path in SOURCES}
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        skipped = {
            id(part)
            for node in nodes(path)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for part in ast.walk(node)
        }
        for node in nodes(path):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= (whole & known.keys()) or {node.module} & known.keys()
            elif isinstance(node, ast.Call):
                found[name] |= imported_by_string(node) & known.keys()
        found[name] -= {name, "dualmech"}
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that import themselves through others."""
    reached = {name: set(others) for name, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return [name for name, others in reached.items() if name in others]


def structure() -> dict[str, int]:
    """Return numbers of modules, of imports between them, of those in a circle, and of lines: `python` this file."""
    graph = edges()
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in SOURCES)
    counts = len(SOURCES), sum(map(len, graph.values())), len(circles(graph)), lines
    return dict(zip(("modules", "imports", "in circles", "lines"), counts, strict=True))


def test_no_import_goes_in_a_circle() -> None:
    assert not circles(edges())


def levels() -> dict[str, int]:
    """Return how deep each module stands: 1 imports none of ours, n imports one of level n - 1."""
    graph, known = edges(), dict[str, int]()

    def level(name: str) -> int:
        if name not in known:
            known[name] = 1 + max(map(level, graph[name]), default=0)
        return known[name]

    return {name: level(name) for name in graph}


DEEPEST = {"geometry.dense": 7, "mechanisms.gaussian": 9, "problems.fitness": 8, "solution": 5, "fast.solving": 10}


def test_modules_stand_on_few_others() -> None:
    found = levels()
    assert {name: found[f"dualmech.{name}"] for name in DEEPEST} == DEEPEST
    assert sorted(found.values())[len(found) // 2] <= 9 and max(found.values()) <= 19


def test_a_solve_loads_what_its_family_needs() -> None:
    code = (
        "import sys\n"
        "import dualmech as dm\n"
        "from dualmech import fast\n"
        "_ = fast.solve(dm.FitnessForUse(dm.workloads.prefix(16))).mechanism\n"
        "print(sum(name.startswith('dualmech') for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 73


def test_the_package_shows_public_names_and_no_modules_of_its_own_business() -> None:
    assert {"FitnessForUse", "Workload", "fast", "load", "workloads"} <= {*dir(dualmech)}
    modules = {name for name in dir(dualmech) if isinstance(getattr(dualmech, name), types.ModuleType)}
    assert not modules & {"display", "geometry", "linalg", "mechanisms", "problems", "storage", "validate"}


def test_every_module_that_the_package_offers_is_there_before_any_other_is_used() -> None:
    stub = (ROOT / "core" / "__init__.pyi").read_text(encoding="utf-8")
    offered = re.findall(r"^from \.([\w.]*) import (\w+) as", stub, re.MULTILINE)
    files = {path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("core/") for path in SOURCES}
    names = [name for folder, name in offered if "/".join([*folder.split("."), name]).strip("/") in files]
    assert {"accounting", "census", "records"} <= {*names}
    said = f"import dualmech; [getattr(dualmech, name) for name in {names}]"
    assert subprocess.run([sys.executable, "-c", said]).returncode == 0


def test_no_list_of_names_has_a_name_of_a_module_beside_it() -> None:
    """Once that module is loaded, its folder's attribute of this name is the module."""
    for stub in (path for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.pyi")):
        text = stub.read_text(encoding="utf-8")
        names = {
            name for place, name in re.findall(r"^from (\.[\w.]*) import (\w+) as", text, re.MULTILINE) if place != "."
        }
        modules = {path.stem for path in stub.parent.glob("*.py")} | {path.name for path in stub.parent.iterdir()}
        assert not names & modules, stub


def test_importing_the_package_loads_nothing_else() -> None:
    said = "import sys, dualmech; print(sorted(name for name in ('numpy', 'scipy', 'cvxpy') if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("line", ["--version", "--help", "solve --help", "crosscheck --help"])
def test_help_loads_nothing_that_computes(line: str) -> None:
    code = (
        "import sys\n"
        "from dualmech.command.main import app\n"
        f"app({line.split()!r}, standalone_mode=False)\n"
        "print('loaded:', [each for each in ('numpy', 'scipy', 'cvxpy') if each in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_what_crosscheck_offers_is_loaded_when_it_is_used() -> None:
    offered = [name for name in dir(crosscheck) if not name.startswith("_")]
    assert {"Agreement", "compare", "judge"} <= {*offered}
    assert all(getattr(crosscheck, name) is not None for name in offered)


def test_every_loaded_module_is_dualmechs_and_loaded_once() -> None:
    for found in pkgutil.walk_packages(dualmech.__path__, "dualmech."):
        if not found.name.endswith("__main__"):
            __import__(found.name)
    files = [module.__file__ for name, module in sys.modules.items() if name.startswith("dualmech") and module.__file__]
    assert len(files) == len(set(files))
    assert not set(FOLDERS) & set(sys.modules)


def test_every_module_is_installed() -> None:
    """An editable install is a list of the modules that there were."""
    for path in SOURCES:
        found = importlib.util.find_spec(module_name(path))
        assert found is not None, f"{path.relative_to(ROOT)} is not installed: touch pyproject.toml and make install"


class TestPackaging:
    def test_every_requirement_has_a_floor_which_is_all_that_it_says(self) -> None:
        """So that `make test-lowest` can run on exactly these."""
        for requirement in PROJECT["dependencies"]:
            assert re.fullmatch(r"[a-z-]+>=[0-9]+(\.[0-9]+)+", requirement), requirement

    def test_extras_are_what_something_imports(self) -> None:
        texts = [path.read_text(encoding="utf-8") for path in (*SOURCES, *(ROOT / "tests").rglob("*.py"))]
        for extra, required in PROJECT["optional-dependencies"].items():
            for name in required if extra != "dev" else ():  # where tools are as well
                if extra == "backends":  # which CVXPY imports
                    assert any(name in backends.packages(own) for own in backends.ACCURACY), name
                    continue
                name = re.split("[<>=]", name)[0]
                imports = re.compile(rf"""(import |from |importorskip\("){name.replace("-", "_")}\b""")
                assert any(imports.search(text) for text in texts), f"{extra}: nothing imports {name}"

    def test_every_package_is_listed(self) -> None:
        assert set(SETUPTOOLS["packages"]) == {module_name(path) for path in SOURCES if path.name == "__init__.py"}

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

    def test_an_sdist_holds_exactly_the_repositorys_files(self, tmp_path: Path) -> None:
        """So that the tests run from an sdist as well, where this one is skipped."""
        if not (ROOT / ".git").exists() or shutil.which("git") is None:
            pytest.skip("not a checkout, which alone knows its files")
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
        for name in tracked:
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "tree" / name)
        code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "tree", capture_output=True, check=True)
        (sdist,) = tmp_path.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            found = {each.name.partition("/")[2] for each in archive if each.isfile()}
        made = {name for name in found if "egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
        assert found - made == tracked


if __name__ == "__main__":
    print(structure())


@pytest.mark.parametrize("folder", ["core", "crosscheck"])
def test_no_public_name_is_that_of_the_module_it_comes_from(folder: str) -> None:
    """Older loaders leave the module in place of what it offers once it is imported."""
    tree = ast.parse((ROOT / folder / "__init__.pyi").read_text(encoding="utf-8"))
    modules = {path.stem for path in (ROOT / folder).iterdir()}
    offered = {
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.module for alias in node.names
    }
    assert not offered & modules


def test_every_slow_test_belongs_to_a_part() -> None:
    """What no part of `make test-slow` holds is run by nobody, as the hostile run once was; the site has a rule."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    places = " ".join(re.findall(r"^slow_\w+ := (.*)$", text, re.MULTILINE)).split()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        if "mark.slow" in path.read_text(encoding="utf-8") and path != Path(__file__).resolve():
            assert f" {name} " in text or any(name.startswith(each) for each in places), name
    assert set(re.findall(r"^slow_(\w+) :=", text, re.MULTILINE)) == {
        *re.findall(r"^PARTS := (.*)$", text, re.MULTILINE)[0].split()
    }


def test_tests_of_extras_run_somewhere() -> None:
    """`make test-extras`, which .ci/run runs, has every file that imports what only these extras install."""
    names = {re.split(r"[<>=\[]", each)[0] for extra in ("training", "oracles") for each in extras_of(extra)}
    packages = {name.replace("-", "_") for name in names} | {"jax"}
    (listed,) = re.findall(
        r"^extras := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    imported = re.compile(rf"importorskip\(\"({'|'.join(packages)})[.\"]")
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if imported.search(path.read_text(encoding="utf-8"))
    }
    assert files == set(listed.replace("\\\n", " ").split())
    assert "make test-extras" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def extras_of(name: str) -> list[str]:
    return list(PROJECT["optional-dependencies"][name])
