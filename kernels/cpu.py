"""The kernels of the protocol on a CPU: thin shells around Numba functions that hold no GIL.

Every thread keeps its own work space, so that no call allocates more than a few lines: fresh memory costs more than the
arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import F32, F64, U8, Program, Records
from . import cpu_fold as _fold
from . import cpu_levels as _levels
from . import cpu_masks as _masks
from . import cpu_ops as _ops
from . import cpu_resize as _resize
from . import cpu_saliency as _saliency
from .cpu_fractal import attractor as _attractor
from .cpu_warp import warp as _warp

_LINE = 6144  # values in a line of the fold: the longer, the fewer calls; a step's lines still fit the nearest caches
_PICTURES = 8  # whose spectra are made together: calls of NumPy cost as much as small transforms
_local = threading.local()


def work_space(count: int) -> U8:
    """At least `count` bytes that belong to this thread until its next call."""
    space: U8 | None = getattr(_local, "space", None)
    if space is None or space.size < count:
        space = _local.space = np.empty(1 << (count - 1).bit_length(), np.uint8)  # a little more is needed next time
    return space


def _pad_bytes(height: int, width: int) -> int:
    return (height + 2) * (3 * width + 6) + 64  # a run may look a little further than it sees


def crop_resize(sources: Sequence[U8], boxes: F64, flips: NDArray[np.bool_], out: U8, lo: int, hi: int) -> None:
    """See `Backend.crop_resize`."""
    for i in range(lo, hi):
        left, top, width, height = boxes[i]
        _resize.crop_resize(sources[i], left, top, width, height, flips[i], out[i])


def op(images: U8, ops: Records, out: U8, lo: int, hi: int) -> None:
    """See `Backend.op`."""
    _ops.apply_ops(images, ops, work_space(_pad_bytes(*images.shape[1:3])), out, lo, hi)


def warp(images: U8, matrices: F64, out: U8, lo: int, hi: int) -> None:
    """See `Backend.warp`."""
    scratch = work_space(_pad_bytes(*images.shape[1:3]))
    for i in range(lo, hi):
        _warp(images[i], matrices[i], False, 0, images.shape[1], scratch, out[i])


def filter3x3(images: U8, weights: F32, out: U8, lo: int, hi: int) -> None:
    """See `Backend.filter3x3`."""
    for i in range(lo, hi):
        _ops.filter3x3(images[i], weights, out[i])


def histogram(images: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.histogram`."""
    for i in range(lo, hi):
        _levels.histogram(images[i], out[i])


def table(images: U8, tables: U8, out: U8, lo: int, hi: int) -> None:
    """See `Backend.table`."""
    for i in range(lo, hi):
        _levels.table(images[i], tables[i], out[i])


