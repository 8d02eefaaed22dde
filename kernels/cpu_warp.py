"""Affine warp, bilinear, row by row.

Neighbouring output pixels mostly read neighbouring input pixels: a run.  Where runs are long, taps are blended run by
run; where they are short, taps are first gathered into lines.  The inner loops run over contiguous bytes and vectorise.
Positions are float64, so that every pixel has the right taps; weights and values are float32, which is three times as
fast.
"""

from __future__ import annotations

import numpy as np

from .jit import jit

_LONG_RUNS = 1 / 12  # change of shift per pixel below which blending run by run beats gathering


@jit
def copy(source, target):  # type: ignore[no-untyped-def]
    """target = source, one line of values; the general slice assignment does not vectorise."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@jit
def _clear(target, begin, end):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        target[i] = 0


@jit
def _pad(image, top, bottom, soft, scratch):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of the picture with a border of one pixel, black (soft) or repeating the edge.

    So no tap is outside.  Input row y is row y + 1 of the result.
    """
    height, width, _ = image.shape
    padded = scratch[: (height + 2) * (3 * width + 6)].reshape(height + 2, 3 * width + 6)
    rows = image.reshape(height, 3 * width)
    for y in range(max(top, -1), min(bottom, height + 1)):
        line = padded[y + 1]
        if soft and (y < 0 or y >= height):
            line[:] = 0
            continue
        row = rows[min(max(y, 0), height - 1)]
        copy(row, line[3:-3])
        for c in range(3):
            line[c] = 0 if soft else row[c]
            line[3 * width + 3 + c] = 0 if soft else row[3 * width - 3 + c]
    return padded


@jit
def _inside(step, across, start, low, high, begin, end):  # type: ignore[no-untyped-def]
    """The x of [begin, end) with low <= step (x + 0.5) + across + start < high: a range, for that is monotonic."""
    while begin < end and not low <= step * (begin + 0.5) + across + start < high:
        begin += 1
    while begin < end and not low <= step * (end - 0.5) + across + start < high:
        end -= 1
    return begin, end


@jit
def _floor(step, across, start, x):  # type: ignore[no-untyped-def]
    """The pixel left of, or above, where output pixel x reads."""
    return int(np.floor(step * (x + 0.5) + across + start - 0.5))


@jit
def _distance(part, slope):  # type: ignore[no-untyped-def]
    """How many pixels it takes a position to leave its pixel, about."""
    if slope == 0.0:
        return 1e9
    return (1.0 - part) / slope if slope > 0.0 else -part / slope


@jit
def _run_end(p, across_x, across_y, x, x0, y0, end):  # type: ignore[no-untyped-def]
    """The end of the run of pixels that starts at x and keeps the shift x0 - x and the row y0: a guess, put right."""
    part_x = p[0] * (x + 0.5) + across_x + p[2] - 0.5 - x0
    part_y = p[3] * (x + 0.5) + across_y + p[5] - 0.5 - y0
    stop = min(x + 1 + int(min(_distance(part_x, p[0] - 1.0), _distance(part_y, p[3]))), end)
    while stop > x + 1:
        last = stop - 1
        if _floor(p[0], across_x, p[2], last) - last == x0 - x and _floor(p[3], across_y, p[5], last) == y0:
            break
        stop = last
    while stop < end:
        if _floor(p[0], across_x, p[2], stop) - stop != x0 - x or _floor(p[3], across_y, p[5], stop) != y0:
            break
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
def _runs(padded, pitch, p, across_x, across_y, still_x, still_y, pixel, begin, end, bias, out, row):  # type: ignore[no-untyped-def]
    """One row, run by run; out[row] starts the row."""
    slope_x, slope_y = np.float32(p[0] - 1.0), np.float32(p[3])
    x = begin
    while x < end:
        x0, y0 = _floor(p[0], across_x, p[2], x), _floor(p[3], across_y, p[5], x)
        stop = _run_end(p, across_x, across_y, x, x0, y0, end)
        dx = np.float32(p[0] * (x + 0.5) + across_x + p[2] - 0.5 - x0)
        dy = np.float32(p[3] * (x + 0.5) + across_y + p[5] - 0.5 - y0)
        above = np.uint64((y0 + 1) * pitch + 3 * (x0 + 1))
        below = above + np.uint64(pitch)
        at, n = np.uint64(row + 3 * x), np.uint64(3 * (stop - x))
        if still_y:
            _blend_x(padded, above, pixel, dx, slope_x, bias, out, at, n)
        elif still_x:
            _blend_y(padded, above, below, pixel, dy, slope_y, bias, out, at, n)
        else:
            _blend_both(padded, above, below, pixel, dx, slope_x, dy, slope_y, bias, out, at, n)
        x = stop


@jit
def _gather(padded, p, across_x, across_y, begin, end, bias, lines, parts, target):  # type: ignore[no-untyped-def]
    """One row, pixel by pixel: the four taps go into lines (4, 3 W), which are blended as one by parts (2, 3 W)."""
    for x in range(begin, end):
        u = p[0] * (x + 0.5) + across_x + p[2] - 0.5
        w = p[3] * (x + 0.5) + across_y + p[5] - 0.5
        left, top = np.floor(u), np.floor(w)
        source, above = np.uint64(3 * (int(left) + 1)), np.uint64(int(top) + 1)
        below = above + np.uint64(1)
        at = np.uint64(3 * x)
        for c in range(np.uint64(3)):
            lines[0, at + c] = padded[above, source + c]
            lines[1, at + c] = padded[above, source + c + np.uint64(3)]
            lines[2, at + c] = padded[below, source + c]
            lines[3, at + c] = padded[below, source + c + np.uint64(3)]
            parts[0, at + c] = u - left
            parts[1, at + c] = w - top
    above_left, above_right, below_left, below_right = lines[0], lines[1], lines[2], lines[3]
    dx, dy = parts[0], parts[1]
    for i in range(np.uint64(3 * begin), np.uint64(3 * end)):
        a = np.float32(above_left[i])
        b = np.float32(below_left[i])
        a += (np.float32(above_right[i]) - a) * dx[i]
        b += (np.float32(below_right[i]) - b) * dx[i]
        target[i] = np.uint8(np.int32(a + (b - a) * dy[i] + bias))


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
    scratch: at least (H + 2) (3 W + 6) bytes.
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
    padded = _pad(image, int(max(min(corners), -2.0)) - 2, int(min(max(corners), height + 2.0)) + 3, soft, scratch)
    targets, flat = out.reshape(height, width * 3), out.reshape(-1)
    pixel = np.empty(3 * width, np.float32)
    for i in range(3 * width):
        pixel[i] = i // 3
    lines, parts = np.empty((4, 3 * width), np.uint8), np.empty((2, 3 * width), np.float32)
    long_runs = abs(p[0] - 1.0) + abs(p[3]) < _LONG_RUNS
    for y in range(top, bottom):
        across_x, across_y = p[1] * (y + 0.5), p[4] * (y + 0.5)
        begin, end = _inside(p[0], across_x, p[2], low, width - low, 0, width)
        begin, end = _inside(p[3], across_y, p[5], low, height - low, begin, end)
        target = targets[y]
        _clear(target, 0, 3 * begin)
        _clear(target, 3 * end, 3 * width)
        if long_runs:
            stride, at = 3 * width + 6, 3 * width * y
            _runs(scratch, stride, p, across_x, across_y, still_x, still_y, pixel, begin, end, bias, flat, at)
        elif begin < end:
            _gather(padded, p, across_x, across_y, begin, end, bias, lines, parts, target)
