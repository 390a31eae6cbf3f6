"""The file that states a sweep and the product of all that it names; and two answers that disagree, made small."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from dualmech import files, validate
from dualmech.crosscheck.families import POSED, Layer
from dualmech.errors import DualmechError, FileFormatError, InputTypeError, InvalidInputError, did_you_mean
from dualmech.files.reading import FilePath
from dualmech.studies.sweeps.running import LOCAL, RANDOM, Run, contents_of, default_delta
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload
from dualmech.workloads.names import is_named

SIZE, SEED = "{size}", "{seed}"  # placeholders in a workload for a size and a seed
MOST_RUNS = 100_000

AnyRun = TypeVar("AnyRun", bound=Run)

OPTIONS: dict[str, tuple[str, ...]] = {family.name: family.options for family in POSED} | {LOCAL: ("epsilon",)}
"""By family, the options that it takes."""


def _target(targets: object) -> str:
    """Return targets as a text: one number, ``random``, or a file."""
    if isinstance(targets, str):
        if targets == RANDOM or Path(targets).suffix.lower() in files.VECTORS:
            return targets
        known = f"a positive number, {RANDOM!r} or a file of {', '.join(files.VECTORS)}"
        raise InvalidInputError(f"targets must be {known}, got {targets!r}")
    return repr(validate.positive_number(targets=targets))


def _backend(name: object) -> str:
    from dualmech.reference import backends

    return backends.backend_name(validate.text(backends=name))


def _seed(seed: object) -> int:
    return validate.index(2**63, seeds=seed)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file: the check of each of its values, and the default where it is left out."""

    check: Callable[[Any], Any]
    default: tuple[Any, ...] = (None,)
    one: bool = False  # whether it takes one value, not several


KEYS: dict[str, Key] = {
    "families": Key(lambda value: validate.choice([*OPTIONS], families=value), ("fitness",)),
    "workloads": Key(lambda value: validate.text(workloads=value), ()),
    "sizes": Key(lambda value: validate.size(sizes=value)),
    "targets": Key(_target),
    "rho": Key(lambda value: str(validate.exact_number(rho=value))),
    "epsilon": Key(lambda value: validate.positive_number(epsilon=value)),
    "seeds": Key(_seed),
    "layers": Key(lambda value: validate.choice([layer.value for layer in Layer], layers=value), ("fast",)),
    "backends": Key(_backend),
    "tolerances": Key(lambda value: validate.positive_number(tolerances=value)),
    "delta": Key(lambda value: validate.probability(delta=value), one=True),
    "neighbours": Key(lambda value: validate.text(neighbours=value), one=True),
    "t1": Key(lambda value: validate.positive_number(t1=value), one=True),
    "time_limit": Key(lambda value: validate.positive_number(time_limit=value), one=True),
    "threads": Key(lambda value: validate.size(threads=value), (1,), one=True),
}
"""The keys that a file may have."""


def read_grid(path: FilePath, kind: type[AnyRun]) -> list[AnyRun]:
    """Return the runs that a TOML file states, each once, all checked before any is run; their kind reads the texts.

    Keys are those of `KEYS`. Most hold one value or several; the runs are their product. A workload is written as on
    the command line, with ``{size}`` and ``{seed}`` where those of the file go; workloads without them are run once.
    Targets are a number, ``"random"`` (uniform between 1 and 10, one a query or table, from the seed), or a file, and
    only families that have targets get them; the same holds for ε. Files are looked for in the folder of the grid.
    Raises `FileFormatError` for a file that cannot be read, is no TOML or states no run; an unknown key is named with
    those that are known, and so is a value that is not allowed, or belongs to none of the families.
    """
    with files.errors_naming(path):
        stated = _stated(path)
        _refuse_unused(stated)
        runs = list(dict.fromkeys(_runs(stated, Path(path).parent, kind)))
        for run in {run.problem: run for run in runs}.values():
            run.check()
        return runs


