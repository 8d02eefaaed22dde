"""What a step of a fold does to a stretch of values: blend, sum, clip, choose by chance or by mask, round.

A stretch is an array, the place where it starts and a count n, all uint64: a slice costs as much as a short stretch.
The levels so far may be bytes, which are taken as they lie, or float32; new levels go to another place, for a loop that
reads what it writes would have to be told that the two never cross.
"""

from __future__ import annotations

import numpy as np

from . import Clip, Mode, Where, pixel
from .jit import compile_module, jit

_scalar = compile_module(pixel)
_exp2, _log2, _philox = _scalar.exp2, _scalar.log2, _scalar.philox4x32

# log2 of a layer's value as GEOMETRIC sees it, y / 127.5 and at least 1e-37.
_LOG_LEVELS = np.log2(np.maximum(np.arange(256) / 127.5, 1e-37)).astype(np.float32)
_LOG_MIDDLE = np.float32(np.log2(127.5))
_LOG_WHITE = np.float32(np.log2(255))
_SMALLEST = np.float32(2.0**-126)


@jit
def covers(step, height, width):  # type: ignore[no-untyped-def]
    """Whether a step changes every value of the picture."""
    whole = step.top <= 0 and step.left <= 0 and step.bottom >= height and step.right >= width
    return whole and step.where == Where.EVERYWHERE


@jit
def is_bounded(steps, height, width):  # type: ignore[no-untyped-def]
    """Whether the weights of the steps keep levels in 0..255, but for rounding errors, so that none needs a clip."""
    low, high, sum_low, sum_high = 0.0, 255.0, 0.0, 0.0
    for step in steps:
        a, b = np.float64(step.a), 255 * np.float64(step.b)
        below, above = min(a * low, a * high), max(a * low, a * high)
        if step.mode == Mode.SUM:
            sum_low, sum_high = sum_low + min(below, 0.0), sum_high + max(above, 0.0)
            continue
        if step.clip != Clip.NONE or step.mode == Mode.SET:
            below, above = 0.0, 255.0
        elif step.mode == Mode.TOTAL:
            below, above = sum_low, sum_high
        elif step.mode == Mode.LINEAR:
            below, above = below + min(b, 0.0), above + max(b, 0.0)
        else:
            return False
        if covers(step, height, width):
            low, high = below, above
        else:
            low, high = min(low, below), max(high, above)
    return low > -0.25 and high < 255.25


@jit
def load(x, at, n, z, to):  # type: ignore[no-untyped-def]
    """z = x."""
    for i in range(n):
        z[to + i] = x[at + i]


@jit
def _unit(v):  # type: ignore[no-untyped-def]
    v = v if v > np.float32(0) else np.float32(0)
    return v if v < np.float32(255) else np.float32(255)


@jit
def _linear(x, at, y, of, n, a, b, c, unit, z, to):  # type: ignore[no-untyped-def]
    """z = (a x + b y) + c, clipped right away if `unit`."""
    if unit:
        for i in range(n):
            z[to + i] = _unit((a * np.float32(x[at + i]) + b * np.float32(y[of + i])) + c)
    else:
        for i in range(n):
            z[to + i] = (a * np.float32(x[at + i]) + b * np.float32(y[of + i])) + c


@jit
def accumulate(x, at, n, a, begun, total, to):  # type: ignore[no-untyped-def]
    """total += a x; the first summand takes the place of what was there."""
    if begun:
        for i in range(n):
            total[to + i] += a * np.float32(x[at + i])
    else:
        for i in range(n):
            total[to + i] = a * np.float32(x[at + i])


@jit
def _multiply(x, at, y, of, n, a, b, unit, lines, power, z):  # type: ignore[no-untyped-def]
    """z = 127.5 (x / 127.5)^a (y / 127.5)^b as one power of two, clipped right away if `unit`; black stays black.

    Two short loops, for one long one keeps too many values alive to stay in registers.
    """
    offset = (np.float32(1) - a) * _LOG_MIDDLE
    black = np.float32(0) if a != 0 else np.float32(-1)
    most = _LOG_WHITE if unit else np.float32(127)
    for i in range(n):
        v = np.float32(x[at + i])
        v = v if v > _SMALLEST else _SMALLEST
        lines[power + i] = (a * _log2(v) + offset) + b * _LOG_LEVELS[y[of + i]]
    for i in range(n):
        t = lines[power + i]
        t = t if t > np.float32(-126) else np.float32(-126)
        v = _exp2(t if t < most else most)
        lines[z + i] = v if np.float32(x[at + i]) > black else np.float32(0)


