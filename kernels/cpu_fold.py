"""The fold: all steps of a sample's program, row by row, in float32 lines that stay in the first-level cache.

Computed indices are uint64 all through the CPU kernels: for a signed one Numba has to ask whether it counts from the
end, and a loop that asks does not vectorise.
"""

from __future__ import annotations

import numpy as np

from . import Clip, Mode, Source, Where, pixel
from .cpu_ops import apply_op
from .cpu_warp import copy
from .jit import compile_module, jit

_scalar = compile_module(pixel)
_exp2, _log2, _philox = _scalar.exp2, _scalar.log2, _scalar.philox4x32

# log2 of a layer's value as GEOMETRIC sees it, y / 127.5 and at least 1e-37.
_LOG_LEVELS = np.log2(np.maximum(np.arange(256) / 127.5, 1e-37)).astype(np.float32)
_LOG_MIDDLE = np.float32(np.log2(127.5))
_LOG_WHITE = np.float32(np.log2(255))
_SMALLEST = np.float32(2.0**-126)


@jit
def _load(y, x):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        x[i] = np.float32(y[i])


@jit
def _unit(v):  # type: ignore[no-untyped-def]
    v = v if v > np.float32(0) else np.float32(0)
    return v if v < np.float32(255) else np.float32(255)


@jit
def _linear(x, y, a, b, c, unit):  # type: ignore[no-untyped-def]
    """x = (a x + b y) + c, clipped right away if `unit`."""
    if unit:
        for i in range(x.shape[0]):
            x[i] = _unit((a * x[i] + b * np.float32(y[i])) + c)
    else:
        for i in range(x.shape[0]):
            x[i] = (a * x[i] + b * np.float32(y[i])) + c


@jit
def _sum(x, a, total):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        total[i] += a * x[i]


@jit
def _multiply(x, y, a, b, power, unit):  # type: ignore[no-untyped-def]
    """x = 127.5 (x / 127.5)^a (y / 127.5)^b as one power of two, clipped right away if `unit`; black stays black.

    Three short loops, for one long one keeps too many values alive to stay in registers.
    """
    offset = (np.float32(1) - a) * _LOG_MIDDLE
    black = np.float32(0) if a != 0 else np.float32(-1)
    most = _LOG_WHITE if unit else np.float32(127)
    n = x.shape[0]
    for i in range(n):
        v = x[i] if x[i] > _SMALLEST else _SMALLEST
        power[i] = a * _log2(v) + offset
    for i in range(n):
        power[i] += b * _LOG_LEVELS[y[i]]
    for i in range(n):
        t = power[i] if power[i] > np.float32(-126) else np.float32(-126)
        v = _exp2(t if t < most else most)
        x[i] = v if x[i] > black else np.float32(0)


@jit
def _clip(x, rule):  # type: ignore[no-untyped-def]
    if rule == Clip.UNIT:
        for i in range(x.shape[0]):
            x[i] = _unit(x[i])
    elif rule == Clip.CUT:
        for i in range(x.shape[0]):
            x[i] = np.float32(np.int32(_unit(x[i])))
    elif rule == Clip.WRAP:
        for i in range(x.shape[0]):
            inside = abs(x[i]) < np.float32(2147483648.0)
            x[i] = np.float32(np.int32(x[i] if inside else np.float32(0)) & np.int32(255))


@jit
def _draws(identity, words, stream, first, count, out):  # type: ignore[no-untyped-def]
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
    return int(begin - (block << np.uint64(2)))


@jit
def _keep(x, old, draws, rate, channels):  # type: ignore[no-untyped-def]
    """Put the old value back where its draw is below the rate; `channels` values share a draw."""
    threshold = np.uint64(np.float64(rate) * 4294967296.0)
    every = threshold > np.uint64(0xFFFFFFFF)
    limit = np.uint32(threshold & np.uint64(0xFFFFFFFF))
    # Both values are loaded, and for pixels weighed by 1 and 0: a branch on random bits is mispredicted half the time.
    if channels == 1:
        for i in range(x.shape[0]):
            before, after = old[i], x[i]
            x[i] = before if every or draws[i] < limit else after
    else:
        for i in range(np.uint64(draws.shape[0])):
            stays = np.float32(1) if every or draws[i] < limit else np.float32(0)
            changes = np.float32(1) - stays
            for c in range(np.uint64(3)):
                at = np.uint64(3) * i + c
                x[at] = stays * old[at] + changes * x[at]


