"""Affine warp, bilinear, row by row.

Neighbouring output pixels mostly read neighbouring input pixels: a run.  Where runs are long, taps are blended run by
run; where they are short, taps are first gathered into lines.  The inner loops run over contiguous bytes and vectorise.
Positions are float64, so that every pixel has the right taps; weights and values are float32, which is three times as
fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types as nb
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import jit

_LONG_RUNS = 1 / 12  # change of shift per pixel below which blending run by run beats gathering


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Address of the four bytes from place arguments[1] of a uint8 line on."""
    line = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(line.data, [arguments[1]]), ir.IntType(32).as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def load_word(_context: Any, line: Any, _place: Any) -> Any:
    """Four bytes of a uint8 line, from any place on: NumPy's views know none but every fourth."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word(context, builder, signature, arguments), align=1)

    return nb.uint32(line, nb.uint64), emit


@intrinsic  # type: ignore[untyped-decorator]
def store_word(_context: Any, line: Any, _place: Any, _value: Any) -> Any:
    """Put four bytes into a uint8 line, from any place on."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _word(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return nb.void(line, nb.uint64, nb.uint32), emit


@jit
def copy(source, target):  # type: ignore[no-untyped-def]
    """target = source, one line of values; the general slice assignment does not vectorise."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@jit
def clear(target, begin, end):  # type: ignore[no-untyped-def]
    """target[begin:end] = 0."""
    for i in range(np.uint64(begin), np.uint64(end)):
        target[i] = 0


@jit
def _pad(image, top, bottom, soft, padded):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of the picture with a border of one pixel, black (soft) or repeating the edge.

    So no tap is outside.  Input row y is row y + 1 of padded, whose rows have 3 W + 6 bytes.
    """
    height, width, _ = image.shape
    values, n, pitch = image.reshape(-1), np.uint64(3 * width), 3 * width + 6
    for y in range(max(top, -1), min(bottom, height + 1)):
        if soft and (y < 0 or y >= height):
            clear(padded, pitch * (y + 1), pitch * (y + 2))
            continue
        to, row = np.uint64(pitch * (y + 1)), n * np.uint64(min(max(y, 0), height - 1))
        inner = to + np.uint64(3)
        for i in range(n):
            padded[inner + i] = values[row + i]
        for c in range(np.uint64(3)):
            padded[to + c] = 0 if soft else values[row + c]
            padded[inner + n + c] = 0 if soft else values[row + n - np.uint64(3) + c]


@jit
def _reached(step, across, start, level, begin, end):  # type: ignore[no-untyped-def]
    """The first x of [begin, end) whose step (x + 0.5) + across + start has passed a level: a guess, put right."""
    if step == 0.0:
        return end
    x = int(min(max((level - across - start) / step, np.float64(begin)), np.float64(end)))
    while x > begin and (step * (x - 0.5) + across + start >= level) == (step > 0.0):
        x -= 1
    while x < end and (step * (x + 0.5) + across + start >= level) != (step > 0.0):
        x += 1
    return x


@jit
def _inside(step, across, start, low, high, begin, end):  # type: ignore[no-untyped-def]
    """The x of [begin, end) with low <= step (x + 0.5) + across + start < high: a range, for that is monotonic."""
    if begin < end and not low <= step * (begin + 0.5) + across + start < high:
        begin = _reached(step, across, start, low if step > 0.0 else high, begin, end)
    if begin < end and not low <= step * (end - 0.5) + across + start < high:
        end = _reached(step, across, start, high if step > 0.0 else low, begin, end)
    return begin, end


@jit
def _position(step, across, start, x):  # type: ignore[no-untyped-def]
    """Where output pixel x reads on one axis; between this pixel's floor and the next one."""
    return step * (x + 0.5) + across + start - 0.5


@jit
def _pixel(step, across, start, x):  # type: ignore[no-untyped-def]
    return int(np.floor(_position(step, across, start, x)))


@jit
def _run_end(step, across, start, moves, inverse, x, position, base, end):  # type: ignore[no-untyped-def]
    """The end of the run of output pixels that starts at x and keeps floor(position) - moves x: a guess, put right.

    position: of x, and base, its floor.  moves: 1 along the row, else 0.
    inverse: 1 / (step - moves), but 0 for a step that moves just so.
    """
    kept, stop = int(base) - moves * x, end
    if inverse != 0.0:
        distance = base + 1.0 - position if inverse > 0.0 else base - position
        stop = min(x + 1 + int(min(distance * inverse, 1e9)), end)
    while stop > x + 1 and _pixel(step, across, start, stop - 1) - moves * (stop - 1) != kept:
        stop -= 1
    while stop < end and _pixel(step, across, start, stop) - moves * stop == kept:
        stop += 1
    return stop