@jit
def _clip(x, at, n, rule):  # type: ignore[no-untyped-def]
    if rule == Clip.UNIT:
        for i in range(n):
            x[at + i] = _unit(x[at + i])
    elif rule == Clip.CUT:
        for i in range(n):
            x[at + i] = np.float32(np.int32(_unit(x[at + i])))
    elif rule == Clip.WRAP:
        for i in range(n):
            v = x[at + i]
            inside = abs(v) < np.float32(2147483648.0)
            x[at + i] = np.float32(np.int32(v if inside else np.float32(0)) & np.int32(255))


@jit
def draw_bits(identity, words, stream, first, count, out):  # type: ignore[no-untyped-def]
    """Numbers first .. first + count of the stream's 32-bit draws go to out[first % 4 :]; returns where they start."""
    begin, end = np.uint64(first), np.uint64(first + count)
    block = begin >> np.uint64(2)
    low, high = np.uint64(identity & 0xFFFFFFFF), np.uint64(stream) | np.uint64(identity >> 32) << np.uint64(16)
    k0, k1, epoch = np.uint64(words[0]), np.uint64(words[1]), np.uint64(words[2])
    for j in range(((end + np.uint64(3)) >> np.uint64(2)) - block):
        w0, w1, w2, w3 = _philox(block + j, low, epoch, high, k0, k1)
        at = np.uint64(4) * j
        out[at] = w0
        out[at + np.uint64(1)] = w1
        out[at + np.uint64(2)] = w2
        out[at + np.uint64(3)] = w3
    return begin - (block << np.uint64(2))


