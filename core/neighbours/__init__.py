"""Builders of neighbour matrices: which data sets privacy must keep apart.

The columns u_1 … u_s of U (d, s) are the differences of neighbouring data vectors up to sign. The squared
privacy cost of a mechanism with cost matrix ``C = B' Σ⁻¹ B`` is ``max_i u_i' C u_i``, the maximum over pairs
of neighbours in Theorem 3 of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. Since ``z' C z`` is
convex and even in z, its maximum over a polytope is at a vertex, and of two opposite vertices one is enough;
this is what keeps s small below. Every builder returns a scipy sparse CSC matrix, to pass as `neighbours`.
"""

from dualmech.neighbours.persons import contributions, participation
from dualmech.neighbours.records import add_or_remove, compositions, household, replace_one
from dualmech.neighbours.relation import Contributions, NeighboursLike, Relation

__all__ = [
    "Contributions",
    "NeighboursLike",
    "Relation",
    "add_or_remove",
    "compositions",
    "contributions",
    "household",
    "participation",
    "replace_one",
]
