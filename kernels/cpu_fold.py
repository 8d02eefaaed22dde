"""The fold: all steps of a sample's program, row by row, in float32 lines that stay in the first-level cache.

Computed indices are uint64 all through the CPU kernels: for a signed one Numba has to ask whether it counts from the
end, and a loop that asks does not vectorise.
"""

from __future__ import annotations

import numpy as np

from . import Clip, Mode, Source, Where
from .cpu_blend import accumulate, covers, draw_bits, is_bounded, load, take_step, to_levels, weigh_levels, weighted_sum
from .cpu_ops import apply_op
from .cpu_resize import to_float
from .cpu_warp import clear, copy
from .jit import jit

# What becomes of a layer: rows [top, bottom) are read; its picture is that of layer `same`, which is itself unless an
# earlier one is equal; it is put into a slot, or read where it lies (-1); window: row by row, when the fold is there.
_PLAN = np.dtype(
    [("slot", np.int64), ("same", np.int64), ("top", np.int64), ("bottom", np.int64), ("window", np.bool_)], align=True
)
_TOTAL = 3  # the line of sums; lines 0, 1 and 2 take turns as the levels so far, the next ones, and what these need


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
def _render(images, pool, row, layer, chain, part, scratch, spare, out):  # type: ignore[no-untyped-def]
    """Put the rows of the layer's picture that are read, which `part` of the plan says, into out.

    spare: room for a picture between ops.
    """
    height, width = images.shape[1], images.shape[2]
    n = 0
    while n < chain.shape[0] and chain[n].code != 0:
        n += 1
    source = images[layer.index if layer.source == Source.MATE else row]
    if layer.source == Source.POOL:
        # An op must not write what it reads, and the last one must end in out.
        source = out if n % 2 == 0 else spare
        for y in range(height):
            copy(pool[layer.index, layer.top + y, layer.left : layer.left + width].reshape(-1), source[y].reshape(-1))
    for k in range(n):
        target = out if (n - k) % 2 == 1 else spare
        begin, end = (part.top, part.bottom) if k == n - 1 else (np.int64(0), height)
        apply_op(source, chain[k].code, chain[k].p, begin, end, scratch, target)
        source = target


@jit
def _take_slots(layers, ops, plan):  # type: ignore[no-untyped-def]
    """Give slots to the layers that need one and return their number.

    Slots are taken in order, so that the same few stay in the cache.
    """
    used = 0
    for k in range(plan.shape[0]):
        plain = ops.shape[1] == 0 or ops[k, 0].code == 0
        if plan[k].top >= plan[k].bottom or (plain and layers[k].source != Source.POOL):
            continue
        if plan[k].same < k:
            plan[k].slot = plan[plan[k].same].slot
        else:
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
def _place(layers, plan, row, k, size):  # type: ignore[no-untyped-def]
    """Where layer k starts, among the slots if it has one, else in the batch; -1 is the sample itself."""
    if k >= 0 and plan[k].slot >= 0:
        return np.uint64(plan[k].slot) * size
    return np.uint64(row if k < 0 or layers[k].source == Source.SAMPLE else layers[k].index) * size


@jit
def _summands(steps, plan, height, width, layers, weights):  # type: ignore[no-untyped-def]
    """The number of summands, at most 4, if the steps come to one weighted sum of whole layers, else 0.

    layers[0, :] and weights[0, :] become the summands, in order; -1 is the sample itself.
    """
    # Rows 0 are the levels, `bare` ones being one layer as it is, and rows 1 the total.
    count, summed, bare = 1, 0, True
    layers[0, 0] = -1
    for step in steps:
        if not covers(step, height, width) or plan[step.layer].window:
            return 0
        if step.mode == Mode.SET:
            layers[0, 0] = step.layer
            count, bare = 1, True
        elif step.mode == Mode.SUM and bare and summed < 4:
            layers[1, summed], weights[1, summed] = layers[0, 0], step.a
            summed += 1
        elif step.clip != Clip.NONE:
            return 0
        elif step.mode == Mode.TOTAL:
            for k in range(summed):
                layers[0, k], weights[0, k] = layers[1, k], weights[1, k]
            count, bare = summed, False
        elif step.mode == Mode.LINEAR and (bare or (step.a == 1 and count < 4)):
            if bare:
                weights[0, 0] = step.a
            layers[0, count], weights[0, count] = step.layer, step.b
            count, bare = count + 1, False
        else:
            return 0
    return 0 if bare else count


