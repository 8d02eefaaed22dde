"""What a mix is, in arrays: the program of each sample and the ops it names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
Records = NDArray[Any]


class Op(IntEnum):
    """One op of one picture, uint8 to uint8; ``p`` are its float64 parameters.

    The names and roundings are Pillow's; the ``FLOAT_`` ops are torchvision's float-tensor forms, rounded to nearest.
    """

    NONE = 0
    AUTOCONTRAST = 1  # p0 cutoff, percent removed at each end
    EQUALIZE = 2
    POSTERIZE = 3  # p0 bits kept, 0..8; 0 gives black
    SOLARIZE = 4  # p0 threshold, 0..256: values at or above it are inverted
    INVERT = 5
    BRIGHTNESS = 6  # p0 factor >= 0; 1 changes nothing (also the next three)
    CONTRAST = 7
    COLOR = 8
    SHARPNESS = 9
    GRAYSCALE = 10  # (19595 R + 38470 G + 7471 B + 32768) >> 16
    MIRROR = 11  # left-right
    FLIP = 12  # top-bottom
    WARP = 13  # p = (a, b, c, d, e, f): out(X, Y) reads in(aX + bY + c, dX + eY + f), pixel centres at +0.5
    FLOAT_WARP = 14  # the same, but zeros outside are blended in instead of a hard edge
    FLOAT_POSTERIZE = 15  # p0 bits: floor(x 2^bits) / 2^bits of x in [0, 1]
    FLOAT_AUTOCONTRAST = 16
    FLOAT_GRAYSCALE = 17  # 0.2989 R + 0.587 G + 0.114 B
    HUE = 18  # p0 shift in turns, -0.5..0.5: H of Pillow's HSV, a byte, moves by trunc(255 p0) modulo 256
    SHRINK = 19  # p = (top, left, bottom, right), whole pixels: all of the picture resized into that box, black around


class Source(IntEnum):
    """Where a layer's picture comes from."""

    SAMPLE = 0  # the row's own picture
    MATE = 1  # row `index` of the batch
    POOL = 2  # picture `index` of the pool, window starting at (top, left)


class Mode(IntEnum):
    """What a step does with the picture so far, x, and its layer, y; values are levels 0..255 in float32."""

    END = 0  # the program is over; later rows are ignored
    SET = 1  # y
    LINEAR = 2  # a x + b y
    ARITHMETIC = 3  # a x + b y + 127.5 (1 - a - b): PixMix "add", a range shift to [-1, 1] and back
    GEOMETRIC = 4  # 127.5 (x / 127.5)^a max(y / 127.5, 1e-37)^b: PixMix "multiply", neutral at mid-grey
    SUM = 5  # total += a x (x stays); no layer
    TOTAL = 6  # x = total; no layer


class Clip(IntEnum):
    """What happens to the value right after a step."""

    NONE = 0
    UNIT = 1  # clip to 0..255
    CUT = 2  # clip to 0..255, then drop the fraction (a picture stored as uint8)
    WRAP = 3  # drop the fraction, then modulo 256; 0 from 2^31 on: what an unclipped float-to-uint8 cast does


class Where(IntEnum):
    """Which values inside the box a step changes; elsewhere x stays."""

    EVERYWHERE = 0
    PIXELS = 1  # a pixel keeps x where its Philox draw is below `rate`
    ELEMENTS = 2  # the same, drawn anew for each channel
    MASK = 3  # weight m = masks[index] / 255 of x, 1 - m of the new value; masks are (M, H, W, 1 or 3) uint8


OP = np.dtype([("code", np.int32), ("p", np.float64, (6,))], align=True)
LAYER = np.dtype([("source", np.int32), ("index", np.int64), ("top", np.int32), ("left", np.int32)], align=True)
STEP = np.dtype(
    [
        ("mode", np.int32),
        ("layer", np.int32),  # row of `layers`
        ("a", np.float32),
        ("b", np.float32),
        ("clip", np.int32),
        ("where", np.int32),
        ("rate", np.float32),  # PIXELS, ELEMENTS: probability that x stays
        ("stream", np.uint32),  # PIXELS, ELEMENTS: Philox stream of the draws
        ("index", np.int32),  # MASK: row of `masks`
        ("top", np.int32),  # the box, rows top..bottom and columns left..right, ends excluded
        ("left", np.int32),
        ("bottom", np.int32),
        ("right", np.int32),
    ],
    align=True,
)


@dataclass(frozen=True)
class Program:
    """The programs of N samples; all zeros is the program that changes nothing.

    A sample starts as its own picture, runs its steps in order and is rounded once, half up, to uint8; then ``finish``
    is applied.  Layer l of sample i is its source seen through ``ops[i, l, 0]``, ``ops[i, l, 1]``, ... in order, each
    rounded to uint8; an op NONE ends the chain.

    layers: (N, L) LAYER.  ops: (N, L, D) OP.  steps: (N, S) STEP.  finish: (N,) OP.
    ids: (N,) int64 and words: (3,) uint32 (seed low, seed high, epoch) key the per-pixel draws.
    masks: (M, H, W, 1 or 3) uint8, see `Where.MASK`.
    """

    layers: Records
    ops: Records
    steps: Records
    finish: Records
    ids: NDArray[np.int64]
    words: NDArray[np.uint32]
    masks: U8

    @classmethod
    def empty(
        cls,
        ids: NDArray[np.int64],
        words: NDArray[np.uint32],
        size: tuple[int, int],
        *,
        layers: int,
        chain: int,
        steps: int,
    ) -> Program:
        """All-zero programs of N = len(ids) samples of `size` (H, W), with every box the whole picture."""
        n = len(ids)
        made = cls(
            layers=np.zeros((n, layers), LAYER),
            ops=np.zeros((n, layers, chain), OP),
            steps=np.zeros((n, steps), STEP),
            finish=np.zeros(n, OP),
            ids=np.ascontiguousarray(ids, np.int64),
            words=words,
            masks=np.zeros((0, 1, 1, 1), np.uint8),
        )
        made.steps["bottom"], made.steps["right"] = size
        return made
