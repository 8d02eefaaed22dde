"""The fold: all steps of a sample's program, row by row, in float32 lines that stay in the first-level cache."""

from __future__ import annotations

import numpy as np

from . import Clip, Mode, Source, Where, pixel
from .cpu_ops import apply_op
from .cpu_warp import copy
from .jit import compile_module, jit

_scalar = compile_module(pixel)
_arithmetic, _exp2, _log2, _philox = _scalar.arithmetic, _scalar.exp2, _scalar.log2, _scalar.philox4x32

# log2 of a layer's value as GEOMETRIC sees it, y / 127.5 and at least 1e-37.
_LOG_LEVELS = np.log2(np.maximum(np.arange(256) / 127.5, 1e-37)).astype(np.float32)
_LOG_MIDDLE = np.float32(np.log2(127.5))
_SMALLEST = np.float32(2.0**-126)


@jit
def _load(row, x):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        x[i] = np.float32(row[i])


@jit
def _linear(x, y, a, b, new):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        new[i] = a * x[i] + b * np.float32(y[i])


@jit
def _add(x, y, a, b, new):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        new[i] = _arithmetic(x[i], np.float32(y[i]), a, b)


@jit
def _multiply(x, y, a, b, new):  # type: ignore[no-untyped-def]
    """127.5 (x / 127.5)^a (y / 127.5)^b as one power of two; black stays black."""
    offset = (np.float32(1) - a) * _LOG_MIDDLE
    black = np.float32(0) if a != 0 else np.float32(-1)
    for i in range(x.shape[0]):
        v = x[i] if x[i] > _SMALLEST else _SMALLEST
        t = (a * _log2(v) + b * _LOG_LEVELS[y[i]]) + offset
        t = t if t > np.float32(-126) else np.float32(-126)
        t = t if t < np.float32(127) else np.float32(127)
        new[i] = _exp2(t) if x[i] > black else np.float32(0)


@jit
def _clip(new, rule):  # type: ignore[no-untyped-def]
    if rule == Clip.UNIT or rule == Clip.CUT:
        for i in range(new.shape[0]):
            v = new[i] if new[i] > np.float32(0) else np.float32(0)
            new[i] = v if v < np.float32(255) else np.float32(255)
    if rule == Clip.CUT:
        for i in range(new.shape[0]):
            new[i] = np.float32(np.int32(new[i]))
    elif rule == Clip.WRAP:
        for i in range(new.shape[0]):
            inside = abs(new[i]) < np.float32(2147483648.0)
            new[i] = np.float32(np.int64(new[i] if inside else np.float32(0)) & 255)


