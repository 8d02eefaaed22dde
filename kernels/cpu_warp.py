"""Affine warp, bilinear, row by row.

Neighbouring output pixels mostly read neighbouring input pixels: a run.  Where runs are long, taps are
blended run by run; where runs are short they are first gathered into lines.  All inner loops run over contiguous bytes and vectorise.  Arithmetic is float64, for Pillow's is.
"""

from __future__ import annotations

import numpy as np

from .jit import jit

_LONG_RUNS = 1 / 24  # change of shift per pixel below which blending run by run beats gathering


@jit
def copy(source, target):  # type: ignore[no-untyped-def]
    """target = source, one line of bytes; the general slice assignment does not vectorise."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@jit
def _pad(image, top, bottom, soft, scratch):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of the picture with a border of one pixel, black (soft) or repeating the edge: no tap is outside.

    Input row y is row y + 1 of the result.
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
def _coordinates(step, across, start, n, whole, part):  # type: ignore[no-untyped-def]
    """Where each pixel of a row reads along one axis, whole[x] + part[x], in pixels of the padded picture."""
    for x in range(n):
        at = step * (x + 0.5) + across + start - 0.5
        cut = np.int32(at)
        floor = cut - np.int32(1) if np.float64(cut) > at else cut
        whole[x] = floor + np.int32(1)
        part[x] = at - np.float64(floor)


@jit
def _inside(step, across, start, low, high, begin, end):  # type: ignore[no-untyped-def]
    """The x of [begin, end) with low <= step (x + 0.5) + across + start < high; positions are monotonic, so only the ends can fail."""
    while begin < end and not low <= step * (begin + 0.5) + across + start < high:
        begin += 1
    while begin < end and not low <= step * (end - 0.5) + across + start < high:
        end -= 1
    return begin, end


@jit
def _runs(x0, y0, begin, end, run):  # type: ignore[no-untyped-def]
    """Give the pixels of a run, the same row and the same shift, the same number."""
    for x in range(begin, end):
        run[x] = (np.int64(y0[x]) << 32) + (x0[x] - x)


@jit
def _blend_runs(padded, x0, y0, run, dx, dy, still_x, still_y, begin, end, bias, target):  # type: ignore[no-untyped-def]
    """Blend each run straight from the picture.  still: no pixel moves by a fraction on that axis, two taps are enough."""
    x = begin
    while x < end:
        stop = x + 1
        while stop < end and run[stop] == run[x]:
            stop += 1
        source, first = np.uint64(3 * x0[x]), np.uint64(3 * x)
        above, below = np.uint64(y0[x]), np.uint64(y0[x] + 1)
        if still_x and still_y:
            copy(padded[y0[x], 3 * x0[x] :], target[3 * x : 3 * stop])
        elif still_y:
            for i in range(np.uint64(3 * (stop - x))):
                v = np.float64(padded[above, source + i])
                v += (np.float64(padded[above, source + i + np.uint64(3)]) - v) * dx[first + i]
                target[first + i] = np.uint8(np.int32(v + bias))
        elif still_x:
            for i in range(np.uint64(3 * (stop - x))):
                v = np.float64(padded[above, source + i])
                v += (np.float64(padded[below, source + i]) - v) * dy[first + i]
                target[first + i] = np.uint8(np.int32(v + bias))
        else:
            for i in range(np.uint64(3 * (stop - x))):
                a = np.float64(padded[above, source + i])
                b = np.float64(padded[below, source + i])
                a += (np.float64(padded[above, source + i + np.uint64(3)]) - a) * dx[first + i]
                b += (np.float64(padded[below, source + i + np.uint64(3)]) - b) * dx[first + i]
                target[first + i] = np.uint8(np.int32(a + (b - a) * dy[first + i] + bias))
        x = stop


@jit
def _gather(padded, x0, y0, run, begin, end, lines):  # type: ignore[no-untyped-def]
    """lines (4, 3 W): the taps above, above right, below, below right of each pixel."""
    x = begin
    while x < end:
        stop = x + 1
        while stop < end and run[stop] == run[x]:
            stop += 1
        source, first = np.uint64(3 * x0[x]), np.uint64(3 * x)
        above, below = np.uint64(y0[x]), np.uint64(y0[x] + 1)
        for i in range(np.uint64(3 * (stop - x))):
            lines[0, first + i] = padded[above, source + i]
            lines[1, first + i] = padded[above, source + i + np.uint64(3)]
            lines[2, first + i] = padded[below, source + i]
            lines[3, first + i] = padded[below, source + i + np.uint64(3)]
        x = stop


@jit
def _blend_lines(lines, dx, dy, begin, end, bias, target):  # type: ignore[no-untyped-def]
    above, above_right, below, below_right = lines[0], lines[1], lines[2], lines[3]
    for i in range(np.uint64(begin), np.uint64(end)):
        p = np.float64(above[i])
        q = np.float64(below[i])
        a = p + (np.float64(above_right[i]) - p) * dx[i]
        b = q + (np.float64(below_right[i]) - q) * dx[i]
        target[i] = np.uint8(np.int32(a + (b - a) * dy[i] + bias))


@jit
def _thrice(part, begin, end, out):  # type: ignore[no-untyped-def]
    """Repeat a pixel's part for its three channels."""
    for x in range(begin, end):
        out[3 * x] = part[x]
        out[3 * x + 1] = part[x]
        out[3 * x + 2] = part[x]


