"""Workloads, and builders of the named ones: `dualmech.workloads.prefix(64)`."""

from dualmech.workloads.builders import *  # noqa: F403
from dualmech.workloads.builders import __all__ as __all__
