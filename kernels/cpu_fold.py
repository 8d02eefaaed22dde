"""The fold: all steps of a sample's program, row by row, in float32 lines that stay in the first-level cache.

Computed indices are uint64 all through the CPU kernels: for a signed one Numba has to ask whether it counts from the
end, and a loop that asks does not vectorise.
"""

from __future__ import annotations

import numpy as np

from . import Clip, Mode, Source, Where
from .cpu_blend import draw_bits, load, round_, sum_, take_step
from .cpu_ops import apply_op
from .cpu_warp import copy
from .jit import jit

# What becomes of a layer: rows [top, bottom) are read; its picture is that of layer `same`, which is itself unless an
# earlier one is equal; it is put into a slot, or read where it lies (-1); window: row by row, when the fold is there.
_PLAN = np.dtype(
    [("slot", np.int64), ("same", np.int64), ("top", np.int64), ("bottom", np.int64), ("window", np.bool_)], align=True
)
_NEXT = 3  # lines that take turns: the levels so far, the next ones, and what a step needs on the way; then the sums


@jit
def _bounded(steps, height, width):  # type: ignore[no-untyped-def]
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
        whole = step.top <= 0 and step.left <= 0 and step.bottom >= height and step.right >= width
        if whole and step.where == Where.EVERYWHERE:
            low, high = below, above
        else:
            low, high = min(low, below), max(high, above)
    return low > -0.25 and high < 255.25


@jit
def _equal(layers, ops, j, k):  # type: ignore[no-untyped-def]
    """Whether two layers are the same picture."""
    one, other = layers[j], layers[k]
    if one.source != other.source or one.index != other.index or one.top != other.top or one.left != other.left:
        return False
    for d in range(ops.shape[1]):
        if ops[j, d].code != ops[k, d].code:
            return False
        if ops[j, d].code == 0:
            break
        for v in range(6):
            if ops[j, d].p[v] != ops[k, d].p[v]:
                return False
    return True


@jit
def _plan(layers, ops, steps, plan):  # type: ignore[no-untyped-def]
    """Fill in all but the slots; returns the number of steps."""
    for k in range(plan.shape[0]):
        plan[k].slot, plan[k].same, plan[k].top, plan[k].bottom, plan[k].window = -1, k, 1 << 30, 0, False
    count = 0
    while count < steps.shape[0] and steps[count].mode != Mode.END:
        step = steps[count]
        if step.mode != Mode.SUM and step.mode != Mode.TOTAL:
            plan[step.layer].top = min(plan[step.layer].top, step.top)
            plan[step.layer].bottom = max(plan[step.layer].bottom, step.bottom)
        count += 1
    for k in range(plan.shape[0]):
        if plan[k].top >= plan[k].bottom:
            continue
        plan[k].window = layers[k].source == Source.POOL and (ops.shape[1] == 0 or ops[k, 0].code == 0)
        for j in range(k):
            if plan[j].top < plan[j].bottom and plan[j].same == j and _equal(layers, ops, j, k):
                plan[j].top, plan[j].bottom = min(plan[j].top, plan[k].top), max(plan[j].bottom, plan[k].bottom)
                plan[k].same = j
                break
    return count


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
        for y in range(height):
            copy(pool[layer.index, layer.top + y, layer.left : layer.left + width].reshape(-1), source[y].reshape(-1))
    for k in range(n):
        target = out if (n - k) % 2 == 1 else spare
        if k == n - 1:
            apply_op(source, chain[k].code, chain[k].p, top, bottom, scratch, target)
        else:
            apply_op(source, chain[k].code, chain[k].p, 0, height, scratch, target)
        source = target


@jit
def _render_all(images, pool, row, layers, ops, plan, scratch, spare, pictures):  # type: ignore[no-untyped-def]
    """Give slots to the layers that need one, and render those that are not windows; returns the number of slots.

    Slots are taken in order, so that the same few stay in the cache.
    """
    used = 0
    for k in range(plan.shape[0]):
        top, bottom = plan[k].top, plan[k].bottom
        plain = ops.shape[1] == 0 or ops[k, 0].code == 0
        if top >= bottom or (plain and layers[k].source != Source.POOL):
            continue
        if plan[k].same < k:
            plan[k].slot = plan[plan[k].same].slot
            continue
        if not plan[k].window:
            _render(images, pool, row, layers[k], ops[k], top, bottom, scratch, spare, pictures[used])
        plan[k].slot = used
        used += 1
    return used


@jit
def _windows(pool, layers, plan, y0, y1, width, size, slots):  # type: ignore[no-untyped-def]
    """Put rows [y0, y1) of the windows at the beginnings of their slots."""
    for k in range(plan.shape[0]):
        if not plan[k].window or plan[k].same != k:
            continue
        n = np.uint64(3 * width)
        for y in range(max(y0, plan[k].top), min(y1, plan[k].bottom)):
            line = pool[layers[k].index, layers[k].top + y, layers[k].left : layers[k].left + width].reshape(-1)
            to = np.uint64(plan[k].slot) * size + np.uint64(y - y0) * n
            for i in range(n):
                slots[to + i] = line[i]


