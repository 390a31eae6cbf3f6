"""What every test runs under: one thread for linear algebra, doubles, and chance that is the same on every run.

Each test is marked with the names of its folders, and of the family that its parameters begin with, for `make check`.
"""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Printed lines are compared: what a shell or a service says of its terminal is not for the tests.
for name in (
    *("FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS"),
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS", "JUPYTER_LINES"),
    *("MPLBACKEND", "PYTHONWARNINGS", "PYTHONOPTIMIZE"),
):
    os.environ.pop(name, None)

# The matrices here are small, and threads that wait for each other cost more than they bring.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# JAX has no doubles otherwise; a test that sets it alone would decide for all later ones.
os.environ["JAX_ENABLE_X64"] = "1"

# A test may not depend on how busy the machine is, nor on which examples were drawn.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
# With examples drawn anew: `pytest --hypothesis-profile=drawn --hypothesis-seed=SEED` (`make test-anywhere`).
settings.register_profile(
    "drawn",
    deadline=None,
    derandomize=False,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],  # of the seed, not of what is tested
)
settings.load_profile("house")


TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Make the names of folders marks."""
    folders = {name for path in TESTS.rglob("test_*.py") for name in path.relative_to(TESTS).parts[:-1]}
    for name in sorted(folders | {*FAMILIES.values()}):
        config.addinivalue_line("markers", f"{name}: tests of a folder, or of a family, of this name")


FAMILIES = {path.name: path.name for path in (TESTS / "problems").iterdir() if path.is_dir()}
FAMILIES |= {"privacy first": "fitness", "projection": "local", "estimate": "local"}
"""Folders of families, by what ids of parameters begin with."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folders and its family."""
    for item in items:
        if TESTS not in item.path.parents:  # examples of the package's own modules
            continue
        family = FAMILIES.get(item.name.partition("[")[2].rstrip("]").partition(",")[0])
        for mark in (*item.path.relative_to(TESTS).parts[:-1], *([family] if family else [])):
            item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Keep the modules and thousands of collected tests out of garbage collections, which would walk them all."""
    gc.collect()
    gc.freeze()
