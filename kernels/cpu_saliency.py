"""Maps of saliency on a CPU: how they are made and enlarged; constants as in the reference."""

from __future__ import annotations

import numpy as np

from .jit import jit

_FLAT = 1e-9
_GUARD = 1e-8


@jit
def _extremes(plane):  # type: ignore[no-untyped-def]
    """Least and most, column by column first, for that vectorises."""
    low, high = plane[0].copy(), plane[0].copy()
    for y in range(1, plane.shape[0]):
        row = plane[y]
        for x in range(np.uint64(row.shape[0])):
            v = row[x]
            low[x] = v if v < low[x] else low[x]
            high[x] = v if v > high[x] else high[x]
    return low.min(), high.max()


@jit
def _add_rows(rows, lines):  # type: ignore[no-untyped-def]
    """lines = the sum of rows, two at a time."""
    if rows.shape[0] % 2:
        row = rows[0]
        for k in range(np.uint64(lines.shape[0])):
            lines[k] = np.uint32(row[k])
    else:
        lines[:] = 0
    for r in range(rows.shape[0] % 2, rows.shape[0], 2):
        row, below = rows[r], rows[r + 1]
        for k in range(np.uint64(lines.shape[0])):
            lines[k] += np.uint32(np.uint32(row[k]) + np.uint32(below[k]))


@jit
def _grey_cells(image, grey):  # type: ignore[no-untyped-def]
    """Mean grey, 0..255, of each cell: whole numbers up to the one division."""
    height, width, one = np.uint64(grey.shape[0]), np.uint64(grey.shape[1]), np.uint64(1)
    rows, pixels = image.reshape(image.shape[0], -1), np.uint64(image.shape[1])
    lines, edges = np.empty(rows.shape[1], np.uint32), np.empty(width + one, np.uint64)
    line, before = np.empty(pixels, np.uint64), np.zeros(pixels + one, np.uint64)
    for x in range(width + one):
        edges[x] = x * pixels // width
    for y in range(height):
        top, bottom = y * np.uint64(rows.shape[0]) // height, (y + one) * np.uint64(rows.shape[0]) // height
        _add_rows(rows[top:bottom], lines)
        for x in range(pixels):
            k = np.uint64(3) * x
            red, green, blue = np.uint64(lines[k]), np.uint64(lines[k + one]), np.uint64(lines[k + np.uint64(2)])
            line[x] = np.uint64(19595) * red + np.uint64(38470) * green + np.uint64(7471) * blue
        total = np.uint64(0)
        for x in range(pixels):  # by itself: it does not vectorise
            total += line[x]
            before[x + one] = total
        for x in range(width):
            left, right = edges[x], edges[x + one]
            count = np.uint64(65536) * (bottom - top) * (right - left)
            grey[y, x] = np.float64(before[right] - before[left]) / np.float64(count)


@jit
def prepare(images, grey, uneven):  # type: ignore[no-untyped-def]
    """Grey cells of pictures, and whether they differ; if not, they get a spot, for they must have a spectrum."""
    for i in range(images.shape[0]):
        _grey_cells(images[i], grey[i])
        least, most = _extremes(grey[i])
        uneven[i] = most - least > _FLAT * most
        if not uneven[i]:
            grey[i, 0, 0] += 1


@jit
def power(spectra, powers):  # type: ignore[no-untyped-def]
    """Squared amplitudes of half spectra (n, h, w // 2 + 1, 2), guarded.  Of grey, none is above that of 0, 0."""
    for i in range(powers.shape[0]):
        guard = (_GUARD * spectra[i, 0, 0, 0]) ** 2
        for y in range(np.uint64(powers.shape[1])):
            for x in range(np.uint64(powers.shape[2])):
                re, im = spectra[i, y, x, 0], spectra[i, y, x, 1]
                powers[i, y, x] = re * re + im * im + guard


@jit
def _half_mean(logs, width, means):  # type: ignore[no-untyped-def]
    """-1/2 of the mean of 3 x 3 logs of powers, which are periodic and equal at opposite frequencies."""
    height, half = logs.shape
    sums = np.empty((height, half), np.float64)
    for y in range(height):
        above, own, below = logs[y - 1 if y else height - 1], logs[y], logs[y + 1 if y + 1 < height else 0]
        for x in range(half):
            sums[y, x] = above[x] + own[x] + below[x]
    for y in range(height):
        own, opposite = sums[y], sums[(height - y) % height]
        for x in range(half):
            means[y, x] = own[x]
        for x in range(1, half):
            means[y, x] += own[x - 1]
        for x in range(half - 1):
            means[y, x] += own[x + 1]
        # Beyond the ends of the half are opposites of frequencies within it.
        means[y, 0] += opposite[min(1, half - 1)]
        means[y, half - 1] += opposite[width - half]
        for x in range(half):
            means[y, x] /= -18.0


@jit
def half_means(logs, width, means):  # type: ignore[no-untyped-def]
    """`_half_mean` of several pictures."""
    for i in range(logs.shape[0]):
        _half_mean(logs[i], width, means[i])