@jit
def _only_sets(steps):  # type: ignore[no-untyped-def]
    """Whether all steps do is to put parts of layers where they are, one of them by a mask at most."""
    masked = 0
    for step in steps:
        if step.where == Where.MASK and (step.clip == Clip.NONE or step.clip == Clip.UNIT):
            masked += 1
        elif step.where != Where.EVERYWHERE:
            return False
        if step.mode != Mode.SET:
            return False
    return masked < 2


@jit
def _set_parts(images, pictures, layers, plan, steps, masks, row, out):  # type: ignore[no-untyped-def]
    """The picture of a program of sets alone: bytes are copied, and no level becomes a float."""
    height, width = images.shape[1], images.shape[2]
    size, pitch = np.uint64(3 * width * height), np.uint64(3 * width)
    sources, slots, made = images.reshape(-1), pictures.reshape(-1), out.reshape(-1)
    weights = np.empty(pitch, np.uint8)
    load(sources, np.uint64(row) * size, size, made, np.uint64(0))
    for step in steps:
        if step.left >= step.right:
            continue
        n, of = np.uint64(3 * (step.right - step.left)), _place(layers, plan, row, step.layer, size)
        for r in range(max(step.top, 0), min(step.bottom, height)):
            at = np.uint64(r) * pitch + np.uint64(3 * step.left)
            y = slots if plan[step.layer].slot >= 0 else sources
            if step.where == Where.MASK:
                weigh_levels(y, of + at, n, masks[step.index], r * width + step.left, weights, made, at)
            else:
                load(y, of + at, n, made, at)


@jit
def _sum_layers(images, pictures, layers, plan, row, count, summands, weights, bounded, out):  # type: ignore[no-untyped-def]
    """The picture of a program that `_summands` has understood, in one go."""
    places, rendered = np.zeros(4, np.uint64), np.zeros(4, np.bool_)
    for k in range(count):
        places[k] = _place(layers, plan, row, summands[k], np.uint64(out.size))
        rendered[k] = summands[k] >= 0 and plan[summands[k]].slot >= 0
    weighted_sum(images.reshape(-1), pictures.reshape(-1), rendered, places, weights, count, bounded, out.reshape(-1))


@jit
def _sum_part(step, x, at, top, bottom, y0, width, begun, line, total):  # type: ignore[no-untyped-def]
    """SUM in rows [top, bottom) of the tile that begins with row y0: as one line, or row by row if it is narrower."""
    rows = bottom - top if step.left == 0 and step.right == width else 1
    n = np.uint64(3 * (step.right - step.left) * rows)
    for y in range(top, bottom, rows):
        skip = np.uint64(3 * ((y - y0) * width + step.left))
        accumulate(x, at + skip, n, step.a, begun, line, total + skip)


@jit
def _change_part(step, line, at, y, of, top, bottom, y0, width, total, z, spare, masks, identity, words, draws):  # type: ignore[no-untyped-def]
    """A step in rows [top, bottom) of the tile that begins with row y0, whose levels line[at :] it changes in place."""
    rows = bottom - top if step.left == 0 and step.right == width else 1
    n = np.uint64(3 * (step.right - step.left) * rows)
    for r in range(top, bottom, rows):
        skip, first = np.uint64(3 * ((r - y0) * width + step.left)), r * width + step.left
        put = take_step(
            step, line, at + skip, y, of + skip, first, n, line, total + skip, z, spare, masks, identity, words, draws
        )
        load(line, put, n, line, at + skip)


