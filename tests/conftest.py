"""What every test runs under: one thread for linear algebra, doubles, and chance that is the same on every run."""

import gc
import os

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
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
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


def pytest_configure(config: pytest.Config) -> None:
    """Show local variables with each failure, which names the case of a test that loops over cases."""
    config.option.showlocals = True


def pytest_collection_finish() -> None:
    """Keep the modules and thousands of collected tests out of garbage collections, which would walk them all."""
    gc.collect()
    gc.freeze()
