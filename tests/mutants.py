"""Change one sign, bound or allowance at a time, and see whether the tests fail: `python tests/mutants.py --count 60`.

A mutant is one changed expression of the modules that decide what is certified. Those of a seed are the same while the
functions they stand in are. It is killed if a test fails. One that survives changes nothing that matters, or shows a
missing test.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference", "fast", "crosscheck", "studies", "publishing", "command")  # beside `core`, which holds them all

MODULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "judge": (
        ("core/certificate.py", "core/verified.py", "crosscheck/judging.py"),
        ("crosscheck/test_judging.py", "house/test_solution.py", "house/test_conformance.py"),
    ),
    "geometries": (("core/geometry/*.py",), ("geometry",)),
    "certificates": (("core/problems/*.py", "core/problems/local/*.py"), ("problems", "house/test_conformance.py")),
    "accounting": (("core/accounting.py", "core/mechanisms/costs.py", "core/mechanisms/privacy.py"), ("mechanisms",)),
    "checker": (("crosscheck/proofs/checker/*.py",), ("crosscheck/proofs",)),
}
"""What is changed, and the tests that are run first, after those with the name of the module."""

SURVIVED = "survived"
TIMEOUT = 600  # seconds that a run of tests may take

ALLOWANCE = re.compile(r"rounding|error|slack|allowance|residual|margin|resolution")
SIGNS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+"}
BOUNDS: dict[type[ast.cmpop], str] = {ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}
OPPOSITES = {"min": "max", "minimum": "maximum", "lower": "upper", "lower_bound": "objective"}
OPPOSITES |= {opposite: name for name, opposite in OPPOSITES.items()}


@dataclass(frozen=True)
class Mutant:
    """One change of one expression: its function, the expression as it is, and the text of the module changed."""

    path: str
    function: str
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.function}: {self.before}  ->  {self.after}"

    def rank(self, seed: int) -> str:
        return hashlib.sha256(f"{seed} {self}".encode()).hexdigest()


def changed(node: ast.AST) -> Iterator[str]:
    """Yield what may stand in place of an expression."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if not any(
            isinstance(side, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right)
        ):
            yield f"({left} {SIGNS[type(node.op)]} ({right}))"
        if ALLOWANCE.search(right):
            yield f"({left})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDS:
        yield f"({ast.unparse(node.left)} {BOUNDS[type(node.ops[0])]} {ast.unparse(node.comparators[0])})"
    elif isinstance(node, ast.Attribute) and node.attr in OPPOSITES:
        yield f"{ast.unparse(node.value)}.{OPPOSITES[node.attr]}"
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield OPPOSITES[node.id]


def expressions(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions of functions, with the function; none of annotations, defaults and assertions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            inner = f"{function}.{node.name}".lstrip(".")
            for statement in node.body:
                yield from expressions(ast.Module([statement], []), inner)
        elif not isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.arguments):
            if isinstance(node, ast.expr) and function:
                yield function, node
            yield from expressions(node, function)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield the mutants of a module."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, node in expressions(ast.parse(source)):
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for after in changed(node):
            text = (source.encode()[:first] + after.encode() + source.encode()[last:]).decode()
            yield Mutant(path.relative_to(ROOT).as_posix(), function, ast.unparse(node), after, text)


def named_as(path: str) -> Iterator[Path]:
    """Yield the files of tests with the name of a module."""
    return (ROOT / "tests").rglob(f"test_*{Path(path).stem}*.py")


def drawn(seed: int, count: int) -> list[tuple[tuple[str, ...], Mutant]]:
    """Return mutants with the tests that are run first, as many of each kind of module."""
    groups = []
    for patterns, tests in MODULES.values():
        found = (mutant for pattern in patterns for path in ROOT.glob(pattern) for mutant in mutants_of(path))
        groups.append([(tests, mutant) for mutant in sorted(found, key=lambda mutant: mutant.rank(seed))[:count]])
    turns = chain.from_iterable(zip_longest(*groups))
    return [turn for turn in turns if turn is not None][:count]


class Copy:
    """A copy of the checkout, whose package Python finds before any that is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.splitlines()):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        package = folder / "package" / "dualmech"
        package.mkdir(parents=True)
        for part in [*(folder / "core").iterdir(), *(folder / room for room in ROOMS)]:
            (package / part.name).symlink_to(part)
        self.writes = 0

    def write(self, path: str, text: str) -> None:
        """Write a module, at a time of its own: compiled modules are known by times and sizes."""
        self.writes += 1
        (self.folder / path).write_text(text, encoding="utf-8")
        os.utime(self.folder / path, (self.writes, self.writes))

    def ending(self, tests: Iterable[str]) -> str:
        """Return whether a test fails, all pass, or the run does not end in time, as a loop without end would not."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += [f"tests/{place}" for place in tests]
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "package")}
        try:
            run = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return "endless"
        if run.returncode not in (0, 1, 2):
            raise RuntimeError(run.stdout.decode() + run.stderr.decode())
        return "killed" if run.returncode else SURVIVED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", action="store_true", help="run only the tests of the same subject")
    options = parser.parse_args()
    mutants, endings = drawn(options.seed, options.count), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for tests, mutant in mutants:
            original = (ROOT / mutant.path).read_text(encoding="utf-8")
            copy.write(mutant.path, mutant.text)
            named = sorted(path.relative_to(ROOT / "tests").as_posix() for path in named_as(mutant.path))
            ending = copy.ending([*named, *tests])
            if ending == SURVIVED and not options.first:
                ending = copy.ending([""])
            copy.write(mutant.path, original)
            endings[ending] += 1
            print(f"{ending:8}", mutant, flush=True)
    print(f"seed {options.seed}: {dict(endings)}")


if __name__ == "__main__":
    main()
