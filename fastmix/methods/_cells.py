"""Maps of a few cells over a picture: where a window has the largest sum, and which pixels a cell has.

A map has h x w cells of equal size, whatever the picture's: cell (i, j) of an H x W picture spans rows i H / h to
(i + 1) H / h, and columns likewise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rng import F64
from ..types import Batch

Ints = NDArray[np.int64]
_EXACT = 52  # bits of a whole number that float64 sums keep exact
_MOST = 30  # bits of a value


def checked_maps(batch: Batch) -> F64 | None:
    """The batch's maps (N, h, w) as float64, NaN where they are not finite; None if it has none.

    Raises ValueError if they are not numbers of that shape, one map a picture.
    """
    if batch.maps is None:
        return None
    maps: Any = np.asarray(batch.maps)
    if maps.ndim != 3 or len(maps) != len(batch.images) or 0 in maps.shape[1:] or maps.dtype.kind not in "fiu":
        raise ValueError(
            f"maps are {maps.dtype} {maps.shape} for {len(batch.images)} pictures, expected numbers (N, h, w), one map "
            "each, NaN where it is unknown"
        )
    maps = maps.astype(np.float64)
    return np.where(np.isfinite(maps), maps, np.nan)


def best_windows(maps: F64, sides: Ints, size: tuple[int, int]) -> Ints:
    """(N, 2) top and left of the window with the largest sum of each map, the first in row-major order of several.

    Along an axis the sum is linear between places where an edge of the window meets an edge of a cell.  So the largest
    sum, and the first place that has it, is at one of these, rounded down or up to a pixel.  Values are rounded to
    2^-30 of the power of two above their map's peak (coarser where large pictures have cells of broken pixels), so that
    sums are of whole numbers and exact: equal ones tie.

    maps: (N, h, w) finite.  sides: (N, 2) height and width of the windows, 1..H and 1..W.  size: (H, W).
    """
    starts = [_starts(sides[:, axis], size[axis], maps.shape[1 + axis]) for axis in (0, 1)]
    down, across = (_overlaps(starts[axis], sides[:, axis], size[axis], maps.shape[1 + axis]) for axis in (0, 1))
    largest = math.prod(math.lcm(length, cells) for length, cells in zip(size, maps.shape[1:], strict=True))
    bits = min(_MOST, _EXACT - largest.bit_length())
    exponent = np.frexp(np.abs(maps).max((1, 2), keepdims=True))[1]
    sums = down @ np.rint(np.ldexp(maps, bits - exponent)) @ across.swapaxes(1, 2)
    best = sums.reshape(len(maps), -1).argmax(1)
    row, column = np.divmod(best, sums.shape[2])
    every = np.arange(len(maps))
    return np.stack([starts[0][every, row], starts[1][every, column]], 1)


def peak_windows(maps: F64, sides: Ints, size: tuple[int, int]) -> Ints:
    """(N, 2) top and left of windows around the centre of the largest cell, the first of several, moved inside.

    Arguments as in `best_windows`.
    """
    cells = np.array(maps.shape[1:])
    peak = np.stack(np.divmod(maps.reshape(len(maps), -1).argmax(1), cells[1]), 1)
    first = ((2 * peak + 1) * np.array(size) - sides * cells + cells) // (2 * cells)
    return np.asarray(first.clip(0, np.array(size) - sides))


def cell_edges(length: int, cells: int) -> Ints:
    """(cells + 1,) pixels at which cells begin, rounded down: a division of `length` pixels."""
    return np.arange(cells + 1) * length // cells


def _starts(side: Ints, length: int, cells: int) -> Ints:
    """(N, K) pixels at which the largest sum may be, in order; all of them if those are no fewer."""
    edges = np.arange(cells + 1) * length
    whole = np.union1d(edges // cells, -(-edges // cells))
    last = (length - side)[:, None]
    if 2 * len(whole) > length:
        return np.minimum(np.arange(length), last)
    starts = np.concatenate([np.broadcast_to(whole, (len(side), len(whole))), whole - side[:, None]], 1)
    return np.sort(starts.clip(0, last), 1)


def _overlaps(starts: Ints, side: Ints, length: int, cells: int) -> F64:
    """(N, K, cells) how much of each cell windows cover along an axis, in whole parts of a pixel."""
    common = math.gcd(length, cells)
    pixel, cell = cells // common, length // common
    begin = (starts * pixel)[..., None].astype(np.float64)
    end = begin + (side * pixel)[:, None, None]
    edges = np.arange(cells + 1.0) * cell
    return np.asarray(np.maximum(np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1]), 0))