MakeProblem: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The values of every key of a grid."""


def _stated(path: FilePath) -> MakeProblem:
    with files.reading.opened(path) as handle:
        try:
            contents = tomllib.loads(handle.read().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}: is not TOML: {error}") from error
    for name in contents:
        if name not in KEYS:
            raise InvalidInputError(f"unknown key {name!r}{did_you_mean(name, KEYS)}; known are {', '.join(KEYS)}")
    if "workloads" not in contents:
        raise InvalidInputError('workloads must be given, such as workloads = ["prefix:{size}"]')
    return {name: _values(name, key, contents) for name, key in KEYS.items()}


def _values(name: str, key: Key, options: Mapping[str, Any]) -> tuple[Any, ...]:
    if name not in options:
        return key.default
    value = options[name]
    if isinstance(value, list) and key.one:
        raise InputTypeError(f"{name} must be one value, got {len(value)} of them")
    values = value if isinstance(value, list) else [value]
    if not values:
        raise InvalidInputError(f"{name} must hold a value, or be left out, got none")
    return tuple(dict.fromkeys(key.check(value) for value in values))


def _refuse_unused(stated: MakeProblem) -> None:
    """Refuse keys that no run would use, and keys that one would miss."""
    families, patterns = stated["families"], stated["workloads"]
    for name in ("targets", "rho", "epsilon", "t1"):
        takers = [family for family, options in OPTIONS.items() if name in options]
        if stated[name] != (None,) and not {*families} & {*takers}:
            raise InvalidInputError(f"{name} is for {', '.join(takers)}; families are {', '.join(families)}")
    for family, name in ((LOCAL, "epsilon"), ("softmax", "t1")):
        if family in families and stated[name] == (None,):
            raise InvalidInputError(f"{name} must be given for {family}")
    drawn = RANDOM in stated["targets"]
    for name, mark, others in (("sizes", SIZE, False), ("seeds", SEED, drawn)):
        used, wanted = any(mark in pattern for pattern in patterns), stated[name] != (None,)
        if wanted and not (used or others):
            raise InvalidInputError(f"{name} is used by no workload: write {mark} where it goes")
        if (used or others) and not wanted:
            raise InvalidInputError(f"{name} must be given: {mark if used else 'random targets'} stands for it")
    if stated["backends"] != (None,) and Layer.REFERENCE not in stated["layers"]:
        raise InvalidInputError("backends are for layers that hold 'reference'; the fast layer has none")
    if stated["rho"] != (None,) and stated["epsilon"] != (None,):
        raise InvalidInputError("give either rho or epsilon, not both")
    if stated["delta"] != (None,) and stated["epsilon"] == (None,):
        raise InvalidInputError("delta needs epsilon, the other half of (ε, δ)")


def _runs(stated: MakeProblem, folder: Path, kind: type[AnyRun]) -> Iterator[AnyRun]:
    """Yield the product; what a family, workload or layer has no use for is left out, so that runs may repeat."""
    axes = ("families", "workloads", "sizes", "targets", "rho", "epsilon", "seeds", "tolerances", "layers", "backends")
    count = 1
    for name in axes:
        count *= len(stated[name])
    if count > MOST_RUNS:
        raise InvalidInputError(f"the product of all has {count} runs, more than are taken (limit {MOST_RUNS})")
    single = {name: stated[name][0] for name in ("neighbours", "time_limit", "threads")}
    single["neighbours"] = _placed(single["neighbours"], folder)
    for family, pattern, size, targets, rho, epsilon, seed, tol, layer, backend in product(
        *(stated[name] for name in axes)
    ):
        options = OPTIONS[family]
        targets = _placed(targets, folder) if "targets" in options else None
        epsilon = epsilon if "epsilon" in options else None
        run = kind(
            family,
            _placed(pattern.replace(SIZE, str(size)).replace(SEED, str(seed)), folder),
            pattern,
            size if SIZE in pattern else None,
            targets,
            epsilon,
            default_delta(epsilon, stated["delta"][0], family),
            t1=stated["t1"][0] if "t1" in options else None,
            seed=seed if SEED in pattern or targets == RANDOM else None,
            layer=layer,
            backend=(backend or "CLARABEL") if layer == Layer.REFERENCE else None,
            tol=tol,
            rho=rho if "rho" in options else None,
            **single,
        )
        yield replace(run, contents=contents_of(run.workload, run.targets, run.neighbours))


def _placed(text: str | None, folder: Path) -> Any:
    """Return a text with the folder of the grid before it, where it names a file."""
    if text is None or is_named(text) or Path(text).suffix.lower() not in files.SUFFIXES:
        return text
    return str(folder / text)


# Two answers that disagree, made small: a smaller size, fewer queries, and files that repeat it.


MOST_TRIES = 200  # pairs of runs that shrinking may take
MOST_ENTRIES = 2**20  # of a workload that is written out as a matrix

Interval = tuple[float, float]
Ends = tuple[Interval, Interval]


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem on which two answers disagree; its queries and targets stand here where its text does not name them."""

    first: Run
    second: Run
    ends: Ends
    workload: Workload | None = None
    targets: Array | None = None


