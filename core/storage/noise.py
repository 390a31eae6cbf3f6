"""Mechanisms of every structure as the parts of a file (``docs/formats.md``); their privacy is computed anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.files import domains
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.causal import CausalMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import StreamMechanism
from dualmech.neighbours import Relation
from dualmech.problems import strategies
from dualmech.storage.codec import KINDS, Kind, parts_of
from dualmech.validate import Array
from dualmech.workloads.unions import UnionWorkload

CAUSAL: dict[str, Callable[..., CausalMechanism]] = {
    "Toeplitz": strategies.toeplitz,
    "Banded": strategies.banded,
    "Tree": strategies.tree,
}
"""What makes a causal strategy of its parts, by the name of its form."""

BLOCK_PARTS = ("key_sizes", "key_pairs", "shapes", "moves", "covariances")


def _blocks(mechanism: BlockMechanism) -> Mapping[str, Any]:
    """Return the levels of marginal tables; of other tables the noise on every block, one after another."""
    if mechanism.of_plain_tables:
        return mechanism._level_arrays()
    pieces = mechanism.pieces
    return {
        "workload": mechanism.workload,
        "neighbours": None if mechanism.neighbours is None else str(mechanism.neighbours),
        "key_sizes": np.array([len(key) for key in pieces], dtype=np.int64),
        "key_pairs": np.array([pair for key in pieces for pair in key], dtype=np.int64).reshape(-1, 2),
        "shapes": np.array([piece.moves.shape for piece in pieces.values()], dtype=np.int64).reshape(-1, 2),
        "moves": _joined([piece.moves for piece in pieces.values()]),
        "covariances": _joined([piece.covariance for piece in pieces.values()]),
    }


def _joined(matrices: list[Array]) -> Array:
    return np.concatenate([np.zeros(0), *(each.ravel() for each in matrices)])


def _blocks_made(workload: Any = None, neighbours: Any = None, **parts: Any) -> BlockMechanism:
    relation = {} if neighbours is None else {"neighbours": np.array(str(neighbours))}
    given = {name: np.asarray(value) for name, value in parts.items()}
    if workload is None:
        _require(given, ("levels", *domains.KEYS))
        return BlockMechanism._of_level_arrays({**given, **relation})
    if not isinstance(workload, UnionWorkload):
        raise InvalidInputError("workload must be a union of tables")
    _require(given, BLOCK_PARTS)
    own = None if neighbours is None else Relation.of(str(neighbours))
    return BlockMechanism._of_pieces(workload, own, _noise(given))


def _require(given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidInputError(f"needs the array {missing[0]!r}")


def _noise(given: Mapping[str, Array]) -> dict[Key, tuple[Array, Array]]:
    """Return the basis and the covariance of every block, from arrays that must fit together to the last number."""
    sizes, shapes = given["key_sizes"], given["shapes"]
    whole = all(given[name].dtype.kind in "iu" for name in ("key_sizes", "key_pairs", "shapes"))
    if (
        not whole
        or sizes.ndim != 1
        or shapes.shape != (len(sizes), 2)
        or np.any(sizes < 0)
        or np.any(shapes < 1)
    ):
        raise InvalidInputError(
            "key_sizes, key_pairs and shapes must be whole numbers, a key and a shape per block"
        )
    pairs, rows = given["key_pairs"], shapes[:, 0]
    wanted = {
        "key_pairs": (int(sizes.sum()), 2),
        "moves": (int(np.prod(shapes, axis=1).sum()),),
        "covariances": (int((rows**2).sum()),),
    }
    for name, shape in wanted.items():
        if given[name].shape != shape:
            raise InvalidInputError(f"{name} must have shape {shape}, got {given[name].shape}")
    ends = (np.cumsum(each) for each in (sizes, np.prod(shapes, axis=1), rows**2))
    found: dict[Key, tuple[Array, Array]] = {}
    for size, (r, b), *stops in zip(sizes.tolist(), shapes.tolist(), *ends, strict=True):
        key = tuple((int(axis), int(each)) for axis, each in pairs[stops[0] - size : stops[0]])
        if key in found:
            raise InvalidInputError(f"key_pairs must name each block once, {key} comes twice")
        moves = given["moves"][stops[1] - r * b : stops[1]].reshape(r, b)
        found[key] = moves, given["covariances"][stops[2] - r * r : stops[2]].reshape(r, r)
    return found


def _causal(mechanism: CausalMechanism) -> Mapping[str, Any]:
    strategy: Any = mechanism._strategy
    parts = {each.name: getattr(strategy, each.name) for each in fields(strategy)}
    return {"form": type(strategy).__name__, "level": mechanism.level, **parts}


def _causal_made(form: Any, level: Any, **parts: Any) -> CausalMechanism:
    if form not in CAUSAL:
        raise InvalidInputError(f"form must be one of {', '.join(CAUSAL)}, got {form!r}")
    return CAUSAL[form](**parts).scaled(level)


def _split(mechanism: SplitMechanism) -> Mapping[str, Any]:
    point = mechanism.point
    return {"workload": mechanism.workload, "shapes": tuple(point.shapes), "noise": point.levels}


def _stream(mechanism: StreamMechanism) -> Mapping[str, Any]:
    point, names = mechanism.point, ("neighbour_weights", "query_weights", "level")
    return {"workload": mechanism.workload} | {name: getattr(point, name) for name in names}


def _stream_made(
    workload: Any, neighbour_weights: Array, query_weights: Array, level: float
) -> StreamMechanism:
    return StreamMechanism(workload, neighbour_weights, query_weights, level)  # a level that lacks is not 1


KINDS |= {
    "BlockMechanism": Kind(_blocks, _blocks_made),
    "ProductMechanism": Kind(parts_of("factors"), ProductMechanism),
    "SplitMechanism": Kind(_split, SplitMechanism),
    "StreamMechanism": Kind(_stream, _stream_made),
    "CausalMechanism": Kind(_causal, _causal_made),
}
