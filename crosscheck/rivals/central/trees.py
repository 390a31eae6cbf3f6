"""The hierarchical mechanism: which tree of interval sums to measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.crosscheck.rivals.central.intervals import IntervalTree
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.workloads.base import Workload, check_workload

MAX_BRANCHING = 64
"""`best_branching` tries every factor up to this one, above it the powers of two, and the number of cells."""


def interval_tree(cells: int, branching: int, root: bool = True) -> IntervalTree:
    """Return the tree of `branching`: intervals of 1, b, b², … cells while shorter than all, then the root.

    The last interval of a level is shorter where the numbers do not divide, so the tree exists for any number
    of cells, and every cell is counted once a level.

    - `cells`: number of cells d;
    - `branching`: branching factor b, at least 2; d and more give the cells and their total;
    - `root`: whether the sum of all cells is a node.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> tree = rivals.interval_tree(20, branching=4)
    >>> [(int(a), int(b)) for a, b in zip(tree.first, tree.stop) if b - a > 4]
    [(0, 16), (0, 20)]
    """
    count, factor = validate.size(cells=cells), validate.size(branching=branching)
    if factor < 2:
        raise InvalidInputError(f"branching must be an integer of at least 2, got {factor}")
    widths, width = [], factor
    while width < count:
        widths.append(width)
        width *= factor
    if root and count > 1:
        widths.append(count)
    return IntervalTree.of_widths(count, widths)


def square_root_tree(cells: int) -> IntervalTree:
    """Return the tree of FFU's experiments: cells, ``s = ⌊√d⌋`` intervals of s cells each, and the root.

    This is the tree of the code published with the paper. Where d is no square, the last ``d - s²`` cells are
    counted by themselves and the root only. The ratio of its largest variance to that of input perturbation
    does not depend on the optimum, and is what the paper prints in Tables 4 and 8 to 11, and in most rows of
    Tables 5 to 7. (There, Table 7 at d = 64 and 128 fits the cells and their total, Tables 5 and 6 at d = 128
    fit intervals of four.) It is not the best branching: see `best_branching`.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> rivals.square_root_tree(6).matrix.toarray()[6:]
    array([[1., 1., 0., 0., 0., 0.],
           [0., 0., 1., 1., 0., 0.],
           [1., 1., 1., 1., 1., 1.]])
    """
    count = validate.size(cells=cells)
    side = int(np.sqrt(count))
    return IntervalTree(count, [(side * i, side * (i + 1)) for i in range(side)] + [(0, count)])


def best_branching(
    workload: Workload, targets: npt.ArrayLike = 1.0, root: bool = True, among: Sequence[int] | None = None
) -> int:
    """Return the branching factor whose tree has the least largest variance, in units of the targets.

    Parameters
    ----------
    targets : float or (m,) array
        Variance targets c > 0; the ratios ``variance_j / c_j`` are compared at equal privacy cost.
    root : bool
        Whether the trees have the sum of all cells as a node.
    among : sequence of ints, optional
        Factors to try, each at least 2; by default 2, 3, …, 64, 128, 256, … up to d, and d. The
        smallest wins a tie.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> rivals.best_branching(dm.workloads.all_range(64))
    3
    """
    queries, cells = check_workload(workload).shape
    goals = validate.per_item(queries, targets=targets)
    factors = _candidates(cells) if among is None else sorted(among)
    if not factors:
        raise InvalidInputError("among must hold at least one branching factor, got none")
    ratios = [(interval_tree(cells, b, root).variances(workload) / goals).max() for b in factors]
    return factors[int(np.argmin(ratios))]


def hierarchical(
    workload: Workload,
    cost: float,
    branching: int | None = None,
    targets: npt.ArrayLike = 1.0,
    tree: IntervalTree | None = None,
) -> LinearGaussianMechanism:
    """Add equal noise to a tree of interval sums over the cells in their order, and use it consistently ("HM").

    The cells get the least-squares estimate: ``Σ = (levels / cost) (T' T)⁻¹``, where a cell is counted by at
    most `levels` nodes.

    - `branching`: factor of `interval_tree`, root included; by default that of `best_branching`;
    - `targets`: variance targets for the choice of the best factor; nothing else depends on them;
    - `tree`: another tree, in place of a branching: `square_root_tree` for that of FFU's experiments.

    Hay, Rastogi, Miklau and Suciu, PVLDB 3(1), 2010; Qardaji, Yang and Li, "Understanding hierarchical methods for
    differentially private histograms", PVLDB 6(14), 2013. FFU, section 7 (see `input_perturbation`).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.all_range(64)
    >>> ratios = [
    ...     rivals.hierarchical(workload, cost=1).variances(workload).max(),
    ...     rivals.hierarchical(workload, cost=1, branching=2).variances(workload).max(),
    ...     rivals.input_perturbation(workload, cost=1).variances(workload).max(),
    ... ]
    >>> [round(float(ratio), 2) for ratio in ratios]
    [14.99, 15.1, 64.0]
    """
    cells, spent = check_workload(workload).shape[1], validate.positive_number(cost=cost)
    if tree is None:
        chosen = best_branching(workload, targets) if branching is None else branching
        return interval_tree(cells, chosen).mechanism(spent)
    if branching is not None:
        raise InvalidInputError("hierarchical takes a branching or a tree, got both")
    if not isinstance(tree, IntervalTree):
        raise InputTypeError(f"tree must be an IntervalTree, got {type(tree).__name__}")
    if tree.cells != cells:
        raise InvalidInputError(f"tree must have {cells} cells, as the workload, got {tree.cells}")
    return tree.mechanism(spent)


def _candidates(cells: int) -> list[int]:
    largest = max(cells, 2)
    powers = [2**power for power in range(largest.bit_length()) if 2**power > MAX_BRANCHING]
    return sorted({b for b in [*range(2, MAX_BRANCHING + 1), *powers, largest] if b <= largest})
