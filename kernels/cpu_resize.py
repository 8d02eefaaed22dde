"""Antialiased crop-resize: rows first, then columns, float32 in between and one rounding."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types as nb
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import jit

_I32, _I64, _FOUR = ir.IntType(32), ir.IntType(64), ir.VectorType(ir.FloatType(), 4)
_MOST = 5  # taps of a pixel up to which there is code for just that many
_ROUND = 4  # taps at a time beyond


@jit
def filter_taps(start, length, size, outputs):  # type: ignore[no-untyped-def]
    """Triangle-filter taps of `outputs` samples over [start, start + length) of a line of `size` pixels.

    Returns first (outputs,) int64, count (outputs,) int64 and weights (outputs, K) float32.  The filter is as wide as
    the scale (at least 1) on each side and cut off at the line's ends, as in Pillow.
    """
    scale = length / outputs
    support = max(scale, 1.0)
    first = np.empty(outputs, np.int64)
    count = np.empty(outputs, np.int64)
    weights = np.zeros((outputs, int(np.ceil(support)) * 2 + 1), np.float32)
    for i in range(outputs):
        centre = start + (i + 0.5) * scale
        low = max(int(centre - support + 0.5), 0)
        high = min(int(centre + support + 0.5), size)
        total = 0.0
        for k in range(high - low):
            total += max(1.0 - abs((low + k + 0.5 - centre) / support), 0.0)
        for k in range(high - low):
            weights[i, k] = max(1.0 - abs((low + k + 0.5 - centre) / support), 0.0) / total
        first[i] = low
        count[i] = high - low
    return first, count, weights


@jit
def _blend_rows(rows, first, weights, count, line):  # type: ignore[no-untyped-def]
    """line = weighted sum of `count` rows from `first` on; the inner loops run over contiguous bytes and vectorise."""
    width = line.shape[0]
    w0 = weights[0]
    r0 = rows[first]
    if count == 1:
        for x in range(width):
            line[x] = w0 * np.float32(r0[x])
        return
    w1 = weights[1]
    r1 = rows[first + 1]
    if count == 2:
        for x in range(width):
            line[x] = w0 * np.float32(r0[x]) + w1 * np.float32(r1[x])
        return
    w2 = weights[2]
    r2 = rows[first + 2]
    for x in range(width):
        line[x] = w0 * np.float32(r0[x]) + w1 * np.float32(r1[x]) + w2 * np.float32(r2[x])
    for k in range(3, count):
        w = weights[k]
        r = rows[first + k]
        for x in range(width):
            line[x] += w * np.float32(r[x])


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _resample(_context: Any, _taps: Any, _rounds: Any, line: Any, places: Any, weights: Any, row: Any) -> Any:
    """Write a row of pixels, rounded half up: row[3 x + c] is the sum of weights[x, k] line[places[x] + 3 k + c].

    There are `taps`, a constant, times `rounds` of k.  row wants four bytes more, for a pixel is written as four
    values: Numba's own vectoriser does not see three colours as one vector, and takes three times as long.
    """

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        arrays = zip(signature.args[2:], arguments[2:], strict=True)
        line, places, weights, row = (context.make_array(kind)(context, b, value) for kind, value in arrays)
        pixels, pitch = cgutils.unpack_tuple(b, weights.shape)
        sum_ = cgutils.alloca_once(b, _FOUR)

        def add(place: Any, weight: Any) -> None:
            one = b.insert_element(ir.Constant(_FOUR, ir.Undefined), b.load(weight), ir.Constant(_I32, 0))
            four = b.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, 4), [0] * 4))
            values = b.load(b.bitcast(place, _FOUR.as_pointer()), align=4)
            b.store(b.fadd(b.load(sum_), b.fmul(four, values)), sum_)

        def ahead(pointer: Any, count: Any) -> Any:
            return b.gep(pointer, [count if isinstance(count, ir.Value) else ir.Constant(_I64, count)])

        taps = signature.args[0].literal_value
        with cgutils.for_range(b, pixels) as loop:
            place = ahead(line.data, b.load(ahead(places.data, loop.index)))
            weight = ahead(weights.data, b.mul(loop.index, pitch))
            b.store(ir.Constant(_FOUR, [0.5] * 4), sum_)
            with cgutils.for_range(b, arguments[1]) as turn:
                skip = b.mul(turn.index, ir.Constant(_I64, taps))
                for k in range(taps):
                    at = b.add(skip, ir.Constant(_I64, k))
                    add(ahead(place, b.mul(at, ir.Constant(_I64, 3))), ahead(weight, at))
            levels = b.trunc(b.fptosi(b.load(sum_), ir.VectorType(_I32, 4)), ir.VectorType(ir.IntType(8), 4))
            target = ahead(row.data, b.mul(loop.index, ir.Constant(_I64, 3)))
            b.store(levels, b.bitcast(target, levels.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return nb.void(_taps, nb.int64, line, places, weights, row), emit


@jit
def _mirrored(first, weights, begin, flip, taps):  # type: ignore[no-untyped-def]
    """Where each pixel of a row starts in the line, and its weights (W, taps), the rest of which are 0."""
    places, made = np.empty(first.shape[0], np.int64), np.zeros((first.shape[0], taps), np.float32)
    for x in range(first.shape[0]):
        of = first.shape[0] - 1 - x if flip else x
        places[x] = 3 * (first[of] - begin)
        for k in range(min(taps, weights.shape[1])):
            made[x, k] = weights[of, k]
    return places, made


@jit
def crop_resize(source, left, top, width, height, flip, out):  # type: ignore[no-untyped-def]
    """The box (left, top, width, height) of source (h, w, 3) resized into out (H, W, 3), see the protocol."""
    out_h, out_w, _ = out.shape
    first_x, count_x, weights_x = filter_taps(left, width, source.shape[1], out_w)
    first_y, count_y, weights_y = filter_taps(top, height, source.shape[0], out_h)
    begin = first_x[0]
    end = first_x[out_w - 1] + count_x[out_w - 1]
    rows = source.reshape(source.shape[0], source.shape[1] * 3)[:, begin * 3 : end * 3]
    taps = count_x.max()
    rounds = 1 if taps <= _MOST else (taps + _ROUND - 1) // _ROUND
    places, weights = _mirrored(first_x, weights_x, begin, flip, taps if taps <= _MOST else _ROUND * rounds)
    # Taps of no weight look beyond the line, at zeros.
    padded, row = np.zeros(3 * (end - begin + weights.shape[1]) + 1, np.float32), np.empty(3 * out_w + 4, np.uint8)
    line = padded[: 3 * (end - begin)]
    for y in range(out_h):
        _blend_rows(rows, first_y[y], weights_y[y], count_y[y], line)
        if taps == 1:
            _resample(1, 1, padded, places, weights, row)
        elif taps == 2:
            _resample(2, 1, padded, places, weights, row)
        elif taps == 3:
            _resample(3, 1, padded, places, weights, row)
        elif taps == _ROUND + 1:
            _resample(5, 1, padded, places, weights, row)
        else:
            _resample(4, rounds, padded, places, weights, row)
        target = out[y].reshape(-1)
        for x in range(np.uint64(3 * out_w)):
            target[x] = row[x]


@jit
def to_float(images, table, out, channels_last, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.to_float`."""
    height, width = images.shape[1], images.shape[2]
    t0, t1, t2 = table[0], table[1], table[2]
    for i in range(lo, hi):
        source = images[i].reshape(-1)
        target = out[i].reshape(-1)
        plane = np.uint64(height * width)
        if channels_last:
            for k in range(plane):
                j = np.uint64(3) * k
                target[j] = t0[source[j]]
                target[j + np.uint64(1)] = t1[source[j + np.uint64(1)]]
                target[j + np.uint64(2)] = t2[source[j + np.uint64(2)]]
        else:
            for k in range(plane):
                j = np.uint64(3) * k
                target[k] = t0[source[j]]
                target[plane + k] = t1[source[j + np.uint64(1)]]
                target[plane + plane + k] = t2[source[j + np.uint64(2)]]