@jit
def _fold(images, pool, pictures, layers, plan, steps, masks, row, identity, words, lines, draws, out):  # type: ignore[no-untyped-def]
    """Run the steps on a few rows at a time: long lines for the loops, yet short enough for the first-level cache.

    A step that spans the width takes its rows as one line, a narrower one row by row.  Levels that are a layer's bytes
    stay where they lie until a step changes them.
    """
    height, width = images.shape[1], images.shape[2]
    size, pitch = np.uint64(3 * width * height), np.uint64(lines.shape[1])
    tile = max(lines.shape[1] // (3 * width), 1)
    sources, slots, line, made = images.reshape(-1), pictures.reshape(-1), lines.reshape(-1), out.reshape(-1)
    bounded, total = _bounded(steps, height, width), np.uint64(_NEXT) * pitch
    for y0 in range(0, height, tile):
        y1 = min(y0 + tile, height)
        start, n = np.uint64(3 * width * y0), np.uint64(3 * width * (y1 - y0))
        _windows(pool, layers, plan, y0, y1, width, size, slots)
        # The levels are line[at :], in line `now` of lines, or while now is -1 the bytes levels[at :].
        now, levels, at, begun = -1, sources, np.uint64(row) * size + start, False
        for k in range(steps.shape[0]):
            step = steps[k]
            mode, top, bottom = step.mode, max(step.top, y0), min(step.bottom, y1)
            if top >= bottom or step.left >= step.right:
                continue
            y, of, slot = sources, start, plan[step.layer].slot
            if slot >= 0:
                y, of = slots, np.uint64(slot) * size + (np.uint64(0) if plan[step.layer].window else start)
            else:
                of += np.uint64(row if layers[step.layer].source == Source.SAMPLE else layers[step.layer].index) * size
            full = step.left == 0 and step.right == width and bottom - top == y1 - y0
            simple = full and step.where == Where.EVERYWHERE
            if simple and mode == Mode.SET:
                now, levels, at = -1, y, of
                continue
            if simple and mode == Mode.LINEAR and step.clip == Clip.NONE and step.a == 1 and 0 <= now < _NEXT:
                sum_(y, of, n, step.b, True, line, at)
                continue
            if mode == Mode.TOTAL or (mode == Mode.SUM and not full):
                if not begun:
                    line[total : total + n] = 0
                begun = True
            if simple and mode == Mode.TOTAL and step.clip == Clip.NONE:
                now, at = _NEXT, total
                continue
            if mode != Mode.SUM and not full and (now < 0 or now == _NEXT):
                # A part is put back into the levels, which must be nobody else's.
                if now < 0:
                    load(levels, at, n, line, np.uint64(0))
                else:
                    load(line, at, n, line, np.uint64(0))
                now, at = 0, np.uint64(0)
            z, spare = np.uint64((now + 1) % 3) * pitch, np.uint64((now + 2) % 3) * pitch
            rows = bottom - top if step.left == 0 and step.right == width else 1
            m = np.uint64(3 * (step.right - step.left) * rows)
            for r in range(top, bottom, rows):
                first = r * width + step.left
                skip = np.uint64(3 * first) - start
                if mode == Mode.SUM and now < 0:
                    sum_(levels, at + skip, m, step.a, begun, line, total + skip)
                elif mode == Mode.SUM:
                    sum_(line, at + skip, m, step.a, begun, line, total + skip)
                elif now < 0:
                    at = take_step(
                        step, levels, at, y, of, first, m, line, total, z, spare, masks, identity, words, draws
                    )
                    now = int(at // pitch)
                else:
                    put = take_step(
                        step,
                        line,
                        at + skip,
                        y,
                        of + skip,
                        first,
                        m,
                        line,
                        total + skip,
                        z,
                        spare,
                        masks,
                        identity,
                        words,
                        draws,
                    )
                    if full:
                        now, at = int(put // pitch), put
                    else:
                        load(line, put, m, line, at + skip)
            begun |= mode == Mode.SUM
        if now < 0:
            for i in range(n):
                made[start + i] = levels[at + i]
        else:
            round_(line, at, n, bounded, made, start)


@jit
def mix(images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of `Backend.mix`.

    Work space: pictures (L + 1, H, W, 3) uint8, lines (4, n) float32 and draws (n + 8) uint32 with n >= 3 W,
    scratch as for `warp`.
    """
    height = images.shape[1]
    plan = np.empty(layers.shape[1], _PLAN)
    for i in range(lo, hi):
        own = out[i - lo]
        count = _plan(layers[i], ops[i], steps[i], plan)
        used = _render_all(images, pool, i, layers[i], ops[i], plan, scratch, own, pictures)
        made = own if finish[i].code == 0 else pictures[used]
        _fold(images, pool, pictures, layers[i], plan, steps[i, :count], masks, i, ids[i], words, lines, draws, made)
        if finish[i].code != 0:
            apply_op(made, finish[i].code, finish[i].p, 0, height, scratch, own)


@jit
def bits(ids, words, stream, out):  # type: ignore[no-untyped-def]
    """See `Backend.bits`."""
    line = np.empty(out.shape[1] + 8, np.uint32)
    for i in range(out.shape[0]):
        draw_bits(ids[i], words, stream, 0, out.shape[1], line)
        out[i] = line[: out.shape[1]]
