"""What stands out in the pictures of a batch: maps without holes, mates by the distance of maps, and peaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels import F32, U8, Program, backend_for
from ..rng import F64, Ids
from ..saliency import finite
from ..types import Batch
from ._blend import check
from ._cells import Ints, checked_maps

Bools = NDArray[np.bool_]
_VALUES = 1 << 18  # of enlarged maps at a time: they are read again while they are in a core's cache


class Maps(NamedTuple):
    """values: (N, h, w) float32, finite: unknown cells have the least of the known values, 0 if none is known.

    known: (N,) whether any cell is.  uneven: (N,) whether the values differ.
    """

    values: F32
    known: Bools
    uneven: Bools


def check_chance(name: str, value: float) -> None:
    """A probability."""
    ok = isinstance(value, int | float | np.floating) and 0 <= value <= 1
    check(ok, name, value, f"0 <= {name} <= 1", f"pass {name}=1.0 to mix every sample")


def maps_of(batch: Batch) -> Maps | None:
    """The maps of a batch; None if it has none or nothing is known.  Raises ValueError for those of a wrong shape."""
    if batch.maps is None:
        return None
    maps = np.asarray(batch.maps)
    if maps.shape[:1] != batch.images.shape[:1]:
        checked_maps(batch)  # which says what is wrong; it is not asked for all maps, for it copies them
    values = finite(maps)
    flat = values.reshape(len(values), -1)
    uneven: Any = flat.min(1) < flat.max(1)
    known, even = uneven.copy(), np.flatnonzero(~uneven)
    known[even] = np.isfinite(maps[even]).any((1, 2))
    return Maps(values, known, uneven) if known.any() else None


def with_masks(program: Program, masks: U8) -> Program:
    """The program with a mask (N, H, W) for each of its samples."""
    p = program
    p.steps["index"] = np.arange(len(masks))[:, None]
    return Program(p.layers, p.ops, p.steps, p.finish, p.ids, p.words, masks[..., None])


def enlarged(maps: F32, size: tuple[int, int]) -> Iterator[tuple[slice, F32]]:
    """A few rows of `maps` (N, h, w) at a time, and what they are at `size`, in memory that is used again."""
    rows = max(1, _VALUES // (size[0] * size[1]))
    large = np.empty((min(rows, len(maps)), *size), np.float32)
    for low in range(0, len(maps), rows):
        part = maps[low : low + rows]
        backend_for(maps).enlarge(part, large, 0, len(part))
        yield slice(low, low + len(part)), large[: len(part)]


def peaks(maps: F32, size: tuple[int, int]) -> Ints:
    """(N, 2) row and column of the pixel with the largest value of each map at `size`, the first of several."""
    found = np.empty(len(maps), np.int64)
    for rows, large in enlarged(maps, size):
        found[rows] = large.reshape(len(large), -1).argmax(1)
    return np.stack(np.divmod(found, size[1]), 1)


def levels_of(maps: F32, size: tuple[int, int]) -> U8:
    """(N, H, W) the levels of maps at `size`, see `Backend.quantise`."""
    levels = np.empty((len(maps), *size), np.uint8)
    for rows, large in enlarged(maps, size):
        backend_for(maps).quantise(large, levels[rows], 0, len(large))
    return levels


def group_distances(maps: F32, order: Ids, usable: Bools, group: int) -> tuple[Ids, F64]:
    """The mix groups (G, g), rows of the batch, and (G, g, g) the squared distances of their maps.

    Each `group` rows in `order` (N,) are a group; the last one may end with -1.  NaN where there is no pair: of a row
    with itself, or with one that is not `usable` (N,).
    """
    count, width = -(-len(order) // group), min(group, len(order))
    members = np.full((count, width), -1)
    members.reshape(-1)[: len(order)] = order
    away = np.full((count, width, width), np.nan)
    flat, backend = maps.reshape(len(maps), -1), backend_for(maps)
    for number, rows in enumerate(members):
        places = np.flatnonzero((rows >= 0) & usable[rows])
        part = flat[rows[places]]
        found = np.empty((len(part), len(part)))
        backend.distances(part, part, found, 0, len(part))
        away[number][np.ix_(places, places)] = found
    away[:, range(width), range(width)] = np.nan
    return members, away


def nearest(away: F64) -> Ints:
    """(G, g) place in the group of the mate at the least distance, the first of several; the own one if there is none.

    away: (G, g, g), NaN where there is no pair.
    """
    distance = np.where(np.isnan(away), np.inf, away)
    alone = np.isinf(distance).all(2)
    return np.where(alone, np.arange(away.shape[1]), distance.argmin(2))


def farthest_cycle(away: F64) -> Ints:
    """(G, g) place of the next one in a circle through the group, greedily along the greatest distances.

    It starts with the pair farthest apart, i then j, the first in row-major order of several; from each one the
    farthest that was not met yet comes next, the first of several, and the last one closes the circle.  So a group of
    two or more is permuted and nobody stays, whatever the distances.

    away: (G, g, g), NaN where there is no pair; whoever has none is left out, and next to itself.
    """
    far = np.where(np.isnan(away), -1, away)
    every, width = np.arange(len(far)), far.shape[1]
    free: Any = (far >= 0).any(2)
    start, at = np.divmod(far.reshape(len(far), -1).argmax(1), width)
    after = np.tile(np.arange(width), (len(far), 1))
    after[every, start] = at
    free[every, start] = free[every, at] = False
    for _ in range(width - 2):
        going = free.any(1)
        after[every, at] = np.where(going, np.where(free, far[every, at], -1).argmax(1), start)
        at = np.where(going, after[every, at], at)
        free[every, at] = False
    after[every, at] = start
    return after


def mates_of(members: Ids, places: Ints, count: int) -> Ids:
    """(N,) rows of the batch, N = `count`, from places (G, g) in the groups `members` (G, g)."""
    mates, filled = np.empty(count, np.int64), members >= 0
    mates[members[filled]] = np.take_along_axis(members, places, 1)[filled]
    return mates