@jit
def _fold(images, pool, pictures, layers, plan, steps, masks, row, identity, words, bounded, lines, draws, out):  # type: ignore[no-untyped-def]
    """Run the steps on a few rows at a time: long lines for the loops, yet short enough for the first-level cache.

    Levels that are a layer's bytes stay where they lie until a step changes them.
    """
    height, width = images.shape[1], images.shape[2]
    size, pitch = np.uint64(3 * width * height), np.uint64(lines.shape[1])
    tile = max(lines.shape[1] // (3 * width), 1)
    sources, slots, line, made = images.reshape(-1), pictures.reshape(-1), lines.reshape(-1), out.reshape(-1)
    total = np.uint64(_TOTAL) * pitch
    for y0 in range(0, height, tile):
        y1 = min(y0 + tile, height)
        start, n = np.uint64(3 * width * y0), np.uint64(3 * width * (y1 - y0))
        _windows(pool, layers, plan, y0, y1, width, size, slots)
        # The levels are line[at :], in line `now` of lines, or while now is -1 the bytes levels[at :].
        now, levels, at, begun = -1, sources, np.uint64(row) * size + start, False
        for step in steps:
            mode, top, bottom = step.mode, max(step.top, y0), min(step.bottom, y1)
            if top >= bottom or step.left >= step.right:
                continue
            y = slots if plan[step.layer].slot >= 0 else sources
            of = _place(layers, plan, row, step.layer, size) + (np.uint64(0) if plan[step.layer].window else start)
            full = step.left == 0 and step.right == width and bottom - top == y1 - y0
            if mode == Mode.SET and full and step.where == Where.EVERYWHERE:
                now, levels, at = -1, y, of
                continue
            if now == _TOTAL and (mode == Mode.SUM or not full):
                load(line, at, n, line, np.uint64(0))  # what changes sums or levels in place must find them apart
                now, at = 0, np.uint64(0)
            if not begun and (mode == Mode.TOTAL or (mode == Mode.SUM and not full)):
                clear(line, total, total + n)
                begun = True
            if mode == Mode.SUM:
                if now < 0:
                    _sum_part(step, levels, at, top, bottom, y0, width, begun, line, total)
                else:
                    _sum_part(step, line, at, top, bottom, y0, width, begun, line, total)
                begun = True
                continue
            if mode == Mode.TOTAL and full and step.where == Where.EVERYWHERE and step.clip == Clip.NONE:
                now, at = _TOTAL, total
                continue
            if not full and now < 0:
                load(levels, at, n, line, np.uint64(0))
                now, at = 0, np.uint64(0)
            z, spare = np.uint64((now + 1) % 3) * pitch, np.uint64((now + 2) % 3) * pitch
            first = y0 * width
            if not full:
                _change_part(
                    step, line, at, y, of, top, bottom, y0, width, total, z, spare, masks, identity, words, draws
                )
            elif now < 0:
                at = take_step(step, levels, at, y, of, first, n, line, total, z, spare, masks, identity, words, draws)
                now = int(at // pitch)
            else:
                at = take_step(step, line, at, y, of, first, n, line, total, z, spare, masks, identity, words, draws)
                now = int(at // pitch)
        if now < 0:
            load(levels, at, n, made, start)
        else:
            to_levels(line, at, n, bounded, made, start)


@jit
def mix(images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch, out, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of `Backend.mix`.

    Work space: pictures (L + 1, H, W, 3) uint8, lines (4, n) float32 and draws (n + 8) uint32 with n >= 3 W,
    scratch as for `warp`.
    """
    height, width = images.shape[1], images.shape[2]
    plan = np.empty(layers.shape[1], _PLAN)
    terms, weights = np.zeros((2, 4), np.int64), np.zeros((2, 4), np.float32)
    for i in range(lo, hi):
        own = out[i - lo]
        count = _plan(layers[i], ops[i], steps[i], plan)
        used = _take_slots(layers[i], ops[i], plan)
        for k in range(plan.shape[0]):
            if plan[k].slot >= 0 and plan[k].same == k and not plan[k].window:
                _render(images, pool, i, layers[i, k], ops[i, k], plan[k], scratch, own, pictures[plan[k].slot])
        made = own if finish[i].code == 0 else pictures[used]
        active = steps[i, :count]
        bounded, number = is_bounded(active, height, width), _summands(active, plan, height, width, terms, weights)
        if _only_sets(active) and not plan["window"].any():
            _set_parts(images, pictures, layers[i], plan, active, masks, i, made)
        elif number > 0:
            _sum_layers(images, pictures, layers[i], plan, i, number, terms[0], weights[0], bounded, made)
        else:
            _fold(images, pool, pictures, layers[i], plan, active, masks, i, ids[i], words, bounded, lines, draws, made)
        if finish[i].code != 0:
            apply_op(made, finish[i].code, finish[i].p, np.int64(0), height, scratch, own)


@jit
def mix_float(  # type: ignore[no-untyped-def]
    images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch,
    table, out, channels_last, lo, hi,
):  # fmt: skip
    """Rows [lo, hi) of `Backend.mix_float`.  Work space: as for `mix`, with another picture, the last one."""
    made = pictures[pictures.shape[0] - 1 :]
    for i in range(lo, hi):
        mix(
            images, pool, layers, ops, steps, finish, ids, words, masks, pictures, lines, draws, scratch, made, i, i + 1
        )
        to_float(made, table, out[i - lo : i - lo + 1], channels_last, 0, 1)


@jit
def bits(ids, words, stream, out):  # type: ignore[no-untyped-def]
    """See `Backend.bits`."""
    line = np.empty(out.shape[1] + 8, np.uint32)
    for i in range(out.shape[0]):
        draw_bits(ids[i], words, stream, 0, out.shape[1], line)
        out[i] = line[: out.shape[1]]