@jit
def _blend_x(padded, above, pixel, dx, slope, bias, out, at, n):  # type: ignore[no-untyped-def]
    """One run of n bytes that moves sideways only: taps from padded[above] on, into out[at : at + n].

    dx: how far the first pixel reads between two taps, slope: how that grows; pixel: the number of a byte's pixel.
    Places instead of slices, for a slice costs as much as a short run.
    """
    for i in range(n):
        v = np.float32(padded[above + i])
        v += (np.float32(padded[above + np.uint64(3) + i]) - v) * (dx + slope * pixel[i])
        out[at + i] = np.uint8(np.int32(v + bias))


@jit
def _blend_y(padded, above, below, pixel, dy, slope, bias, out, at, n):  # type: ignore[no-untyped-def]
    """One run that moves up or down only."""
    for i in range(n):
        v = np.float32(padded[above + i])
        v += (np.float32(padded[below + i]) - v) * (dy + slope * pixel[i])
        out[at + i] = np.uint8(np.int32(v + bias))


@jit
def _blend_both(padded, above, below, pixel, dx, slope_x, dy, slope_y, bias, out, at, n):  # type: ignore[no-untyped-def]
    """One run that moves on both axes."""
    for i in range(n):
        x = dx + slope_x * pixel[i]
        y = dy + slope_y * pixel[i]
        a = np.float32(padded[above + i])
        b = np.float32(padded[below + i])
        a += (np.float32(padded[above + np.uint64(3) + i]) - a) * x
        b += (np.float32(padded[below + np.uint64(3) + i]) - b) * x
        out[at + i] = np.uint8(np.int32(a + (b - a) * y + bias))


