"""The kernels that gather: each turn of a loop reads what it needs from anywhere and writes values of its own.

Plain Python, compiled by Numba for the CPU and by Numba-CUDA for the GPU, see `compiled`.  A body does turns start,
start + step, ... of the whole batch: those of one thread on a GPU, all of them (0, 1) on a CPU.  Pictures are flat, and
places are int64, for a batch may exceed 2 GiB; uint64 stays inside Philox, for Numba makes float64 of a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from . import pixel
from .pixel import U64, philox4x32

_RUN = 64  # squares in a partial sum: a single long one would lose more than `Backend.distances` allows


def product(a, b):  # type: ignore[no-untyped-def]
    """A product of float64 that is rounded before it is added to.  See `compiled` for compilers that would fuse it."""
    return a * b


def _taps(position, length, soft):  # type: ignore[no-untyped-def]
    """What a position reads on one axis: two pixels, how far it is from the first to the second, and their weights.

    Pixels outside repeat the edge; `soft`: they have weight 0.
    """
    position = min(max(position, -1.0), length + 1.0)  # as black as farther out, and never too large for an integer
    first = np.int64(math.floor(position - 0.5))
    second = first + 1
    one = 0.0 if soft and (first < 0 or first >= length) else 1.0
    other = 0.0 if soft and (second < 0 or second >= length) else 1.0
    near, far = min(max(first, 0), length - 1), min(max(second, 0), length - 1)
    return near, far, position - 0.5 - first, one, other


def warp(  # type: ignore[no-untyped-def]
    start, step, images, pool, rendered, buffer, offset, pitch, slot, soft, p, height, width, out
):
    """Picture slot[j] of `out` is a source picture (height, width) seen through an affine map; one pixel a turn.

    Job j reads byte offset[j] of images, pool or rendered (buffer[j] = 0, 1, 2) and on, pitch[j] bytes a row, at the
    positions of p[j] (6 float64): as `Op.FLOAT_WARP` where soft[j], else as `Op.WARP`.  `rendered` and `out` may be
    the same memory, but no job reads a picture that one writes.  float64, in the reference's very order.
    """
    pixels = np.int64(height) * np.int64(width)
    for k in range(start, pixels * slot.shape[0], step):
        j = k // pixels
        place = k - j * pixels
        row = place // width
        x, y = place - row * width + 0.5, row + 0.5
        u = product(p[j, 0], x) + product(p[j, 1], y) + p[j, 2]
        v = product(p[j, 3], x) + product(p[j, 4], y) + p[j, 5]
        to, blends = 3 * (slot[j] * pixels + place), soft[j] != 0
        if not (blends or (u >= 0.0 and u < width and v >= 0.0 and v < height)):
            out[to] = 0
            out[to + 1] = 0
            out[to + 2] = 0
            continue
        source = images
        if buffer[j] == 1:
            source = pool
        elif buffer[j] == 2:
            source = rendered
        left, right, dx, west, east = _taps(u, width, blends)
        top, bottom, dy, north, south = _taps(v, height, blends)
        above, below = offset[j] + pitch[j] * top, offset[j] + pitch[j] * bottom
        bias = 0.5 if blends else 0.0
        for c in range(3):
            one = source[above + 3 * left + c] * (north * west)
            upper = one + product(source[above + 3 * right + c] * (north * east) - one, dx)
            other = source[below + 3 * left + c] * (south * west)
            lower = other + product(source[below + 3 * right + c] * (south * east) - other, dx)
            out[to + c] = np.uint8(np.int32(upper + product(lower - upper, dy) + bias))


def bits(start, step, ids, k0, k1, epoch, stream, out):  # type: ignore[no-untyped-def]
    """See `Backend.bits`; k0, k1, epoch: its words, in uint64, as `stream`.  One block, of four numbers, a turn."""
    count = out.shape[1]
    blocks = (count + 3) // 4
    for k in range(start, ids.shape[0] * blocks, step):
        i = k // blocks
        block = k - i * blocks
        low, high = U64(ids[i] & 0xFFFFFFFF), U64(stream) | (U64(ids[i] >> 32) << U64(16))
        w0, w1, w2, w3 = philox4x32(U64(block), low, U64(epoch), high, U64(k0), U64(k1))
        to = 4 * block
        out[i, to] = w0
        if to + 1 < count:
            out[i, to + 1] = w1
        if to + 2 < count:
            out[i, to + 2] = w2
        if to + 3 < count:
            out[i, to + 3] = w3


def table(start, step, images, tables, size, out):  # type: ignore[no-untyped-def]
    """See `Backend.table`; all flat, `size` values a picture.  One value a turn."""
    for k in range(start, out.shape[0], step):
        out[k] = tables[256 * (3 * (k // size) + k % 3) + np.int64(images[k])]


def distances(start, step, maps, others, out):  # type: ignore[no-untyped-def]
    """See `Backend.distances`.  One pair a turn, all in the same order."""
    count, size = others.shape
    for k in range(start, maps.shape[0] * count, step):
        i = k // count
        j, total = k - i * count, 0.0
        for first in range(0, size, _RUN):
            part = 0.0
            for c in range(first, min(first + _RUN, size)):
                difference = np.float64(maps[i, c]) - np.float64(others[j, c])
                part += difference * difference
            total += part
        out[i, j] = total


def compiled(
    target_jit: Callable[..., Any], device_jit: Callable[..., Any], unfused: Callable[..., Any] | None = None
) -> SimpleNamespace:
    """The four bodies, compiled by `target_jit`, and what they call by `device_jit`, for the same target.

    unfused: takes the place of `product`; on a GPU, where Numba fuses a b + c, libdevice.dmul_rn.  Without it a pixel
    that reads from the very edge may turn black.  Bodies are copied: their names must lead to compiled functions.
    """
    names, made = {**vars(pixel), **globals()}, SimpleNamespace()

    def copy(function: Any) -> FunctionType:
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__)

    for helper in (pixel.philox_round, pixel.philox4x32, product, _taps):
        names[helper.__name__] = device_jit(copy(helper))
    names["product"] = unfused or names["product"]
    for body in (warp, bits, table, distances):
        setattr(made, body.__name__, target_jit(copy(body)))
    return made