class _Trial:
    """Runs both on a candidate, so many times in all."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def __call__(self, instance: Instance) -> Instance | None:
        """Return the candidate with its intervals if they are disjoint; None if not, or if it is refused."""
        if not self.left:
            return None
        self.left -= 1
        try:
            first, second = (_interval(run, instance) for run in (instance.first, instance.second))
        except (DualmechError, MemoryError):
            return None
        disjoint = first[0] > second[1] or second[0] > first[1]
        return replace(instance, ends=(first, second)) if disjoint else None


def shrink(first: Run, second: Run, ends: Ends, tries: int = MOST_TRIES) -> Instance:
    """Return the smallest problem that was found on which the runs still disagree, the one given at worst.

    First the size is halved, where the workload has one; then the queries are written out, and half, a quarter and
    so on of them dropped, down to one by one, as long as the two certified intervals stay disjoint.
    """
    trial, smallest = _Trial(tries), Instance(first, second, ends)
    while (smaller := _halved(smallest)) is not None and (kept := trial(smaller)) is not None:
        smallest = kept
    written = _written_out(smallest)
    if written is None or (explicit := trial(written)) is None:
        return smallest
    return _with_fewer_queries(explicit, trial)


def _with_fewer_queries(instance: Instance, trial: Callable[[Instance], Instance | None]) -> Instance:
    share = 2
    while instance.workload is not None and (count := len(instance.workload)) > 1:
        kept = next(filter(None, map(trial, _without_a_part(instance, min(share, count)))), None)
        if kept is not None:
            instance, share = kept, max(share - 1, 2)
        elif share >= count:
            break
        else:
            share *= 2
    return instance


def _without_a_part(instance: Instance, parts: int) -> Iterator[Instance]:
    """Yield the instance without each of so many parts of its queries."""
    workload = instance.workload
    assert workload is not None
    for dropped in np.array_split(np.arange(len(workload)), parts):
        kept = np.setdiff1d(np.arange(len(workload)), dropped)
        targets = None if instance.targets is None else instance.targets[kept]
        yield replace(instance, workload=workload.select(kept), targets=targets)


def _halved(instance: Instance) -> Instance | None:
    size = instance.first.size
    if size is None or size < 2:
        return None
    text = instance.first.pattern.replace(SIZE, str(size // 2)).replace(SEED, str(instance.first.seed))
    runs = (replace(run, workload=text, size=size // 2) for run in (instance.first, instance.second))
    first, second = runs
    return replace(instance, first=first, second=second)


def _written_out(instance: Instance) -> Instance | None:
    """Return the same queries and targets as a matrix and numbers, None where they are too many."""
    try:
        matrix = instance.first.read()
        if np.prod([float(count) for count in matrix.shape]) > MOST_ENTRIES:
            return None
        problem, _ = instance.first.state(matrix)
        workload = Workload(matrix.dense())
    except (DualmechError, MemoryError):
        return None
    targets = getattr(problem, "targets", None)
    if targets is not None:
        numbers = np.asarray(targets, dtype=float).reshape(-1)
        if len(numbers) not in (1, len(matrix), len(matrix.table_counts)):
            return None
        targets = numbers if len(numbers) == len(matrix) else np.repeat(numbers, matrix.table_counts)
    return replace(instance, workload=workload, targets=targets)


def _interval(run: Run, instance: Instance) -> Interval:
    with without_warnings():
        workload = run.read() if instance.workload is None else instance.workload
        problem, divisor = run.state(workload, instance.targets)
        low, high = run.solve(problem).certificate.interval
    return low / divisor, high / divisor


def write_instance(instance: Instance, results: FilePath) -> tuple[Path, str]:
    """Write files that repeat a disagreement next to a file of results; return the grid, and the command that runs it.

    Queries without a text are written as a ``.csv`` file and, where targets differ, the targets as another.
    Raises `FileFormatError` where one cannot be written.
    """
    stem = f"{Path(results).with_suffix('')}-disagreement-{instance.first.problem[:8]}"
    grid, results = Path(f"{stem}.toml"), Path(f"{stem}.jsonl")
    stated = _shrink_stated(instance, stem)
    command = f"dualmech sweep {shlex.quote(str(grid))} -o {shlex.quote(str(results))}"
    ends = [f"# {run.layer} proves [{low!r}, {high!r}]" for run, (low, high) in _pairs(instance)]
    lines = ["# Certified intervals that do not meet.", *ends, "# Run this file by `dualmech sweep`."]
    lines += [f"{name} = {_toml(value)}" for name, value in stated.items() if value is not None]
    files.atomic.write_text(grid, "\n".join(lines) + "\n")
    return grid, command


def _pairs(instance: Instance) -> Iterator[tuple[Run, Interval]]:
    return zip((instance.first, instance.second), instance.ends, strict=True)


def _shrink_stated(instance: Instance, stem: str) -> dict[str, Any]:
    """Return the contents of the grid, and write the files that it needs."""
    first, second, folder = instance.first, instance.second, Path(stem).parent
    workload, seed = _relative_to(first.workload, folder), first.seed
    targets: float | str | None = _relative_to(first.targets, folder)
    if instance.workload is not None:
        workload, seed = f"{Path(stem).name}.csv", None
        files.write_workload(instance.workload, folder / workload)
    if instance.targets is not None:
        targets = _targets(instance.targets, stem)
    backends = [run.backend for run in (first, second) if run.backend is not None]
    tolerances = [run.tol for run in (first, second) if run.tol is not None]
    return {
        "families": first.family,
        "workloads": workload,
        "targets": targets if first.family != LOCAL else None,
        "rho": first.rho,
        "epsilon": first.epsilon,
        "delta": first.delta,
        "neighbours": _relative_to(first.neighbours, folder),
        "t1": first.t1,
        "seeds": seed if targets == "random" else None,
        "layers": list(dict.fromkeys([first.layer, second.layer])),
        "backends": list(dict.fromkeys(backends)) or None,
        "tolerances": list(dict.fromkeys(tolerances)) or None,
        "time_limit": first.time_limit,
    }


def _targets(targets: Array, stem: str) -> float | str:
    """Return one number where all targets are the same, else the name of a file with one a line."""
    if (targets == targets[0]).all():
        return float(targets[0])
    path = Path(f"{stem}-targets.csv")
    files.atomic.write_text(path, "".join(f"{target!r}\n" for target in targets.tolist()))
    return path.name


def _relative_to(text: str | None, folder: Path) -> str | None:
    """Return a text, the path of a file as seen from a folder, in which a grid looks for it."""
    if text is None or Path(text).suffix.lower() not in files.SUFFIXES:
        return text
    return os.path.relpath(text, folder)


def _toml(value: object) -> str:
    """Return a value as TOML, which takes what JSON does of numbers, lists and texts but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
