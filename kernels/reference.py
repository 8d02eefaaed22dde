"""The living definition of every kernel: clear, slow NumPy.  Other backends are tested against it.

Programs are folded in float32, one rounding an operation and no fused multiply-add, so that a backend can repeat the
arithmetic bit for bit; only a power may differ in its last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import F32, F64, U8, Clip, Mode, Program, Records, Source, Where, pixel
from . import reference_ops as ops_
from . import reference_saliency as saliency_

_MIDDLE = np.float32(127.5)
_SMALLEST = np.float32(1e-37)
_UNIT = np.float32(255)


def crop_resize(sources: Sequence[U8], boxes: F64, flips: NDArray[np.bool_], out: U8, lo: int, hi: int) -> None:
    """See `Backend.crop_resize`."""
    for i in range(lo, hi):
        picture = ops_.resize(sources[i], boxes[i], *out.shape[1:3])
        out[i] = picture[:, ::-1] if flips[i] else picture


def op(images: U8, ops: Records, out: U8, lo: int, hi: int) -> None:
    """See `Backend.op`."""
    for i in range(lo, hi):
        out[i] = ops_.apply(images[i], ops[i])


def warp(images: U8, matrices: F64, out: U8, lo: int, hi: int) -> None:
    """See `Backend.warp`."""
    for i in range(lo, hi):
        out[i] = ops_.warp(images[i], matrices[i])


def filter3x3(images: U8, weights: F32, out: U8, lo: int, hi: int) -> None:
    """See `Backend.filter3x3`.  float32; the lowest row of weights is summed first, each row from left to right."""
    for i in range(lo, hi):
        out[i] = ops_.filter3x3(images[i], weights)


def histogram(images: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.histogram`."""
    for i in range(lo, hi):
        out[i] = ops_.histogram(images[i])


def table(images: U8, tables: U8, out: U8, lo: int, hi: int) -> None:
    """See `Backend.table`."""
    for i in range(lo, hi):
        out[i] = ops_.look_up(images[i], tables[i])


def mix(images: U8, pool: U8, program: Program, out: U8, lo: int, hi: int) -> None:
    """See `Backend.mix`."""
    for i in range(lo, hi):
        out[i - lo] = ops_.apply(to_levels(fold(images, pool, program, i)), program.finish[i])


def paste(
    images: U8, partner: NDArray[np.int64], source_boxes: F64, boxes: NDArray[np.int64], out: U8, lo: int, hi: int
) -> None:
    """See `Backend.paste`."""
    for i in range(lo, hi):
        top, left, bottom, right = (int(v) for v in boxes[i])
        out[i] = images[i]
        if top < bottom and left < right:
            patch = ops_.resize(images[partner[i]], source_boxes[i], bottom - top, right - left)
            out[i, top:bottom, left:right] = patch


def to_float(images: U8, table: NDArray[Any], out: NDArray[Any], channels_last: bool, lo: int, hi: int) -> None:
    """See `Backend.to_float`."""
    for i in range(lo, hi):
        picture = table[np.arange(3), images[i]]
        out[i] = picture if channels_last else picture.transpose(2, 0, 1)


def mix_float(
    images: U8,
    pool: U8,
    program: Program,
    table: NDArray[Any],
    out: NDArray[Any],
    channels_last: bool,
    lo: int,
    hi: int,
) -> None:
    """See `Backend.mix_float`."""
    mixed = np.empty((hi - lo, *images.shape[1:]), np.uint8)
    mix(images, pool, program, mixed, lo, hi)
    to_float(mixed, table, out, channels_last, 0, hi - lo)


def spectral_residual(images: U8, out: F32, lo: int, hi: int) -> None:
    """See `Backend.spectral_residual`."""
    saliency_.spectral_residual(images, out, lo, hi)


def enlarge(maps: F32, out: F32, lo: int, hi: int) -> None:
    """See `Backend.enlarge`."""
    saliency_.enlarge(maps, out, lo, hi)


def quantise(maps: F32, out: U8, lo: int, hi: int) -> None:
    """See `Backend.quantise`."""
    saliency_.quantise(maps, out, lo, hi)


