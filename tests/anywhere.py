"""Run the tests as other machines would: other kernels, examples, orders, problems, Pythons, the newest libraries.

``python tests/anywhere.py`` (``make test-anywhere``) draws its seeds, prints each with the command that runs it again,
and ends with status 1 if anything failed. ``--only kernels seeds soak pythons`` leaves out the rest; ``--seeds 7 8``
and ``--soak-first 1000`` run drawn ones again. Nothing of the environment but what a shell needs reaches a run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SYSTEMROOT", "PYENV_ROOT", "VIRTUAL_ENV")
KEPT_PREFIXES = ("PIP_", "LC_")
"""What of the environment a run keeps."""

KERNELS = {
    "x86_64": ("SkylakeX", "Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott"),
    "aarch64": ("ARMV8", "NEOVERSEN1", "NEOVERSEV1", "CORTEXA57"),
}
"""Names that OPENBLAS_CORETYPE takes, by machine."""

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
SEEDS, SOAK, SHARE = 5, 10_000, 250
MULTIPLY = "import numpy as n; a = n.random.default_rng(0).random((99, 99)); n.linalg.svd(a @ a)"
ARCHITECTURE = "import numpy, threadpoolctl as t; print({each.get('architecture') for each in t.threadpool_info()})"

Run = tuple[str, list[str], dict[str, str]]
"""What a run is called, its command, and the variables that it adds."""


def clean(**added: str) -> dict[str, str]:
    """Return the environment of a run."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return kept | added


def kernels() -> list[str]:
    """Return the names of distinct kernels that this machine can run."""
    found: dict[str, str] = {}
    for name in KERNELS.get(platform.machine(), ()):
        told = [
            subprocess.run(
                [sys.executable, "-c", code],
                env=clean(OPENBLAS_CORETYPE=name),
                capture_output=True,
                text=True,
                check=False,
            )
            for code in (MULTIPLY, ARCHITECTURE)
        ]
        if any(each.returncode for each in told):
            print(f"kernel {name}: this machine cannot run it")
        else:
            found.setdefault(told[1].stdout, name)
    return list(found.values())


def pytest_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs that take the whole machine, one after the other."""
    if "kernels" in chosen.only:
        for name in kernels():
            yield f"kernel {name}", pytest_command(), {"OPENBLAS_CORETYPE": name}
    if "seeds" in chosen.only:
        tests = sorted((ROOT / "tests").rglob("test_*.py"))
        drawing = [str(path.relative_to(ROOT)) for path in tests if "hypothesis" in path.read_text("utf-8")]
        for seed in chosen.seeds:
            drawn = ("--hypothesis-profile=drawn", f"--hypothesis-seed={seed}")
            yield f"examples of seed {seed}", pytest_command(*drawn, *drawing), {}
            yield f"order of seed {seed}", pytest_command("-p", "randomly", f"--randomly-seed={seed}"), {}
    if "pythons" in chosen.only:
        for name in PYTHONS:
            if (
                shutil.which(name)
                and subprocess.run([name, "-c", ""], check=False, capture_output=True).returncode == 0
            ):
                # A fresh environment takes the newest libraries that there are for it.
                arguments = [f"PYTHON={name}", f"VENV=.venv-{name}", "DIST=wheel"]
                yield f"{name}, newest libraries", ["make", "test", *arguments], {}
            else:
                print(f"{name}: not on this machine")


def run(each: Run) -> bool:
    """Run something and print how it ended, what it printed only where it failed."""
    label, command, added = each
    done = subprocess.run(command, cwd=ROOT, env=clean(**added), capture_output=True, text=True, check=False)
    shown = " ".join([*(f"{name}={value}" for name, value in added.items()), *command])
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"{'ok    ' if done.returncode == 0 else 'FAILED'} {label}: {last}", flush=True)
    if done.returncode:
        print(f"       again: {shown}\n{done.stdout[-20_000:]}\n{done.stderr[-4_000:]}", flush=True)
    return done.returncode == 0


def soak(first: int) -> bool:
    """Run random problems, one thread and one process a core."""
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, str(Path(__file__).with_name("soak.py"))]
    print(f"soak: {SOAK} seeds from {first}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        shares: list[Run] = [
            (f"soak from {start}", [*command, str(start), str(SHARE)], single)
            for start in range(first, first + SOAK, SHARE)
        ]
        return all([*pool.map(run, shares)])


def main() -> int:
    """Run what was asked; return 1 where anything failed."""
    parts = ("kernels", "seeds", "soak", "pythons")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seeds", nargs="+", type=int, default=[secrets.randbelow(10**6) for _ in range(SEEDS)])
    parser.add_argument("--soak-first", type=int, default=10_000 + secrets.randbelow(10**9))
    chosen = parser.parse_args()
    ended = [run(each) for each in runs(chosen)]
    if "soak" in chosen.only:
        ended.append(soak(chosen.soak_first))
    return int(not all(ended))


if __name__ == "__main__":
    sys.exit(main())
