"""dualmech.crosscheck: both layers before the judge, beside the papers. This folder imports under that name.

It also holds the ``dualmech`` command (`dualmech.crosscheck.command.main`) and the benchmarks.
"""

from dualmech.crosscheck.agreement import Agreement, Comparison, compare
from dualmech.crosscheck.judging import Judgement, covariance_of_strategy, judge

__all__ = ["Agreement", "Comparison", "Judgement", "compare", "covariance_of_strategy", "judge"]