@jit
def _runs(padded, pitch, p, inverse, across_x, across_y, still_x, still_y, pixel, begin, end, bias, out, row):  # type: ignore[no-untyped-def]
    """One row, run by run; out[row] starts the row, whose bytes behind the last run may become anything."""
    slope_x, slope_y = np.float32(p[0] - 1.0), np.float32(p[3])
    # The ends of the runs that keep the shift along the row, and of those that keep the row that is read.
    end_x, end_y = end if still_x else begin, end if still_y else begin
    x = begin
    while x < end:
        at_x, at_y = _position(p[0], across_x, p[2], x), _position(p[3], across_y, p[5], x)
        left, top = np.floor(at_x), np.floor(at_y)
        if x == end_x:
            end_x = _run_end(p[0], across_x, p[2], 1, inverse[0], x, at_x, left, end)
        if x == end_y:
            end_y = _run_end(p[3], across_y, p[5], 0, inverse[1], x, at_y, top, end)
        stop = min(end_x, end_y)
        dx, dy = np.float32(at_x - left), np.float32(at_y - top)
        above = np.uint64((int(top) + 1) * pitch + 3 * (int(left) + 1))
        below = above + np.uint64(pitch)
        # The next run covers what is too much, and a loop without a remainder is faster.
        at, n = np.uint64(row + 3 * x), np.uint64(min((3 * (stop - x) + 31) // 32 * 32, pitch - 6 - 3 * x))
        if still_y:
            _blend_x(padded, above, pixel, dx, slope_x, bias, out, at, n)
        elif still_x:
            _blend_y(padded, above, below, pixel, dy, slope_y, bias, out, at, n)
        else:
            _blend_both(padded, above, below, pixel, dx, slope_x, dy, slope_y, bias, out, at, n)
        x = stop


@jit
def _gather(padded, pitch, p, across_x, across_y, begin, end, bias, places, parts, taps, out, row):  # type: ignore[no-untyped-def]
    """One row, pixel by pixel: its four taps go into `taps`, which are blended as one; out[row] starts the row.

    places (W,) int32, parts (4, 3 W) float32 and taps (4, 3 W + 1): room for where the taps are, for their weights and
    for themselves.
    """
    step_x, start_x, step_y, start_y = p[0], p[2], p[3], p[5]
    part_x, part_y, dx, dy = parts[0], parts[1], parts[2], parts[3]
    for x in range(np.uint64(begin), np.uint64(end)):
        u = _position(step_x, across_x, start_x, np.int32(x))
        w = _position(step_y, across_y, start_y, np.int32(x))
        left, top = np.floor(u), np.floor(w)
        places[x] = np.int32(np.int32(np.int32(top) + 1) * np.int32(pitch)) + np.int32(3) * (
            np.int32(left) + np.int32(1)
        )
        part_x[x] = u - left
        part_y[x] = w - top
    above_left, above_right, below_left, below_right = taps[0], taps[1], taps[2], taps[3]
    pixel, down = np.uint64(3), np.uint64(pitch)
    for x in range(np.uint64(begin), np.uint64(end)):
        # A word is a pixel and a byte too much, which the next pixel covers.
        at, above = pixel * x, np.uint64(places[x])
        store_word(above_left, at, load_word(padded, above))
        store_word(above_right, at, load_word(padded, above + pixel))
        store_word(below_left, at, load_word(padded, above + down))
        store_word(below_right, at, load_word(padded, above + down + pixel))
    for x in range(np.uint64(begin), np.uint64(end)):
        for c in range(pixel):
            dx[pixel * x + c] = part_x[x]
            dy[pixel * x + c] = part_y[x]
    for i in range(np.uint64(3 * begin), np.uint64(3 * end)):
        a = np.float32(above_left[i])
        b = np.float32(below_left[i])
        a += (np.float32(above_right[i]) - a) * dx[i]
        b += (np.float32(below_right[i]) - b) * dx[i]
        out[row + i] = np.uint8(np.int32(a + (b - a) * dy[i] + bias))


@jit
def _shift(image, right, down, top, bottom, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of out(X, Y) = image(X + right, Y + down), black outside."""
    height, width, _ = image.shape
    rows, targets = image.reshape(height, 3 * width), out.reshape(height, 3 * width)
    begin, end = min(max(-right, 0), width), max(min(width - right, width), 0)
    for y in range(top, bottom):
        target = targets[y]
        if begin >= end or not 0 <= y + down < height:
            target[:] = 0
            continue
        target[: 3 * begin] = 0
        copy(rows[y + down, 3 * (begin + right) :], target[3 * begin : 3 * end])
        target[3 * end :] = 0


@jit
def _mirrored_shift(image, last, down, top, bottom, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of out(X, Y) = image(last - X, Y + down), black outside."""
    height, width, _ = image.shape
    for y in range(top, bottom):
        for x in range(width):
            inside = 0 <= y + down < height and 0 <= last - x < width
            for c in range(3):
                out[y, x, c] = image[y + down, last - x, c] if inside else np.uint8(0)


@jit
def warp(image, p, soft, top, bottom, scratch, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of out(X, Y) = image(aX + bY + c, dX + eY + f), p = (a, b, c, d, e, f).

    `Op.WARP`: a hard edge, fraction dropped.  `Op.FLOAT_WARP` (soft): black blended in at the edge, rounded.
    scratch: at least (H + 2) (3 W + 6) + 64 bytes.
    """
    height, width, _ = image.shape
    still_x = p[0] == 1.0 and p[1] == 0.0 and p[2] == np.floor(p[2])
    still_y = p[3] == 0.0 and p[4] == 1.0 and p[5] == np.floor(p[5])
    if p[0] == -1.0 and p[1] == 0.0 and p[2] == np.floor(p[2]) and still_y and abs(p[2]) < 1e9 and abs(p[5]) < 1e9:
        _mirrored_shift(image, int(p[2]) - 1, int(p[5]), top, bottom, out)
        return
    if still_x and still_y:
        limit = np.float64(width + height)  # far enough to show nothing, near enough for an integer
        _shift(image, int(min(max(p[2], -limit), limit)), int(min(max(p[5], -limit), limit)), top, bottom, out)
        return
    low, bias = (-0.5, np.float32(0.5)) if soft else (0.0, np.float32(0.0))
    above, below = p[4] * top + p[5], p[4] * bottom + p[5]
    corners = (above, below, p[3] * width + above, p[3] * width + below)
    _pad(image, int(max(min(corners), -2.0)) - 2, int(min(max(corners), height + 2.0)) + 3, soft, scratch)
    flat, pitch = out.reshape(-1), 3 * width + 6
    pixel = np.empty(3 * width, np.float32)
    for i in range(3 * width):
        pixel[i] = i // 3
    long_runs = abs(p[0] - 1.0) + abs(p[3]) < _LONG_RUNS
    inverse = 0.0 if p[0] == 1.0 else 1.0 / (p[0] - 1.0), 0.0 if p[3] == 0.0 else 1.0 / p[3]
    room = 0 if long_runs else width
    places, parts = np.empty(room, np.int32), np.empty((4, 3 * room), np.float32)
    taps = np.empty((4, 3 * room + 1), np.uint8)
    for y in range(top, bottom):
        across_x, across_y = p[1] * (y + 0.5), p[4] * (y + 0.5)
        begin, end = _inside(p[0], across_x, p[2], low, width - low, np.int64(0), width)
        begin, end = _inside(p[3], across_y, p[5], low, height - low, begin, end)
        row = 3 * width * y
        if begin >= end:
            clear(flat, row, row + 3 * width)
            continue
        if long_runs:
            _runs(scratch, pitch, p, inverse, across_x, across_y, still_x, still_y, pixel, begin, end, bias, flat, row)
        else:
            _gather(scratch, pitch, p, across_x, across_y, begin, end, bias, places, parts, taps, flat, np.uint64(row))
        if begin > 0:
            clear(flat, row, row + 3 * begin)
        if end < width:
            clear(flat, row + 3 * end, row + 3 * width)