@jit
def _mirror(i, n):  # type: ignore[no-untyped-def]
    """Index i of n values that are mirrored about the outermost ones."""
    if n == 1:
        return 0
    i = abs(i) % (2 * (n - 1))
    return min(i, 2 * (n - 1) - i)


@jit
def _weights(cells):  # type: ignore[no-untyped-def]
    """The weight of a cell of its own, of both its neighbours, of those behind them, ... in the blur."""
    reach = (cells + 7) // 8
    taps = np.exp(-0.5 * (np.arange(reach + 1) * 16 / cells) ** 2)
    return taps / (2 * taps.sum() - taps[0])


@jit
def finish(residuals, uneven, out):  # type: ignore[no-untyped-def]
    """Magnitude, blur, and least to most on 0 to 1; nothing where pictures are even."""
    down, across = _weights(residuals.shape[1]), _weights(residuals.shape[2])
    for i in range(residuals.shape[0]):
        if uneven[i]:
            _finish(residuals[i], down, across, out[i])
        else:
            out[i] = 0


@jit
def _finish(residual, down, across, out):  # type: ignore[no-untyped-def]
    height, width = residual.shape
    reach = across.shape[0] - 1
    line, values = np.empty(width + 2 * reach, np.float64), np.empty((height, width), np.float64)
    for y in range(height):
        middle, row = line[reach : reach + width], residual[y]
        for x in range(np.uint64(width)):
            middle[x] = down[0] * abs(row[x])
        for k in range(1, down.shape[0]):
            above, below, tap = residual[_mirror(y - k, height)], residual[_mirror(y + k, height)], down[k]
            for x in range(np.uint64(width)):
                middle[x] += tap * (abs(above[x]) + abs(below[x]))
        for k in range(1, reach + 1):
            line[reach - k] = middle[_mirror(-k, width)]
            line[reach + width - 1 + k] = middle[_mirror(width - 1 + k, width)]
        made = values[y]
        for x in range(np.uint64(width)):
            made[x] = across[0] * middle[x]
        for k in range(1, reach + 1):
            before, behind, tap = line[reach - k :], line[reach + k :], across[k]
            for x in range(np.uint64(width)):
                made[x] += tap * (before[x] + behind[x])
    least, most = _extremes(values)
    scale = 1 / (most - least) if most - least > _FLAT * most else 0.0
    for y in range(height):
        for x in range(width):
            out[y, x] = np.float32((values[y, x] - least) * scale)


@jit
def _taps(cells, pixels):  # type: ignore[no-untyped-def]
    """Along an axis: the cell before a pixel's centre, the one behind it, and how far from the first to the second."""
    before, behind = np.empty(pixels, np.int64), np.empty(pixels, np.int64)
    part = np.empty(pixels, np.float32)
    for i in range(pixels):
        place = min(max((i + 0.5) * (cells / pixels) - 0.5, 0.0), cells - 1.0)
        before[i] = int(place)
        behind[i] = min(before[i] + 1, cells - 1)
        part[i] = np.float32(place - before[i])
    return before, behind, part


@jit
def _widen(cells, before, behind, part, lines):  # type: ignore[no-untyped-def]
    """Each row of a map (h, w) between its columns: lines (h, W)."""
    for y in range(np.uint64(cells.shape[0])):
        row, line = cells[y], lines[y]
        for x in range(np.uint64(line.shape[0])):
            a = row[np.uint64(before[x])]
            line[x] = a + part[x] * (row[np.uint64(behind[x])] - a)


@jit
def enlarge(maps, out, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.enlarge`."""
    height, width = out.shape[1:]
    before, behind, part = _taps(maps.shape[2], width)
    above, below, down = _taps(maps.shape[1], height)
    lines = np.empty((maps.shape[1], width), np.float32)
    for i in range(lo, hi):
        _widen(maps[i], before, behind, part, lines)
        for y in range(height):
            a, b, f, row = lines[above[y]], lines[below[y]], down[y], out[i, y]
            for x in range(width):
                row[x] = a[x] + f * (b[x] - a[x])


@jit
def share_masks(maps, partner, out, sums, lo, hi):  # type: ignore[no-untyped-def]
    """See `Backend.share_masks`."""
    height, width = out.shape[1:]
    before, behind, part = _taps(maps.shape[2], width)
    above, below, down = _taps(maps.shape[1], height)
    lines, others = np.empty((maps.shape[1], width), np.float32), np.empty((maps.shape[1], width), np.float32)
    small, unit, half = np.float32(1e-6), np.float32(255), np.float32(0.5)
    for i in range(lo, hi):
        sums[i] = 0
        _widen(maps[i], before, behind, part, lines)
        _widen(maps[partner[i]], before, behind, part, others)
        for y in range(height):
            a, b, f, row = lines[above[y]], lines[below[y]], down[y], out[i, y]
            c, d = others[above[y]], others[below[y]]
            for x in range(width):
                own = a[x] + f * (b[x] - a[x]) + small
                other = c[x] + f * (d[x] - c[x]) + small
                row[x] = np.uint8(np.int32(unit * (own / (own + other)) + half))
            total = np.uint32(0)
            for x in range(np.uint64(width)):
                total += np.uint32(row[x])
            sums[i] += total
