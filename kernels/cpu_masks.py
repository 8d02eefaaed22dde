"""What is made of maps of saliency on a CPU: levels, masks, windows and distances."""

from __future__ import annotations

import numpy as np

from .jit import jit, prefetch

_AHEAD = np.uint64(4096)  # bytes of the next map that are asked for before they are read
_PLACES = 32  # of maps, that distances look at together
_BLOCK = np.uint64(256)  # values of a map that are quantised and counted together
_LEAST, _MOST = np.int32(-0x80000000), np.int32(0x7FFFFFFF)


@jit
def _bit_range(pattern, first, count, low, high):  # type: ignore[no-untyped-def]
    """Least and most of low, high and int32 numbers: the minima of bits vectorise, those of floats do not."""
    for k in range(count):
        low, high = min(low, pattern[first + k]), max(high, pattern[first + k])
    return low, high


@jit
def _finite_range(pattern):  # type: ignore[no-untyped-def]
    """Least and most of the finite float32 values with these bits, int32; 0 and 0 if there is none."""
    exponent, rest = np.int32(0x7F800000), np.int32(0x7FFFFFFF)
    lowest, highest = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
    low, high, ends = highest, lowest, np.empty(2, np.int32)
    for i in range(np.uint64(pattern.shape[0])):
        bits = pattern[i]
        key = np.int32(bits ^ ((bits >> np.int32(31)) & rest))
        finite = np.int32(bits & exponent) != exponent
        low = min(low, key if finite else highest)
        high = max(high, key if finite else lowest)
    ends[0], ends[1] = low ^ ((low >> np.int32(31)) & rest), high ^ ((high >> np.int32(31)) & rest)
    if high < low:
        ends[:] = 0
    return ends.view(np.float32)


@jit
def _plain(low, high):  # type: ignore[no-untyped-def]
    """Of a map with bits from low to high: its least value, bins a unit, and whether bits are in the order of values.

    They are if no value is negative; here the values are finite and have contrast as well.
    """
    ends = np.empty(2, np.int32)
    ends[0], ends[1] = low, high
    least, most = ends.view(np.float32)
    scale = np.float32(256) / (most - least)
    return least, scale, 0 <= low < high < 0x7F800000 and scale < np.float32(np.inf)


@jit
def _quantise_plain(values, first, count, least, scale, levels):  # type: ignore[no-untyped-def]
    for k in range(count):
        x = (values[first + k] - least) * scale
        levels[first + k] = np.uint8(np.int32(x if x < np.float32(255) else np.float32(255)))


@jit
def _quantise_any(values, levels):  # type: ignore[no-untyped-def]
    least, most = _finite_range(values.view(np.int32))
    if not least < most:
        levels[:] = 0
        return
    scale = np.float32(256) / (most - least)
    for k in range(np.uint64(values.shape[0])):
        v = values[k]
        x = (v - least) * scale
        x = x if v <= most else np.float32(0)  # false for not-a-number too
        x = x if x > np.float32(0) else np.float32(0)
        levels[k] = np.uint8(np.int32(x if x < np.float32(255) else np.float32(255)))


