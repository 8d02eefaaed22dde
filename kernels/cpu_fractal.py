"""The chaos game, compiled: the CPU form of `Backend.attractor`."""

from __future__ import annotations

from . import pixel
from .jit import compile_module, jit

_philox4x32 = compile_module(pixel).philox4x32


@jit
def attractor(maps, chances, points, words, box, out):  # type: ignore[no-untyped-def]
    """`Backend.attractor`, in float64 and in this order: the fixed point by Cramer's rule, then the plain loop."""
    height, width = out.shape
    out[:] = 0
    limits = chances * 4294967296.0  # exact, so that draws are compared as they are
    a, b, c, d, e, f = maps[0]
    det = (1.0 - a) * (1.0 - e) - b * d
    x = (c * (1.0 - e) + b * f) / det
    y = (f * (1.0 - a) + d * c) / det
    left, top = box[0], box[1]
    wide, high = box[2] - left, box[3] - top
    for block in range((points + 3) // 4):
        draws = _philox4x32(block, words[2], 0, words[3], words[0], words[1])
        for lane in range(min(4, points - 4 * block)):
            k = 0
            for j in range(len(limits) - 1):  # no early exit: a mispredicted branch costs more than the sum
                k += draws[lane] >= limits[j]
            x, y = maps[k, 0] * x + maps[k, 1] * y + maps[k, 2], maps[k, 3] * x + maps[k, 4] * y + maps[k, 5]
            column = (x - left) / wide * width
            row = (y - top) / high * height
            if 0.0 <= column < width and 0.0 <= row < height:  # compared as floats: NaN and infinity fall outside too
                out[int(row), int(column)] += 1