def otsu(levels: U8, middle: bool, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.otsu`."""
    saliency_.otsu(levels, middle, out, lo, hi)


def quantise_otsu(maps: F32, middle: bool, levels: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.quantise_otsu`."""
    quantise(maps, levels, lo, hi)
    otsu(levels, middle, out, lo, hi)


def join_masks(
    levels: U8,
    thresholds: NDArray[np.int32],
    partner: NDArray[np.int64],
    union: bool,
    out: U8,
    areas: NDArray[np.int64],
    lo: int,
    hi: int,
) -> None:
    """See `Backend.join_masks`."""
    saliency_.join_masks(levels, thresholds, partner, union, out, areas, lo, hi)


def share_masks(maps: F32, partner: NDArray[np.int64], out: U8, sums: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.share_masks`."""
    saliency_.share_masks(maps, partner, out, sums, lo, hi)


def best_windows(levels: U8, sides: NDArray[np.int64], out: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.best_windows`."""
    saliency_.best_windows(levels, sides, out, lo, hi)


def distances(maps: F32, others: F32, out: F64, lo: int, hi: int) -> None:
    """See `Backend.distances`."""
    saliency_.distances(maps, others, out, lo, hi)


def bits(ids: NDArray[np.int64], words: NDArray[np.uint32], stream: int, out: NDArray[np.uint32]) -> None:
    """See `Backend.bits`.  Philox4x32-10; counter: block, id low, epoch, stream | id high << 16; key: the seed."""
    count = out.shape[1]
    for i, number in enumerate(ids):
        high = int(stream) | (int(number) >> 32) << 16
        out[i] = _words(count, int(number) & 0xFFFFFFFF, words[2], high, words[0], words[1])


def _words(count: int, *rest: Any) -> NDArray[np.uint64]:
    """The first `count` words of Philox blocks 0, 1, ...; rest: the other 3 counter words and the 2 key words."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    return np.stack(pixel.philox4x32(blocks, *rest), axis=-1).reshape(-1)[:count]  # type: ignore[no-untyped-call]


def attractor(
    maps: F64, chances: F64, points: int, words: NDArray[np.uint32], box: F64, out: NDArray[np.uint32]
) -> None:
    """See `Backend.attractor`.  Step t takes the first map k with word t / 2^32 < chances[k], else the last map."""
    seed_low, seed_high, picture, last = (int(v) for v in words)
    uniform = _words(points, picture, 0, last, seed_low, seed_high) * 2.0**-32
    choices = np.searchsorted(chances, uniform, side="right")
    height, width = out.shape
    left, top, right, bottom = (float(v) for v in box)
    x, y = _fixed_point(maps[0])
    out[:] = 0
    for choice in np.minimum(choices, len(maps) - 1):
        a, b, c, d, e, f = (float(v) for v in maps[choice])
        x, y = a * x + b * y + c, d * x + e * y + f
        column, row = np.floor((x - left) / (right - left) * width), np.floor((y - top) / (bottom - top) * height)
        if 0 <= column < width and 0 <= row < height:
            out[int(row), int(column)] += 1


def _fixed_point(coefficients: F64) -> tuple[float, float]:
    """The point that an affine map leaves where it is."""
    a, b, c, d, e, f = (float(v) for v in coefficients)
    determinant = (1 - a) * (1 - e) - b * d
    return (c * (1 - e) + b * f) / determinant, ((1 - a) * f + d * c) / determinant


def to_levels(value: F32) -> U8:
    """The one rounding at the end: floor(value + 0.5) in float32, clipped to 0..255; not-a-number gives 0."""
    return np.asarray(np.nan_to_num(np.clip(np.floor(value + np.float32(0.5)), 0, 255)), np.uint8)


def fold(images: U8, pool: U8, program: Program, row: int) -> F32:
    """The picture of program `row` before it is rounded and finished: (H, W, 3) float32 levels."""
    x: F32 = images[row].astype(np.float32)
    total = np.zeros_like(x)
    for step in program.steps[row]:
        mode = Mode(step["mode"])
        if mode is Mode.END:
            break
        box = slice(step["top"], step["bottom"]), slice(step["left"], step["right"])
        if mode is Mode.SUM:
            total[box] += step["a"] * x[box]
            continue
        if mode is Mode.TOTAL:
            new = total
        else:
            layer = render(images, pool, program, row, int(step["layer"]))
            new = blend(mode, x, layer.astype(np.float32), step["a"], step["b"])
        x[box] = _place(x, new, program, row, step)[box]
    return x


def render(images: U8, pool: U8, program: Program, row: int, layer: int) -> U8:
    """The picture of a layer of program `row`: its source after its chain of ops, (H, W, 3) uint8."""
    height, width = images.shape[1:3]
    record = program.layers[row, layer]
    index, top, left = int(record["index"]), int(record["top"]), int(record["left"])
    source = Source(record["source"])
    if source is Source.POOL:
        picture: U8 = pool[index, top : top + height, left : left + width]
    else:
        picture = images[index if source is Source.MATE else row]
    for chained in program.ops[row, layer]:
        if chained["code"] == 0:
            break
        picture = ops_.apply(picture, chained)
    return picture


def blend(mode: Mode, x: F32, y: F32, a: np.float32, b: np.float32) -> F32:
    """The new value of SET, LINEAR, ARITHMETIC or GEOMETRIC before any clip: float32 levels, in this very order."""
    if mode is Mode.SET:
        return y
    if mode is Mode.LINEAR:
        return np.asarray(a * x + b * y)
    if mode is Mode.ARITHMETIC:
        return np.asarray((a * x + b * y) + _MIDDLE * ((np.float32(1) - a) - b))
    # A black layer under a negative weight overflows, which every clip brings back: see `Clip`.
    with np.errstate(over="ignore", under="ignore"):
        own = np.power(np.maximum(x, 0) / _MIDDLE, a)
        return np.asarray((_MIDDLE * own) * np.power(np.maximum(y / _MIDDLE, _SMALLEST), b))


def _place(x: F32, new: F32, program: Program, row: int, step: Any) -> F32:
    """x after a step: the new value, weighed by a mask, clipped, put where the step does not keep x."""
    where = Where(step["where"])
    if where is Where.MASK:
        weight = program.masks[step["index"]].astype(np.float32) / _UNIT
        return clip(np.asarray(weight * x + (np.float32(1) - weight) * new), Clip(step["clip"]))
    new = clip(new, Clip(step["clip"]))
    if where is Where.EVERYWHERE:
        return new
    shape = x.shape if where is Where.ELEMENTS else (*x.shape[:2], 1)
    draws = np.empty((1, int(np.prod(shape))), np.uint32)
    bits(program.ids[row : row + 1], program.words, int(step["stream"]), draws)
    return np.where(draws.reshape(shape) < np.uint64(float(step["rate"]) * 2.0**32), x, new)


def clip(value: F32, rule: Clip) -> F32:
    """`Clip` of float32 levels."""
    if rule is Clip.NONE:
        return value
    if rule is Clip.WRAP:
        inside = np.abs(value) < np.float32(2.0**31)  # false for not-a-number
        return (np.where(inside, value, 0).astype(np.int64) & 255).astype(np.float32)
    limited = np.clip(value, 0, 255)
    return np.floor(limited) if rule is Clip.CUT else limited
