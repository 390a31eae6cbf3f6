"""The hierarchical mechanism of local privacy: every user reports their node of one level of a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.crosscheck.rivals.local.protocol import FactorisedRival, MatrixRival
from dualmech.crosscheck.rivals.local.responses import hadamard_response
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.local.strategies import as_epsilon
from dualmech.validate import Array

Oracle = Callable[[int, float], FactorisedRival]
"""What reports one of several nodes at ε, such as `hadamard_response` or `subset_selection`."""


class MixedRival(FactorisedRival):
    """Every user draws one of several fixed mechanisms, which sees no more than a group of user types.

    - `parts`: drawn with equal probabilities, all of one ε;
    - `groups`: for each part, the group from 0 to k - 1 that a user type belongs to, k the user types of the part; all
      groups of one part have the same number of members.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> halves = rivals.MixedRival(
    ...     [rivals.subset_selection(4, 1.0), rivals.subset_selection(2, 1.0)], [[0, 1, 2, 3], [0, 0, 1, 1]]
    ... )
    >>> halves.respond(3, rng=0)
    (1, array([False,  True]))
    """

    def __init__(self, parts: Sequence[FactorisedRival], groups: Sequence[npt.ArrayLike]) -> None:
        if not parts or len(groups) != len(parts):
            raise InvalidInputError(
                f"groups must be given for each of the parts, got {len(groups)} for {len(parts)}"
            )
        if any(not isinstance(part, FactorisedRival) for part in parts):
            raise InputTypeError("parts must be fixed mechanisms with a strategy matrix")
        if len({part.epsilon for part in parts}) > 1:
            raise InvalidInputError("parts must have one epsilon, got several")
        self.parts, self.epsilon = tuple(parts), parts[0].epsilon
        self.groups = tuple(np.asarray(group, dtype=np.intp) for group in groups)
        self.user_types = len(self.groups[0])
        for part, group in zip(self.parts, self.groups, strict=True):
            members = np.bincount(group, minlength=part.user_types)
            if (
                len(group) != self.user_types
                or len(members) != part.user_types
                or members.min() != members.max()
            ):
                raise InvalidInputError(
                    f"groups must put {self.user_types} user types into {part.user_types} groups of one size"
                )

    def gram(self) -> Array:
        """Return the mean over the parts of ``A' G A``, per member of a group, A (k, n) the groups' indicators."""
        total = np.zeros((self.user_types, self.user_types))
        for part, group in zip(self.parts, self.groups, strict=True):
            total += part.gram()[np.ix_(group, group)] * part.user_types / self.user_types
        return np.asarray(total / len(self.parts))

    def second_moments(self, form: Array) -> Array:
        """Return ``Σ_o Q_ou p_o' K p_o`` (n,) of a symmetric K (n, n)."""
        total = np.zeros(self.user_types)
        for part, group in zip(self.parts, self.groups, strict=True):
            sums = (np.arange(part.user_types)[:, None] == group) * (part.user_types / self.user_types)
            total += part.second_moments(sums @ form @ sums.T)[group]
        return np.asarray(total / len(self.parts))

    def respond(self, user: int, rng: np.random.Generator | int | None = None) -> tuple[int, object]:
        """Draw which part one user of a type takes, and what they report there, for study."""
        chosen, generator = self._type(user), validate.generator(rng=rng)
        index = int(generator.integers(len(self.parts)))
        return index, self.parts[index].respond(int(self.groups[index][chosen]), generator)

    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw ``Σ p_o`` (n,) over the reports of ``x_u`` users of each type."""
        counts, generator = self._counts(x), validate.generator(rng=rng)
        shares = np.full(len(self.parts), 1 / len(self.parts))
        taken = np.array([generator.multinomial(count, shares) for count in counts])
        total = np.zeros(self.user_types)
        for part, group, people in zip(self.parts, self.groups, taken.T, strict=True):
            told = part.evidence(np.bincount(group, people, part.user_types), generator)
            total += told[group] * part.user_types / self.user_types
        return total

    def __repr__(self) -> str:
        return (
            f"MixedRival({len(self.parts)} parts, {self.user_types} user types, epsilon={self.epsilon:.6g})"
        )


def hierarchical_response(
    user_types: int, epsilon: float, branching: int = 4, oracle: Oracle = hadamard_response
) -> FactorisedRival:
    """Let every user draw a level of a tree and report their node of it by a frequency oracle.

    The levels are intervals of 1, b, b², … cells while shorter than all; the last interval of a level is shorter where
    the numbers do not divide. The sum of all cells is known and never asked.
    Source: Cormode, Kulkarni and Srivastava, "Answering range queries under local differential privacy", PVLDB 12(10),
    2019.
    Returns `MatrixRival` or MixedRival: the former where the oracle's reports can be listed.

    Parameters
    ----------
    branching : int
        b, at least 2.
    oracle : callable
        Takes a number of nodes and ε to a fixed mechanism that reports one. Where it is no `MatrixRival`, the nodes
        of a level must be of one size, as where n is a power of b.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> tree = rivals.hierarchical_response(64, 1.0)
    >>> sets = rivals.hierarchical_response(64, 1.0, oracle=rivals.subset_selection)
    >>> prefixes = dm.workloads.prefix(64)
    >>> tree, round(tree.sample_complexity(prefixes)), round(sets.sample_complexity(prefixes))
    (MatrixRival(168 outputs x 64 user types, epsilon=1), 2848, 1468)
    """
    size, factor = validate.size(user_types=user_types), validate.size(branching=branching)
    if size < 2 or factor < 2:
        raise InvalidInputError(f"user_types and branching must be at least 2, got {size} and {factor}")
    if not callable(oracle):
        raise InputTypeError(f"oracle must be callable, got {type(oracle).__name__}")
    asked, lengths = as_epsilon(epsilon), [1]
    while lengths[-1] * factor < size:
        lengths.append(lengths[-1] * factor)
    groups = [np.arange(size) // length for length in lengths]
    parts = [oracle(int(group[-1]) + 1, asked) for group in groups]
    listed = [part for part in parts if isinstance(part, MatrixRival)]
    if len(listed) < len(parts):
        return MixedRival(parts, groups)
    stacked = [part.strategy[:, group] for part, group in zip(listed, groups, strict=True)]
    return MatrixRival(np.vstack(stacked) / len(stacked), asked)