@jit
def _keep(x, at, new, of, n, draws, start, rate, channels, z, to):  # type: ignore[no-untyped-def]
    """z = x where its draw is below the rate, else the new value; `channels` values share a draw."""
    threshold = np.uint64(np.float64(rate) * 4294967296.0)
    every = threshold > np.uint64(0xFFFFFFFF)
    limit = np.uint32(threshold & np.uint64(0xFFFFFFFF))
    # Both values are loaded, and for pixels weighed by 1 and 0: a branch on random bits is mispredicted half the time.
    if channels == 1:
        for i in range(n):
            before, after = np.float32(x[at + i]), np.float32(new[of + i])
            z[to + i] = before if every or draws[start + i] < limit else after
    else:
        for i in range(n // np.uint64(3)):
            stays = np.float32(1) if every or draws[start + i] < limit else np.float32(0)
            changes = np.float32(1) - stays
            for c in range(np.uint64(3)):
                k = np.uint64(3) * i + c
                z[to + k] = stays * np.float32(x[at + k]) + changes * np.float32(new[of + k])


@jit
def _weigh(x, at, n, mask, first, z, to):  # type: ignore[no-untyped-def]
    """z = the blend of x and z by a mask (H, W, 1 or 3), from its pixel `first` on."""
    flat, channels = mask.reshape(-1), np.uint64(mask.shape[2])
    for i in range(n // np.uint64(3)):
        for c in range(np.uint64(3)):
            m = np.float32(flat[(first + i) * channels + min(c, channels - np.uint64(1))]) / np.float32(255)
            k = np.uint64(3) * i + c
            z[to + k] = m * np.float32(x[at + k]) + (np.float32(1) - m) * z[to + k]


@jit
def weigh_levels(y, of, n, mask, first, weights, z, to):  # type: ignore[no-untyped-def]
    """z = the rounded blend of z and y, bytes, by a mask (H, W, 1 or 3), from its pixel `first` on.

    In whole numbers, t / 255 to the nearest: there are no halves, and float32, as `_weigh` has it, is never as far off
    as the next one is near.  weights: room for n bytes.
    """
    flat, start = mask.reshape(-1), np.uint64(first)
    if mask.shape[2] == 1:
        for i in range(n // np.uint64(3)):
            k, m = np.uint64(3) * i, flat[start + i]
            weights[k] = m
            weights[k + np.uint64(1)] = m
            weights[k + np.uint64(2)] = m
    else:
        load(flat, np.uint64(3) * start, n, weights, np.uint64(0))
    for i in range(n):  # nothing exceeds 16 bits, and half as wide is twice as fast
        m = np.uint16(weights[i])
        before, after = np.uint16(m * np.uint16(z[to + i])), np.uint16(np.uint16(255) - m) * np.uint16(y[of + i])
        t = np.uint16(before + np.uint16(after) + np.uint16(128))
        z[to + i] = np.uint8(np.uint16(t + np.uint16(t >> np.uint16(8))) >> np.uint16(8))


@jit
def take_step(step, x, at, y, of, first, n, lines, total, z, spare, masks, identity, words, draws):  # type: ignore[no-untyped-def]
    """One step on n values, those from the picture's pixel `first` on: returns where in `lines` the new ones are.

    x[at :]: the levels so far, bytes or float32.  y[of :]: bytes of the layer.  lines[total :]: the sums.  z, spare:
    two places in `lines` for new levels.
    """
    mode, rule, where = step.mode, step.clip, step.where
    chance = where == Where.PIXELS or where == Where.ELEMENTS
    # Levels of a layer need no clip; a mask is applied before the clip.
    at_once = where != Where.MASK and ((rule == Clip.UNIT and mode != Mode.TOTAL) or mode == Mode.SET)
    if mode == Mode.SET:
        if not chance:
            load(y, of, n, lines, z)
    elif mode == Mode.TOTAL:
        load(lines, total, n, lines, z)
    elif mode == Mode.GEOMETRIC:
        _multiply(x, at, y, of, n, step.a, step.b, at_once, lines, spare, z)
    else:
        c = np.float32(127.5) * ((np.float32(1) - step.a) - step.b) if mode == Mode.ARITHMETIC else np.float32(0)
        _linear(x, at, y, of, n, step.a, step.b, c, at_once, lines, z)
    if where == Where.MASK:
        _weigh(x, at, n, masks[step.index], np.uint64(first), lines, z)
    if not at_once:
        _clip(lines, z, n, rule)
    if not chance:
        return z
    channels = 3 if where == Where.PIXELS else 1
    start = draw_bits(identity, words, step.stream, first * (3 // channels), int(n) // channels, draws)
    if mode == Mode.SET:
        _keep(x, at, y, of, n, draws, start, step.rate, channels, lines, z)
        return z
    _keep(x, at, lines, z, n, draws, start, step.rate, channels, lines, spare)
    return spare


@jit
def _level(v, bounded):  # type: ignore[no-untyped-def]
    """Half up, clipped unless `bounded`; not-a-number gives 0."""
    v += np.float32(0.5)
    return np.uint8(np.int32(v if bounded else _unit(v)))


@jit
def to_levels(x, at, n, bounded, out, to):  # type: ignore[no-untyped-def]
    """out = x, rounded; bounded: whether it is known to need no clip."""
    for i in range(n):
        out[to + i] = _level(x[at + i], bounded)


@jit
def weighted_sum(sources, slots, rendered, places, weights, count, bounded, out):  # type: ignore[no-untyped-def]
    """out = the rounded sum of `count` weighted pictures, 1 to 4.

    Picture k starts at places[k], of slots if rendered[k], else of sources.  A loop that touches nothing but bytes gets
    longer vectors than one over float32 lines.
    """
    n = np.uint64(out.size)
    p0, p1, p2, p3 = places[0], places[1], places[2], places[3]
    a0, a1, a2, a3 = weights[0], weights[1], weights[2], weights[3]
    y0, y1 = slots if rendered[0] else sources, slots if rendered[1] else sources
    y2, y3 = slots if rendered[2] else sources, slots if rendered[3] else sources
    if count == 1:
        for i in range(n):
            out[i] = _level(a0 * np.float32(y0[p0 + i]), bounded)
    elif count == 2:
        for i in range(n):
            out[i] = _level(a0 * np.float32(y0[p0 + i]) + a1 * np.float32(y1[p1 + i]), bounded)
    elif count == 3:
        for i in range(n):
            v = a0 * np.float32(y0[p0 + i]) + a1 * np.float32(y1[p1 + i])
            out[i] = _level(v + a2 * np.float32(y2[p2 + i]), bounded)
    else:
        for i in range(n):
            v = (a0 * np.float32(y0[p0 + i]) + a1 * np.float32(y1[p1 + i])) + a2 * np.float32(y2[p2 + i])
            out[i] = _level(v + a3 * np.float32(y3[p3 + i]), bounded)
