"""Workloads, and builders of the named ones: `dualmech.workloads.prefix(64)`."""

from dualmech.workloads import builders
from dualmech.workloads.builders import *  # noqa: F403
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.unions import UnionWorkload

__all__ = ["CircularWorkload", "MarginalWorkload", "ProductWorkload", "TableWorkload", "UnionWorkload"]
__all__ += builders.__all__