@jit
def _weigh(x, old, mask):  # type: ignore[no-untyped-def]
    """Blend old and new by a mask (pixels, 1 or 3)."""
    for i in range(np.uint64(mask.shape[0])):
        for c in range(np.uint64(3)):
            m = np.float32(mask[i, min(c, np.uint64(mask.shape[1] - 1))]) / np.float32(255)
            at = np.uint64(3) * i + c
            x[at] = m * old[at] + (np.float32(1) - m) * x[at]


@jit
def _step(step, x, y, total, first, masks, identity, words, work, draws):  # type: ignore[no-untyped-def]
    """One step on a stretch of pixels, the first one being number `first` of the picture.

    x: its float32 levels, changed in place.  y: its layer's bytes.  total: its sums.  work: two more lines.
    """
    mode, rule, where = step.mode, step.clip, step.where
    old = work[0]
    if where != Where.EVERYWHERE:
        for i in range(x.shape[0]):
            old[i] = x[i]
    # Levels of a layer need no clip; a mask is applied before the clip.
    at_once = where != Where.MASK and ((rule == Clip.UNIT and mode != Mode.TOTAL) or mode == Mode.SET)
    if mode == Mode.SUM:
        _sum(x, step.a, total)
        return
    if mode == Mode.SET:
        _load(y, x)
    elif mode == Mode.TOTAL:
        copy(total, x)
    elif mode == Mode.GEOMETRIC:
        _multiply(x, y, step.a, step.b, work[1], at_once)
    else:
        c = np.float32(127.5) * ((np.float32(1) - step.a) - step.b) if mode == Mode.ARITHMETIC else np.float32(0)
        _linear(x, y, step.a, step.b, c, at_once)
    if where == Where.MASK:
        mask = masks[step.index]
        _weigh(x, old, mask.reshape(-1, mask.shape[2])[first : first + x.shape[0] // 3])
    if not at_once:
        _clip(x, rule)
    if where == Where.PIXELS or where == Where.ELEMENTS:
        channels = 3 if where == Where.PIXELS else 1
        n = x.shape[0] // channels
        at = _draws(identity, words, step.stream, first * (3 // channels), n, draws)
        _keep(x, old, draws[at : at + n], step.rate, channels)


@jit
def _round(x, out):  # type: ignore[no-untyped-def]
    """Half up, clipped; not-a-number gives 0."""
    for i in range(x.shape[0]):
        out[i] = np.uint8(np.int32(_unit(x[i] + np.float32(0.5))))


@jit
def _rows_used(steps, layer, height):  # type: ignore[no-untyped-def]
    """The rows in which any step reads the layer."""
    top, bottom = height, 0
    for step in steps:
        if step.mode == Mode.END:
            break
        if step.layer == layer and step.mode != Mode.SUM and step.mode != Mode.TOTAL:
            top, bottom = min(top, step.top), max(bottom, step.bottom)
    return top, bottom


@jit
def _render(images, pool, row, layer, chain, top, bottom, scratch, spare, out):  # type: ignore[no-untyped-def]
    """Put the layer's picture into out; only rows [top, bottom) of it are wanted.

    spare: room for a picture between ops.
    """
    height, width = images.shape[1], images.shape[2]
    n = 0
    while n < chain.shape[0] and chain[n].code != 0:
        n += 1
    source = images[row if layer.source == Source.SAMPLE else layer.index]
    if layer.source == Source.POOL:
        # An op must not write what it reads, and the last one must end in out.
        source = out if n % 2 == 0 else spare
        for y in range(0 if n > 0 else top, height if n > 0 else bottom):
            copy(pool[layer.index, layer.top + y, layer.left : layer.left + width].reshape(-1), source[y].reshape(-1))
    for k in range(n):
        target = out if (n - k) % 2 == 1 else spare
        if k == n - 1:
            apply_op(source, chain[k].code, chain[k].p, top, bottom, scratch, target)
        else:
            apply_op(source, chain[k].code, chain[k].p, 0, height, scratch, target)
        source = target


@jit
def _layer(images, pictures, row, layer, slot):  # type: ignore[no-untyped-def]
    """The bytes of a layer: of its rendered picture, or of its source if that is seen as it is (slot -1)."""
    if slot >= 0:
        return pictures[slot].reshape(-1)
    return images[row if layer.source == Source.SAMPLE else layer.index].reshape(-1)


@jit
def _is_plain(layer, chain):  # type: ignore[no-untyped-def]
    return layer.source != Source.POOL and chain[0].code == 0


@jit
def _covers(step, height, width):  # type: ignore[no-untyped-def]
    """Whether a step replaces the whole picture, whatever it was."""
    full = step.top <= 0 and step.left <= 0 and step.bottom >= height and step.right >= width
    return full and step.mode == Mode.SET and step.where == Where.EVERYWHERE


@jit
def _fold(images, pictures, layers, slots, steps, masks, row, identity, words, lines, draws, out):  # type: ignore[no-untyped-def]
    """Run the steps on a few rows at a time: long lines for the loops, yet short enough for the first-level cache.

    A step that spans the width takes its rows as one line, a narrower one row by row.
    """
    height, width = images.shape[1], images.shape[2]
    tile = max(lines.shape[1] // (3 * width), 1)
    own, target = images[row].reshape(-1), out.reshape(-1)
    for y0 in range(0, height, tile):
        y1 = min(y0 + tile, height)
        start, n = 3 * width * y0, 3 * width * (y1 - y0)
        x, total = lines[0, :n], lines[1, :n]
        if not _covers(steps[0], height, width):
            _load(own[start : start + n], x)
        for i in range(n):
            total[i] = 0
        for step in steps:
            if step.mode == Mode.END:
                break
            top, bottom = max(step.top, y0), min(step.bottom, y1)
            if top >= bottom or step.left >= step.right:
                continue
            layer = _layer(images, pictures, row, layers[step.layer], slots[step.layer])
            whole = step.left == 0 and step.right == width
            rows = bottom - top if whole else 1
            for y in range(top, bottom, rows):
                first, count = y * width + step.left, (step.right - step.left) * rows
                begin, end = 3 * first, 3 * (first + count)
                here = slice(begin - start, end - start)
                _step(step, x[here], layer[begin:end], total[here], first, masks, identity, words, lines[2:], draws)
        _round(x, target[start : start + n])


@jit
def mix(images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of `Backend.mix`.

    Work space: pictures (L + 1, H, W, 3) uint8, lines (4, n) float32 and draws (n + 8) uint32 with n >= 3 W,
    scratch as for `warp`.
    """
    height = images.shape[1]
    slots = np.empty(layers.shape[1], np.int64)
    for i in range(lo, hi):
        used = 0  # slots are taken in order, so that the same few stay in the cache
        for k in range(layers.shape[1]):
            slots[k] = -1
            top, bottom = _rows_used(steps[i], k, height)
            if top < bottom and not _is_plain(layers[i, k], ops[i, k]):
                _render(images, pool, i, layers[i, k], ops[i, k], top, bottom, scratch, out[i - lo], pictures[used])
                slots[k] = used
                used += 1
        made = out[i - lo] if finish[i].code == 0 else pictures[used]
        if steps.shape[1] == 0 or steps[i, 0].mode == Mode.END:
            copy(images[i].reshape(-1), made.reshape(-1))
        else:
            _fold(images, pictures, layers[i], slots, steps[i], masks, i, ids[i], words, lines, draws, made)
        if finish[i].code != 0:
            apply_op(made, finish[i].code, finish[i].p, 0, height, scratch, out[i - lo])


@jit
def bits(ids, words, stream, out):  # type: ignore[no-untyped-def]
    """See `Backend.bits`."""
    line = np.empty(out.shape[1] + 8, np.uint32)
    for i in range(out.shape[0]):
        _draws(ids[i], words, stream, 0, out.shape[1], line)
        out[i] = line[: out.shape[1]]
