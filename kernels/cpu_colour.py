"""Colours turned round the wheel: to Pillow's HSV, in bytes, and back, without a branch, so that it vectorises."""

from __future__ import annotations

import numpy as np

from .jit import jit

_CHUNK = 1344  # pixels whose channels are taken apart at a time


@jit
def _turn(red, green, blue, n, shift):  # type: ignore[no-untyped-def]
    """Add `shift` to the H of n pixels, in place; red, green, blue: (n,) uint8."""
    one, six, last = np.float32(1), np.float64(6), np.float32(255)
    for i in range(n):
        r, g, b = np.int32(red[i]), np.int32(green[i]), np.int32(blue[i])
        v = max(r, max(g, b))
        span = np.int32(v - min(r, min(g, b)))
        d = np.float32(max(span, np.int32(1)))
        # How far the channels are below the highest, in float32; their sum in float64, as Pillow has it.
        r_below, g_below, b_below = np.float32(v - r) / d, np.float32(v - g) / d, np.float32(v - b) / d
        is_r, is_g = r == v, g == v
        plus = b_below if is_r else (r_below if is_g else g_below)
        minus = g_below if is_r else (b_below if is_g else r_below)
        start = np.float64(0) if is_r else (np.float64(2) if is_g else np.float64(4))
        sixths = np.float32(start + np.float64(plus) - np.float64(minus))
        turn = np.float64(sixths) / six + np.float64(1)
        turn = turn - np.float64(1) if turn >= np.float64(1) else turn
        h = np.int32(np.int32(np.float32(turn) * last) + shift) & np.int32(255)
        s = np.int32(np.float64(np.float32(span) / max(np.float32(v), one)) * np.float64(255))

        x = np.int32(6 * h)
        sixth = np.int32(x + 1 + (x >> 8)) >> np.int32(8)  # x // 255
        part = np.int32(x - 255 * sixth)
        part = part if sixth & np.int32(1) else np.int32(255 - part)
        # Neither is ever half-way between two levels, so how the quotient is rounded is no matter.
        low = np.int32(np.float32(v * (255 - s)) * np.float32(1 / 255) + np.float32(0.5))
        mid = np.int32(np.float64(np.int32(v * np.int32(65025 - s * part))) * np.float64(1 / 65025) + np.float64(0.5))
        r = v if sixth == 0 or sixth >= 5 else (mid if sixth == 1 or sixth == 4 else low)
        g = v if sixth == 1 or sixth == 2 else (mid if sixth == 0 or sixth == 3 or sixth == 6 else low)
        b = v if sixth == 3 or sixth == 4 else (mid if sixth == 2 or sixth == 5 else low)
        red[i], green[i], blue[i] = r, g, b


@jit
def hue(image, turns, out):  # type: ignore[no-untyped-def]
    """`Op.HUE`: H moves by trunc(255 turns) modulo 256."""
    source, target = image.reshape(-1), out.reshape(-1)
    planes = np.empty((3, _CHUNK), np.uint8)
    red, green, blue = planes[0], planes[1], planes[2]
    shift = np.int32(255 * turns)
    for start in range(0, source.shape[0], 3 * _CHUNK):
        at, n = np.uint64(start), np.uint64(min((source.shape[0] - start) // 3, _CHUNK))
        for i in range(n):
            k = at + np.uint64(3) * i
            red[i], green[i], blue[i] = source[k], source[k + np.uint64(1)], source[k + np.uint64(2)]
        _turn(red, green, blue, n, shift)
        for i in range(n):
            k = at + np.uint64(3) * i
            target[k], target[k + np.uint64(1)], target[k + np.uint64(2)] = red[i], green[i], blue[i]
