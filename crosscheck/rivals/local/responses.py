"""Fixed mechanisms of few outputs: randomised response, Hadamard response, and one Fourier coefficient per user."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from dualmech import validate, workloads
from dualmech.crosscheck.rivals.local.protocol import MatrixRival
from dualmech.errors import InvalidInputError
from dualmech.geometry.local import patterns
from dualmech.geometry.local.strategies import as_epsilon

MAX_ATTRIBUTES = 12
"""Largest number of binary attributes whose coefficients are written out, for 2^12 user types."""


def randomised_response(user_types: int, epsilon: float) -> MatrixRival:
    """Report the own type with a probability e^ε times that of every other: ``Q = (11' + c I) / (n + c)``.

    Source: Warner, Journal of the American Statistical Association 60, 1965; example 2.7 of McKenna, Maity, Mazumdar
    and Miklau, PVLDB 13(11), 2020. On histograms each user's variance is ``(n-1) (n + 2c) / c²`` with ``c = e^ε - 1``.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> response = rivals.randomised_response(8, np.log(3))
    >>> response.user_variances(dm.workloads.identity(8))[0].round(9), (8 - 1) * (8 + 2 * 2) / 2**2
    (np.float64(21.0), 21.0)
    """
    size = validate.size(user_types=user_types)
    return MatrixRival(patterns.rows(np.eye(size, dtype=bool), as_epsilon(epsilon)), epsilon)


def hadamard_response(user_types: int, epsilon: float, blocks: int | None = None) -> MatrixRival:
    """Report a random column of a Hadamard matrix, those where the own row holds +1 being e^ε times as likely.

    The outputs are B blocks of b, a power of two. Each type has its own row of the Hadamard matrix of one block, never
    the first; the b/2 outputs of this block where the row is +1 are e^ε times as likely as all others.
    Source: Acharya, Sun and Zhang, "Hadamard response: estimating distributions privately, efficiently, and with little
    communication", AISTATS 2019. b is the least power of two above ``n / B``.

    With `blocks`, B, by default ``2^(⌈log2 min(e^ε, 2n)⌉ - 1)``, the authors' rule; 1 is their scheme for high privacy.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> rivals.hadamard_response(6, 1.0), rivals.hadamard_response(7, 0.5).strategy.shape
    (MatrixRival(8 outputs x 6 user types, epsilon=1), (8, 7))
    """
    size, growth = validate.size(user_types=user_types), math.exp(as_epsilon(epsilon))
    rule = 1 << max(math.ceil(math.log2(min(growth, 2 * size))) - 1, 0)
    count = rule if blocks is None else validate.size(blocks=blocks)
    length = 1 << math.ceil(math.log2(size / count + 1))
    rows = scipy.linalg.hadamard(length)[1:] > 0
    likely = np.kron(np.eye(count, dtype=bool), rows.T)[:, :size]
    return MatrixRival(np.where(likely, growth, 1.0) / (length * (count + (growth - 1) / 2)), epsilon)


def fourier_response(attributes: int, epsilon: float, order: int | None = None) -> MatrixRival:
    """Report the sign of one Fourier coefficient of the own cell, drawn at random, by randomised response.

    The cells are those of k binary attributes, the coefficients their parities (`dualmech.workloads.parity`). Marginals
    on at most `order` attributes need no other.
    Source: Cormode, Kulkarni and Srivastava, "Marginal release under local differential privacy", SIGMOD 2018 (InpHT).

    Parameters
    ----------
    attributes : int
        k; there are ``2^k`` user types.
    order : int, optional
        Largest number of attributes of a parity; by default all. The constant is known and never asked.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> rivals.fourier_response(3, 1.0, order=2)
    MatrixRival(12 outputs x 8 user types, epsilon=1)
    """
    count, growth = validate.size(attributes=attributes), math.exp(as_epsilon(epsilon))
    largest = count if order is None else validate.size(order=order)
    if count > MAX_ATTRIBUTES:
        raise InvalidInputError(f"attributes must be at most {MAX_ATTRIBUTES}, got {count}")
    if largest > count:
        raise InvalidInputError(f"order must be from 1 to {count}, the attributes, got {largest}")
    signs = workloads.parity(count, range(1, largest + 1)).dense()
    outputs = np.vstack([signs, -signs]) > 0
    return MatrixRival(np.where(outputs, growth, 1.0) / ((growth + 1) * len(signs)), epsilon)
