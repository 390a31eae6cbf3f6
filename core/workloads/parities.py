"""Parities of binary attributes: how many more records have an even number of ones among some attributes than odd.

`dualmech.workloads` offers this builder beside all others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import Workload
from dualmech.workloads.ranges import check_dense_size
from dualmech.workloads.tabulations import as_domain

MAX_ATTRIBUTES = 24  # largest number of attributes; there are 2^24 cells then


def parity(attributes: int, order: int | Iterable[int] | None = None) -> Workload:
    """Ask the parities of sets of binary attributes: entry (S, u) is ``(-1)^(number of ones of u in S)``.

    The answer to a query is the number of records with an even number of ones among the attributes in S, less the
    number of those with an odd one. All ``2^k`` of them are the characters of k attributes, a Hadamard matrix.
    Raises `InvalidInputError` or `InputTypeError` for more than `MAX_ATTRIBUTES` attributes, an order outside 0 to k or
    given twice, a matrix too large to write out.
    Source: Gaboardi, Gallego Arias, Hsu, Roth and Wu, "Dual Query: practical private query release for high dimensional
    data", ICML 2014; the hardest workload of McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020, section 6.
    Returns `Workload`: dense, queries named like ``parity of a0, a2`` and grouped like ``order 2``, by order and then
    as the attributes are.

    Parameters
    ----------
    attributes : int
        Number k of binary attributes ``a0, a1, …``; there are ``2^k`` cells, the last attribute fastest.
    order : int or iterable of ints, optional
        Sizes of the sets: 3 for parities of three attributes, ``(0, 1, 2)`` for all of at most two; all sizes by
        default. The only set of size 0 asks the number of records.

    Examples
    --------
    >>> import dualmech as dm
    >>> pairs = dm.workloads.parity(3, order=2)
    >>> pairs.names[0], pairs.matrix[0]
    ('parity of a0, a1', array([ 1.,  1., -1., -1., -1., -1.,  1.,  1.]))
    >>> dm.workloads.parity(3).shape
    (8, 8)
    """
    count = validate.size(attributes=attributes)
    if count > MAX_ATTRIBUTES:
        raise InvalidInputError(f"attributes must be at most {MAX_ATTRIBUTES}, got {count}")
    sizes = _sizes(order, count)
    check_dense_size(sum(math.comb(count, size) for size in sizes), 1 << count)
    chosen = [axes for size in sizes for axes in itertools.combinations(range(count), size)]
    domain = as_domain([2] * count)
    ones = (np.arange(1 << count)[:, None] >> np.arange(count)[::-1]) & 1
    members = np.zeros((len(chosen), count), dtype=np.intp)
    for row, axes in zip(members, chosen, strict=True):
        row[list(axes)] = 1
    names = [
        f"parity of {', '.join(domain.names[axis] for axis in axes)}" if axes else "total" for axes in chosen
    ]
    return Workload(
        1.0 - 2.0 * (members @ ones.T % 2), names, [f"order {len(axes)}" for axes in chosen], domain
    )


def _sizes(order: int | Iterable[int] | None, count: int) -> list[int]:
    given = range(count + 1) if order is None else order
    several = validate.sequence(order=given) if hasattr(given, "__iter__") else (given,)
    wanted = [validate.index(count + 1, order=each) for each in several]
    if not wanted or len(set(wanted)) != len(wanted):
        raise InvalidInputError(f"order must be one or more distinct integers, got {wanted}")
    return wanted