@jit
def quantise(maps, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.quantise`."""
    none, size = np.uint64(0), np.uint64(out[0].size)
    for i in range(lo, hi):
        values, levels = maps[i].reshape(-1), out[i].reshape(-1)
        low, high = _bit_range(values.view(np.int32), none, size, _MOST, _LEAST)
        least, scale, plain = _plain(low, high)
        if plain:
            _quantise_plain(values, none, size, least, scale, levels)
        else:
            _quantise_any(values, levels)


@jit
def _count_word(word, counts):  # type: ignore[no-untyped-def]
    """Count eight levels, which are a word, in counts (8, 256) int32.

    Eight counters: neighbouring pixels are often equal, and adding to one cell twice in a row stalls.
    """
    low = np.uint64(255)
    counts[0, word & low] += 1
    counts[1, (word >> np.uint64(8)) & low] += 1
    counts[2, (word >> np.uint64(16)) & low] += 1
    counts[3, (word >> np.uint64(24)) & low] += 1
    counts[4, (word >> np.uint64(32)) & low] += 1
    counts[5, (word >> np.uint64(40)) & low] += 1
    counts[6, (word >> np.uint64(48)) & low] += 1
    counts[7, word >> np.uint64(56)] += 1


@jit
def _words(levels):  # type: ignore[no-untyped-def]
    """Levels in words of eight; a rest is left out."""
    return levels[: levels.shape[0] // 8 * 8].view(np.uint64)


@jit
def _total(levels, counts):  # type: ignore[no-untyped-def]
    """counts[0] becomes how often each level occurs: the sum of the eight counters and the rest beside the words."""
    for i in range(levels.shape[0] // 8 * 8, levels.shape[0]):
        counts[0, levels[i]] += 1
    for k in range(1, 8):
        for v in range(256):
            counts[0, v] += counts[k, v]


@jit
def _count(levels, counts):  # type: ignore[no-untyped-def]
    """counts[0] = how often each level occurs."""
    counts[:] = 0
    words = _words(levels)
    for k in range(np.uint64(words.shape[0])):
        _count_word(words[k], counts)
    _total(levels, counts)


@jit
def _quantise_count(values, least, scale, levels, counts, pattern):  # type: ignore[no-untyped-def]
    """`_quantise_plain`, `_count`, and `_bit_range` of a pattern of the same size, block by block.

    Counting waits for the store of a counter, one a cycle; the processor does the rest, and fetches, meanwhile.
    """
    counts[:] = 0
    words, size, eight = _words(levels), np.uint64(values.shape[0]), np.uint64(8)
    full, low, high = size // _BLOCK * _BLOCK, _MOST, _LEAST
    ahead = np.uint64(pattern.ctypes.data) + _AHEAD
    for first in range(np.uint64(0), full, _BLOCK):
        _quantise_plain(values, first, _BLOCK, least, scale, levels)
        low, high = _bit_range(pattern, first, _BLOCK, low, high)
        for k in range(first // eight, (first + _BLOCK) // eight):
            _count_word(words[k], counts)
            prefetch(ahead + np.uint64(32) * k)
    _quantise_plain(values, full, size - full, least, scale, levels)
    for k in range(full // eight, size // eight):
        _count_word(words[k], counts)
    _total(levels, counts)
    return _bit_range(pattern, full, size - full, low, high)


@jit
def quantise_otsu(maps, middle, levels, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.quantise_otsu`.  While a map is worked on, the range of the next one is found."""
    counts, none, size = np.empty((8, 256), np.int32), np.uint64(0), np.uint64(levels[0].size)
    low, high = _bit_range(maps[lo].reshape(-1).view(np.int32), none, size, _MOST, _LEAST)
    for i in range(lo, hi):
        values, made = maps[i].reshape(-1), levels[i].reshape(-1)
        following = maps[min(i + 1, hi - 1)].reshape(-1).view(np.int32)
        least, scale, plain = _plain(low, high)
        if plain:
            low, high = _quantise_count(values, least, scale, made, counts, following)
        else:
            _quantise_any(values, made)
            _count(made, counts)
            low, high = _bit_range(following, none, size, _MOST, _LEAST)
        out[i] = _threshold(counts[0], middle)


@jit
def _threshold(counts, middle):  # type: ignore[no-untyped-def]
    """Otsu's threshold of a histogram; the criterion as the reference has it."""
    n = total = np.int64(0)
    for v in range(256):
        n += counts[v]
        total += np.int64(counts[v]) * v
    below = sums = np.int64(0)
    best, most = 255, -1.0
    for v in range(255):
        if counts[v] == 0:
            continue
        below += counts[v]
        sums += np.int64(counts[v]) * v
        if below == n:
            break
        apart = np.float64(n * sums - below * total)
        value = apart * apart / np.float64(below * (n - below))
        if value > most:
            best, most = v, value
    if middle and most >= 0.0:
        after = best + 1
        while counts[after] == 0:
            after += 1
        best = (best + after - 1) // 2
    return best


@jit
def otsu(levels, middle, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.otsu`."""
    counts = np.empty((8, 256), np.int32)
    for i in range(lo, hi):
        _count(levels[i].reshape(-1), counts)
        out[i] = _threshold(counts[0], middle)


@jit
def join_masks(levels, thresholds, partner, union, out, areas, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.join_masks`."""
    for i in range(lo, hi):
        j = partner[i]
        own, other, joint = levels[i].reshape(-1), levels[j].reshape(-1), out[i].reshape(-1)
        s, t = np.int16(min(max(thresholds[i], -1), 255)), np.int16(min(max(thresholds[j], -1), 255))
        first = second = both = np.int32(0)
        for k in range(np.uint64(own.shape[0])):
            a, b = np.int16(own[k]) > s, np.int16(other[k]) > t
            first = np.int32(first + np.int32(a))
            second = np.int32(second + np.int32(b))
            both = np.int32(both + np.int32(a & b))
            joint[k] = np.uint8(255) if ((a | b) if union else (a & b)) else np.uint8(0)
        areas[i, 0], areas[i, 1] = first, second
        areas[i, 2] = first + second - both if union else both


@jit
def best_windows(levels, sides, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.best_windows`."""
    columns, before = np.empty(levels.shape[2], np.int64), np.zeros(levels.shape[2] + 1, np.int64)
    for i in range(lo, hi):
        picture, height, width = levels[i], sides[i, 0], sides[i, 1]
        places = np.uint64(levels.shape[2] - width + 1)
        columns[:] = 0
        for y in range(height - 1):
            for x in range(columns.shape[0]):
                columns[x] += picture[y, x]
        most = np.int64(-1)
        for top in range(levels.shape[1] - height + 1):
            row = picture[top + height - 1]
            for x in range(columns.shape[0]):
                columns[x] += row[x]
            total = np.int64(0)
            for x in range(columns.shape[0]):
                total += columns[x]
                before[x + 1] = total
            behind, best = before[width:], most
            for x in range(places):
                best = max(best, behind[x] - before[x])
            if best > most:
                most = best
                left = 0
                while behind[left] - before[left] != best:
                    left += 1
                out[i, 0], out[i, 1] = top, left
            row = picture[top]
            for x in range(columns.shape[0]):
                columns[x] -= row[x]


@jit
def _add_squares(a, b, sums):  # type: ignore[no-untyped-def]
    """sums[j] += the sum of (a[k] - b[k, j])^2 over eight k."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for j in range(np.uint64(sums.shape[0])):
        d0, d1, d2, d3 = a0 - b0[j], a1 - b1[j], a2 - b2[j], a3 - b3[j]
        d4, d5, d6, d7 = a4 - b4[j], a5 - b5[j], a6 - b6[j], a7 - b7[j]
        sums[j] += ((d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)) + ((d4 * d4 + d5 * d5) + (d6 * d6 + d7 * d7))


@jit
def distances(maps, others, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.distances`.  Eight places of all others at a time, which are turned round for that, 32 at a time.

    The order of a sum is the same for all pairs.
    """
    count, size = others.shape
    turned, own = np.zeros((_PLACES, count), np.float64), np.zeros(_PLACES, np.float64)
    out[lo:hi] = 0
    for start in range(0, size, _PLACES):
        n = min(_PLACES, size - start)
        turned[n:], own[n:] = 0, 0  # beyond the end nothing differs
        for j in range(count):
            for k in range(n):
                turned[k, j] = others[j, start + k]
        for i in range(lo, hi):
            for k in range(n):
                own[k] = maps[i, start + k]
            for k in range(0, _PLACES, 8):
                _add_squares(own[k : k + 8], turned[k : k + 8], out[i])