@jit
def _draws(identity, words, stream, first, count, out):  # type: ignore[no-untyped-def]
    """Numbers first .. first + count of the stream's 32-bit draws land in out[first % 4 :]; returns where they start."""
    block = first // 4
    low, high = np.uint64(identity & 0xFFFFFFFF), np.uint64(np.uint64(stream) | np.uint64(identity >> 32) << np.uint64(16))
    k0, k1, epoch = np.uint64(words[0]), np.uint64(words[1]), np.uint64(words[2])
    for j in range((first + count + 3) // 4 - block):
        w0, w1, w2, w3 = _philox(np.uint64(block + j), low, epoch, high, k0, k1)
        out[4 * j] = w0
        out[4 * j + 1] = w1
        out[4 * j + 2] = w2
        out[4 * j + 3] = w3
    return first - 4 * block


@jit
def _keep_drawn(x, new, draws, rate, channels):  # type: ignore[no-untyped-def]
    """Put x back where its draw is below the rate; `channels` values share a draw."""
    limit = np.uint64(np.float64(rate) * 4294967296.0)
    if channels == 1:
        for i in range(x.shape[0]):
            new[i] = x[i] if np.uint64(draws[i]) < limit else new[i]
    else:
        for i in range(draws.shape[0]):
            keep = np.uint64(draws[i]) < limit
            for c in range(3):
                new[3 * i + c] = x[3 * i + c] if keep else new[3 * i + c]


@jit
def _weigh(x, new, mask):  # type: ignore[no-untyped-def]
    """Blend by a mask row (pixels, 1 or 3)."""
    for i in range(mask.shape[0]):
        for c in range(3):
            m = np.float32(mask[i, min(c, mask.shape[1] - 1)]) / np.float32(255)
            new[3 * i + c] = m * x[3 * i + c] + (np.float32(1) - m) * new[3 * i + c]


@jit
def _blend(step, x, y, new):  # type: ignore[no-untyped-def]
    """new = what the step's mode makes of the line x and its layer's bytes y."""
    if step.mode == Mode.SET:
        _load(y, new)
    elif step.mode == Mode.LINEAR:
        _linear(x, y, step.a, step.b, new)
    elif step.mode == Mode.ARITHMETIC:
        _add(x, y, step.a, step.b, new)
    else:
        _multiply(x, y, step.a, step.b, new)


@jit
def _place(step, x, new, y, width, masks, identity, words, draws):  # type: ignore[no-untyped-def]
    """Clip the stretch `new` of row y and put it where the step does not keep x."""
    where = step.where
    if where == Where.MASK:
        _weigh(x, new, masks[step.index, y, step.left : step.right])
    _clip(new, step.clip)
    if where == Where.PIXELS or where == Where.ELEMENTS:
        channels = 3 if where == Where.PIXELS else 1
        n = new.shape[0] // channels
        at = _draws(identity, words, step.stream, (y * width + step.left) * (3 // channels), n, draws)
        _keep_drawn(x, new, draws[at : at + n], step.rate, channels)
    copy(new, x)


@jit
def _round(x, out):  # type: ignore[no-untyped-def]
    """Half up, clipped; not-a-number gives 0."""
    for i in range(x.shape[0]):
        v = x[i] + np.float32(0.5)
        v = v if v > np.float32(0) else np.float32(0)
        v = v if v < np.float32(255) else np.float32(255)
        out[i] = np.uint8(np.int32(v))


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
def _render(images, pool, row, layer, chain, top, bottom, pictures, slot, scratch):  # type: ignore[no-untyped-def]
    """Put the layer's picture into pictures[slot]; only rows [top, bottom) of it are wanted.

    Two more slots behind the layers' hold what an op still needs whole: the pool window and the picture between two ops.
    """
    height, width = images.shape[1], images.shape[2]
    spare = pictures.shape[0] - 2
    n = 0
    while n < chain.shape[0] and chain[n].code != 0:
        n += 1
    source = images[row if layer.source == Source.SAMPLE else layer.index]
    if layer.source == Source.POOL:
        source = pictures[spare]
        for y in range(height):
            copy(pool[layer.index, layer.top + y, layer.left : layer.left + width].reshape(-1), source[y].reshape(-1))
    for k in range(n):
        # An op must not write what it reads, and the last one must end in `slot`.
        target = pictures[slot if (n - 1 - k) % 2 == 0 else spare + 1]
        if k == n - 1:
            apply_op(source, chain[k].code, chain[k].p, top, bottom, scratch, target)
        else:
            apply_op(source, chain[k].code, chain[k].p, 0, height, scratch, target)
        source = target


@jit
def _layer_row(images, pool, pictures, row, y, layer, plain, slot):  # type: ignore[no-untyped-def]
    """Row y of a layer as bytes: from its source if that is seen as it is (plain), else from its rendered picture."""
    if not plain:
        return pictures[slot, y].reshape(-1)
    if layer.source == Source.POOL:
        return pool[layer.index, layer.top + y, layer.left : layer.left + images.shape[2]].reshape(-1)
    return images[row if layer.source == Source.SAMPLE else layer.index, y].reshape(-1)


@jit
def _sum(x, a, total):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        total[i] += a * x[i]


@jit
def _fold(images, pool, pictures, layers, chains, steps, masks, row, identity, words, lines, draws, out):  # type: ignore[no-untyped-def]
    """Run the steps on every row of the picture, layers that are not plain sources being in `pictures`."""
    height, width = images.shape[1], images.shape[2]
    x, new, total = lines[0], lines[1], lines[2]
    for y in range(height):
        _load(images[row, y].reshape(-1), x)
        total[:] = 0
        for step in steps:
            if step.mode == Mode.END:
                break
            if not step.top <= y < step.bottom:
                continue
            begin, end = 3 * step.left, 3 * step.right
            here, made = x[begin:end], new[: end - begin]
            if step.mode == Mode.SUM:
                _sum(here, step.a, total[begin:end])
                continue
            if step.mode == Mode.TOTAL:
                copy(total[begin:end], made)
            else:
                plain = chains[step.layer, 0].code == 0
                line = _layer_row(images, pool, pictures, row, y, layers[step.layer], plain, step.layer)
                _blend(step, here, line[begin:end], made)
            _place(step, here, made, y, width, masks, identity, words, draws)
        _round(x, out[y].reshape(-1))


@jit
def mix(images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of `Backend.mix`.

    Work space: pictures (L + 2, H, W, 3) uint8, lines (3, 3 W) float32, draws (3 W + 8) uint32, scratch as for `warp`.
    """
    height = images.shape[1]
    spare = pictures.shape[0] - 1
    for i in range(lo, hi):
        for slot in range(layers.shape[1]):
            top, bottom = _rows_used(steps[i], slot, height)
            if top < bottom and ops[i, slot, 0].code != 0:
                _render(images, pool, i, layers[i, slot], ops[i, slot], top, bottom, pictures, slot, scratch)
        made = out[i] if finish[i].code == 0 else pictures[spare]
        if steps.shape[1] == 0 or steps[i, 0].mode == Mode.END:
            copy(images[i].reshape(-1), made.reshape(-1))
        else:
            _fold(images, pool, pictures, layers[i], ops[i], steps[i], masks, i, ids[i], words, lines, draws, made)
        if finish[i].code != 0:
            apply_op(made, finish[i].code, finish[i].p, 0, height, scratch, out[i])


@jit
def bits(ids, words, stream, out):  # type: ignore[no-untyped-def]
    """See `Backend.bits`."""
    line = np.empty(out.shape[1] + 8, np.uint32)
    for i in range(out.shape[0]):
        _draws(ids[i], words, stream, 0, out.shape[1], line)
        out[i] = line[: out.shape[1]]
