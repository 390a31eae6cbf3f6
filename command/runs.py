"""Runs of a sweep, in the words of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dualmech import accounting
from dualmech.command import inputs
from dualmech.command.request import Request
from dualmech.errors import InvalidInputError
from dualmech.problems.base import AnyProblem
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.studies.sweeps.running import LOCAL, RANDOM, Run
from dualmech.validate import Array
from dualmech.workloads.base import Workload


@dataclass(frozen=True, slots=True)
class PosedRun(Run):
    r"""A run that the command line poses.

    Examples
    --------
    >>> run = PosedRun("fitness", "prefix:4", "prefix:4")
    >>> run.problem == PosedRun("fitness", "prefix:4", "prefix:4", layer="reference", backend="CLARABEL").problem
    True
    >>> row = run.row()
    >>> row["status"], round(row["lower"], 4), round(row["upper"], 4), row["cells"]
    ('CERTIFIED', 1.7586, 1.7586, 4)

    A grid states many:

    >>> import os, tempfile
    >>> from dualmech import files
    >>> from dualmech.studies.sweeps.grid import read_grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "grid.toml")
    ...     with files.atomic_write(path) as handle:
    ...         _ = handle.write(b'workloads = "prefix:{size}"\nsizes = [4, 8]\nlayers = ["fast", "reference"]')
    ...     [(run.workload, run.layer) for run in read_grid(path, PosedRun)][:3]
    [('prefix:4', 'fast'), ('prefix:4', 'reference'), ('prefix:8', 'fast')]
    """

    def read(self) -> Workload:
        return inputs.read_workload(self.workload)

    def request(self, workload: Workload | str, targets: Array | str | None = None) -> Request:
        """Return what the command line would take for this."""
        return Request(
            workload,
            self.family,
            targets=targets,
            rho=None if self.rho is None else Fraction(self.rho),
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            t1=self.t1,
        )

    def state(self, workload: Workload, targets: Array | None = None) -> tuple[AnyProblem, float]:
        if self.family == LOCAL:
            return LocalStrategy(workload, self.epsilon or 0.0), 1.0
        values: Array | str | None = self.targets if targets is None else targets
        if targets is None and self.targets == RANDOM:
            values = self.drawn(workload)
        request = self.request(workload, values)
        problem = request.state()
        return problem, request.terms.divisor(problem)

    def check(self) -> None:
        workload = self.read()
        if self.family != LOCAL:
            self.request(workload, None if self.targets == RANDOM else self.targets)
            if self.neighbours is not None:
                inputs.read_neighbours(self.neighbours)
            if self.epsilon is not None and self.delta is not None:
                accounting.zcdp_rho(self.epsilon, self.delta)
        elif self.neighbours is not None:
            raise InvalidInputError("neighbours are for central privacy; local privacy has none")
        if self.targets is not None and self.targets != RANDOM:
            inputs.read_numbers(self.targets, "targets", workload)