@jit
def warp(image, p, soft, top, bottom, scratch, out):  # type: ignore[no-untyped-def]
    """Rows [top, bottom) of out(X, Y) = image(aX + bY + c, dX + eY + f), p = (a, b, c, d, e, f).

    `Op.WARP`: a hard edge, fraction dropped; `Op.FLOAT_WARP` (soft): black blended in at the edge, rounded.
    scratch: at least (H + 2) (3 W + 6) bytes.
    """
    height, width, _ = image.shape
    low, bias = (-0.5, 0.5) if soft else (0.0, 0.0)
    corners = (p[4] * top + p[5], p[4] * bottom + p[5], p[3] * width + p[4] * top + p[5], p[3] * width + p[4] * bottom + p[5])
    padded = _pad(image, int(max(min(corners), -2.0)) - 2, int(min(max(corners), height + 2.0)) + 3, soft, scratch)
    targets = out.reshape(height, width * 3)
    x0, y0 = np.empty(width, np.int32), np.empty(width, np.int32)
    run = np.empty(width, np.int64)
    dx, dy = np.empty(width), np.empty(width)
    dx3, dy3 = np.empty(3 * width), np.empty(3 * width)
    lines = np.empty((4, 3 * width), np.uint8)
    still_x = p[0] == 1.0 and p[1] == 0.0 and p[2] == np.floor(p[2])
    still_y = p[3] == 0.0 and p[4] == 1.0 and p[5] == np.floor(p[5])
    long_runs = abs(p[0] - 1.0) + abs(p[3]) < _LONG_RUNS
    if still_x:
        _coordinates(p[0], 0.0, p[2], width, x0, dx)
        dx3[:] = 0
    if still_y:
        dy3[:] = 0
    for y in range(top, bottom):
        across_x, across_y = p[1] * (y + 0.5), p[4] * (y + 0.5)
        begin, end = _inside(p[0], across_x, p[2], low, width - low, 0, width)
        begin, end = _inside(p[3], across_y, p[5], low, height - low, begin, end)
        target = targets[y]
        for i in range(3 * begin):
            target[i] = 0
        for i in range(3 * end, 3 * width):
            target[i] = 0
        if begin == end:
            continue
        if not still_x:
            _coordinates(p[0], across_x, p[2], width, x0, dx)
            _thrice(dx, 0, width, dx3)
        if not still_y:
            _coordinates(p[3], across_y, p[5], width, y0, dy)
            _thrice(dy, begin, end, dy3)
        else:
            y0[:] = y + int(p[5]) + 1
        _runs(x0, y0, begin, end, run)
        if long_runs:
            _blend_runs(padded, x0, y0, run, dx3, dy3, still_x, still_y, begin, end, bias, target)
        else:
            _gather(padded, x0, y0, run, begin, end, lines)
            _blend_lines(lines, dx3, dy3, 3 * begin, 3 * end, bias, target)