def _mix_space(height: int, width: int, slots: int) -> tuple[NDArray[Any], ...]:
    """Work space of `_fold.mix`; views cost more than asking for them, so those of the last call are kept."""
    line = 3 * width * max(_LINE // (3 * width), 1)
    # Lines and draws first: they want alignment, bytes do not.
    draws = 4 * line * 4
    pictures = draws + (line + 8) * 4
    pad = pictures + slots * height * width * 3
    space, size = work_space(pad + _pad_bytes(height, width)), (height, width, slots)
    kept: Any = getattr(_local, "mix_space", None)
    if kept is None or kept[0] is not space or kept[1] != size:
        views = (
            space[pictures:pad].reshape(slots, height, width, 3),
            space[:draws].view(np.float32).reshape(4, line),
            space[draws:pictures].view(np.uint32),
            space[pad:],
        )
        kept = _local.mix_space = space, size, views
    found: tuple[NDArray[Any], ...] = kept[2]
    return found


def mix(images: U8, pool: U8, program: Program, out: U8, lo: int, hi: int) -> None:
    """See `Backend.mix`."""
    p, space = program, _mix_space(images.shape[1], images.shape[2], program.layers.shape[1] + 1)
    _fold.mix(images, pool, p.layers, p.ops, p.steps, p.finish, p.ids, p.words, p.masks, *space, out, lo, hi)


def paste(
    images: U8, partner: NDArray[np.int64], source_boxes: F64, boxes: NDArray[np.int64], out: U8, lo: int, hi: int
) -> None:
    """See `Backend.paste`."""
    for i in range(lo, hi):
        top, left, bottom, right = boxes[i]
        out[i] = images[i]
        if top < bottom and left < right:
            x, y, width, height = source_boxes[i]
            patch = np.empty((bottom - top, right - left, 3), np.uint8)
            _resize.crop_resize(images[partner[i]], x, y, width, height, False, patch)
            out[i, top:bottom, left:right] = patch


def to_float(images: U8, table: NDArray[Any], out: NDArray[Any], channels_last: bool, lo: int, hi: int) -> None:
    """See `Backend.to_float`."""
    _resize.to_float(images, table, out, channels_last, lo, hi)


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
    p, space = program, _mix_space(images.shape[1], images.shape[2], program.layers.shape[1] + 2)
    # fmt: off
    _fold.mix_float(
        images, pool, p.layers, p.ops, p.steps, p.finish, p.ids, p.words, p.masks, *space,
        table, out, channels_last, lo, hi,
    )
    # fmt: on


def spectral_residual(images: U8, out: F32, lo: int, hi: int) -> None:
    """See `Backend.spectral_residual`.  A few pictures at a time, whose maps do not depend on each other."""
    height, width = out.shape[1:]
    for low in range(lo, hi, _PICTURES):
        n = min(_PICTURES, hi - low)
        grey, uneven = np.empty((n, height, width)), np.empty(n, np.bool_)
        _saliency.prepare(images[low : low + n], grey, uneven)
        spectra = np.fft.fft(np.fft.rfft(grey), axis=1)
        logs, means = np.empty((2, *spectra.shape))
        _saliency.power(spectra.view(np.float64).reshape(*logs.shape, 2), logs)
        _saliency.half_means(np.log(logs, out=logs), width, means)
        spectra *= np.exp(means, out=means)
        _saliency.finish(np.fft.irfft(np.fft.ifft(spectra, axis=1), width), uneven, out[low : low + n])


def enlarge(maps: F32, out: F32, lo: int, hi: int) -> None:
    """See `Backend.enlarge`."""
    _saliency.enlarge(maps, out, lo, hi)


def quantise(maps: F32, out: U8, lo: int, hi: int) -> None:
    """See `Backend.quantise`."""
    _masks.quantise(maps, out, lo, hi)


def otsu(levels: U8, middle: bool, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.otsu`."""
    _masks.otsu(levels, middle, out, lo, hi)


def quantise_otsu(maps: F32, middle: bool, levels: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.quantise_otsu`."""
    _masks.quantise_otsu(maps, middle, levels, out, lo, hi)


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
    _masks.join_masks(levels, thresholds, partner, union, out, areas, lo, hi)


def share_masks(maps: F32, partner: NDArray[np.int64], out: U8, sums: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.share_masks`."""
    _saliency.share_masks(maps, partner, out, sums, lo, hi)


def best_windows(levels: U8, sides: NDArray[np.int64], out: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.best_windows`."""
    _masks.best_windows(levels, sides, out, lo, hi)


def distances(maps: F32, others: F32, out: F64, lo: int, hi: int) -> None:
    """See `Backend.distances`."""
    _masks.distances(maps, others, out, lo, hi)


def bits(ids: NDArray[np.int64], words: NDArray[np.uint32], stream: int, out: NDArray[np.uint32]) -> None:
    """See `Backend.bits`."""
    _fold.bits(ids, words, stream, out)


def attractor(
    maps: F64, chances: F64, points: int, words: NDArray[np.uint32], box: F64, out: NDArray[np.uint32]
) -> None:
    """See `Backend.attractor`."""
    _attractor(maps, chances, points, words, box, out)
