"""Antialiased crop-resize: rows first, then columns, float32 in between and one rounding."""

from __future__ import annotations

import numpy as np

from .jit import jit


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


@jit
def crop_resize(source, left, top, width, height, flip, out):  # type: ignore[no-untyped-def]
    """The box (left, top, width, height) of source (h, w, 3) resized into out (H, W, 3), see the protocol."""
    out_h, out_w, _ = out.shape
    first_x, count_x, weights_x = filter_taps(left, width, source.shape[1], out_w)
    first_y, count_y, weights_y = filter_taps(top, height, source.shape[0], out_h)
    begin = first_x[0]
    end = first_x[out_w - 1] + count_x[out_w - 1]
    rows = source.reshape(source.shape[0], source.shape[1] * 3)[:, begin * 3 : end * 3]
    line = np.empty((end - begin) * 3, np.float32)
    half = np.float32(0.5)
    for y in range(out_h):
        _blend_rows(rows, first_y[y], weights_y[y], count_y[y], line)
        for x in range(out_w):
            r = half
            g = half
            b = half
            at = np.uint64((first_x[x] - begin) * 3)
            for k in range(count_x[x]):
                w = weights_x[x, k]
                r += w * line[at]
                g += w * line[at + np.uint64(1)]
                b += w * line[at + np.uint64(2)]
                at += np.uint64(3)
            target = out_w - 1 - x if flip else x
            out[y, target, 0] = np.uint8(r)
            out[y, target, 1] = np.uint8(g)
            out[y, target, 2] = np.uint8(b)


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
