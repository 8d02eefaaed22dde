"""Ops that look at one level at a time: histograms, tables, and what is made of them; Pillow's integers."""

from __future__ import annotations

import numpy as np

from . import Op
from .jit import jit


@jit
def histogram(image, out):  # type: ignore[no-untyped-def]
    """out (3, 256) int32: how often each channel takes each value."""
    pixels = image.reshape(-1, 3)
    half = pixels.shape[0] // 2
    # Two counters a channel: neighbouring pixels are often equal, and adding to one cell twice in a row stalls.
    counts = np.zeros((6, 256), np.int32)
    for i in range(np.uint64(half)):
        even = np.uint64(2) * i
        odd = even + np.uint64(1)
        counts[0, pixels[even, 0]] += 1
        counts[1, pixels[even, 1]] += 1
        counts[2, pixels[even, 2]] += 1
        counts[3, pixels[odd, 0]] += 1
        counts[4, pixels[odd, 1]] += 1
        counts[5, pixels[odd, 2]] += 1
    if pixels.shape[0] % 2:
        for c in range(3):
            counts[c, pixels[pixels.shape[0] - 1, c]] += 1
    for c in range(3):
        for v in range(256):
            out[c, v] = counts[c, v] + counts[c + 3, v]


@jit
def table(image, tables, out):  # type: ignore[no-untyped-def]
    """Look every value up in its channel's table (3, 256).

    Four values at a time, from tables whose entries are at their place in a word: one store for four.
    """
    source, target = image.reshape(-1), out.reshape(-1)
    n = source.shape[0]
    words, made = source[: n // 4 * 4].view(np.uint32), target[: n // 4 * 4].view(np.uint32)
    placed = np.empty((3, 4, 256), np.uint32)  # by word of three, byte of the word, value
    for k in range(12):
        for v in range(256):
            placed[k // 4, k % 4, v] = np.uint32(tables[k % 3, v]) << np.uint32(8 * (k % 4))
    low, eight, sixteen = np.uint32(255), np.uint32(8), np.uint32(16)
    for i in range(np.uint64(n // 12)):
        for w in range(np.uint64(3)):
            k = np.uint64(3) * i + w
            word, t = words[k], placed[w]
            one, two = t[0, word & low], t[1, (word >> eight) & low]
            three, four = t[2, (word >> sixteen) & low], t[3, word >> np.uint32(24)]
            made[k] = one | two | three | four
    for i in range(n // 12 * 12, n):
        target[i] = tables[i % 3, source[i]]


@jit
def _extremes(image, low, high):  # type: ignore[no-untyped-def]
    """Least and greatest value of each channel."""
    values = image.reshape(-1)
    low0 = low1 = low2 = np.uint8(255)
    high0 = high1 = high2 = np.uint8(0)
    for i in range(np.uint64(values.shape[0] // 3)):
        at = np.uint64(3) * i
        a, b, c = values[at], values[at + np.uint64(1)], values[at + np.uint64(2)]
        low0, high0 = min(a, low0), max(a, high0)
        low1, high1 = min(b, low1), max(b, high1)
        low2, high2 = min(c, low2), max(c, high2)
    low[0], low[1], low[2] = low0, low1, low2
    high[0], high[1], high[2] = high0, high1, high2


@jit
def _cut_extremes(image, percent, low, high):  # type: ignore[no-untyped-def]
    """The same after `percent` of the pixels were removed at each end, as Pillow does."""
    counts = np.empty((3, 256), np.int32)
    histogram(image, counts)
    number = int(image.shape[0] * image.shape[1] * percent // 100)
    for c in range(3):
        for ends in range(2):
            left = number
            for v in range(256):
                at = v if ends == 0 else 255 - v
                gone = min(left, counts[c, at])
                counts[c, at] -= gone
                left -= gone
        low[c] = 255
        high[c] = 0
        for v in range(256):
            if counts[c, v] > 0:
                low[c] = min(low[c], v)
                high[c] = v


@jit
def _as_line(values, low, high):  # type: ignore[no-untyped-def]
    """(m, k) such that values[v] == (v m + k) >> 16 for every v in [low, high], or (0, 0) if there is no such line."""
    span = max(high - low, 1)
    m = np.int32(round((np.int64(values[high]) - np.int64(values[low])) * 65536 / span))
    least, most = -(1 << 30), 1 << 30
    for v in range(low, high + 1):
        least = max(least, (np.int64(values[v]) << 16) - v * m)
        most = min(most, ((np.int64(values[v]) + 1) << 16) - v * m)
    return (m, np.int32(least)) if least < most else (np.int32(0), np.int32(0))


@jit
def _stretch(image, m, k, beyond, out):  # type: ignore[no-untyped-def]
    """Straight lines instead of tables: arithmetic vectorises where a look-up does not.

    beyond: whether there are values beyond a line's ends, which have to be clipped.
    """
    rows, targets = image.reshape(image.shape[0], -1), out.reshape(image.shape[0], -1)
    width = rows.shape[1]
    slopes, offsets = np.empty(width, np.int32), np.empty(width, np.int32)
    for x in range(width):
        slopes[x] = m[x % 3]
        offsets[x] = k[x % 3]
    for y in range(rows.shape[0]):
        row, target = rows[y], targets[y]
        if beyond:
            for x in range(width):
                v = np.int32(np.int32(row[x]) * slopes[x] + offsets[x]) >> np.int32(16)
                v = v if v > 0 else 0
                target[x] = np.uint8(v if v < 255 else 255)
        else:
            for x in range(width):
                target[x] = np.uint8(np.int32(np.int32(row[x]) * slopes[x] + offsets[x]) >> np.int32(16))


@jit
def autocontrast(image, percent, rounded, top, bottom, out):  # type: ignore[no-untyped-def]
    """`Op.AUTOCONTRAST`, or if `rounded` the float form, of rows [top, bottom)."""
    low = np.empty(3, np.int64)
    high = np.empty(3, np.int64)
    if percent > 0:
        _cut_extremes(image, percent, low, high)
    else:
        _extremes(image, low, high)
    tables = np.empty((3, 256), np.uint8)
    m, k = np.empty(3, np.int32), np.empty(3, np.int32)
    straight = True
    for c in range(3):
        span = high[c] - low[c]
        for v in range(256):
            if span <= 0:
                tables[c, v] = v
            elif rounded:
                tables[c, v] = min(max((510 * (v - low[c]) + span) // (2 * span), 0), 255)
            else:
                scale = 255.0 / span
                tables[c, v] = min(max(int(v * scale + -low[c] * scale), 0), 255)
        m[c], k[c] = _as_line(tables[c], low[c] if span > 0 else 0, high[c] if span > 0 else 255)
        straight &= m[c] > 0
    if straight:
        _stretch(image[top:bottom], m, k, percent > 0, out[top:bottom])
    else:
        table(image[top:bottom], tables, out[top:bottom])


@jit
def equalize(image, top, bottom, out):  # type: ignore[no-untyped-def]
    """`Op.EQUALIZE` of rows [top, bottom)."""
    counts = np.empty((3, 256), np.int32)
    histogram(image, counts)
    tables, below = np.empty((3, 256), np.uint8), np.empty(256, np.float64)
    for c in range(3):
        last = 0
        total = 0
        for v in range(256):
            total += counts[c, v]
            if counts[c, v] > 0:
                last = counts[c, v]
        step = (total - last) // 255
        sum_below = step // 2
        for v in range(256):
            below[v] = sum_below
            sum_below += counts[c, v]
        for v in range(256):
            # Half a unit keeps the quotient off whole numbers, so that float64 drops the right fraction.
            tables[c, v] = v if step == 0 else min(np.int32((below[v] + 0.5) / step), np.int32(255))
    table(image[top:bottom], tables, out[top:bottom])


@jit
def point(image, code, value, out):  # type: ignore[no-untyped-def]
    """Ops that look at one value only; plain loops, so that they vectorise."""
    source = image.reshape(-1)
    target = out.reshape(-1)
    n = source.shape[0]
    if code == Op.POSTERIZE:
        mask = np.uint8(0xFF00 >> int(value) & 0xFF)
        for i in range(n):
            target[i] = source[i] & mask
    elif code == Op.SOLARIZE:
        threshold = np.int16(min(max(np.ceil(value), 0.0), 256.0))
        for i in range(n):
            v = np.int16(source[i])
            target[i] = np.uint8(v if v < threshold else np.int16(255) - v)
    elif code == Op.INVERT:
        for i in range(n):
            target[i] = ~source[i]
    else:  # FLOAT_POSTERIZE
        levels = np.float32(1 << int(value))
        # A little below 1 / 255, so that 255 gets the highest level; no other value is next to a level's edge.
        scale, step = levels * np.float32((1 - 4e-6) / 255), np.float32(255) / levels
        for i in range(n):
            q = np.float32(np.int32(np.float32(source[i]) * scale))
            target[i] = np.uint8(np.int32(q * step + np.float32(0.5)))
