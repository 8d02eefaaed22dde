"""Saliency in clear NumPy: maps from pictures, masks from maps, windows and distances; see the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import F32, F64, U8

_GREY = np.array([19595, 38470, 7471])  # of 65536
_FLAT = 1e-9  # values that differ by less, of the largest one, are equal: rounding would draw the map
_GUARD = 1e-8  # amplitude, of the largest one, under which a frequency does not stand out from its neighbours
_SMALL = np.float32(1e-6)


def _edges(pixels: int, cells: int) -> NDArray[np.int64]:
    return np.arange(cells + 1) * pixels // cells


def _grey_cells(image: U8, height: int, width: int) -> F64:
    """Mean grey, 0..255, of each cell: whole numbers up to the one division."""
    grey = image.astype(np.int64) @ _GREY
    rows, columns = _edges(image.shape[0], height), _edges(image.shape[1], width)
    sums = np.add.reduceat(np.add.reduceat(grey, rows[:-1], axis=0), columns[:-1], axis=1)
    counts = np.diff(rows)[:, None] * np.diff(columns)
    return np.asarray(sums / (65536 * counts))


def _mean3x3(plane: F64) -> F64:
    """The mean of a value and its eight neighbours; the last row is next to the first, as in a spectrum."""
    for axis in (0, 1):
        plane = np.roll(plane, 1, axis) + plane + np.roll(plane, -1, axis)
    return plane / 9


def _blur(plane: F64) -> F64:
    """Gaussian whose sigma is a sixteenth of each side; mirrored about the outermost cells."""
    for axis in (0, 1):
        cells = plane.shape[axis]
        reach = -(-cells // 8)
        taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) * 16 / cells) ** 2)
        padded = np.pad(plane, [(reach, reach) if each == axis else (0, 0) for each in (0, 1)], mode="reflect")
        parts: Any = (tap * padded.take(range(k, k + cells), axis) for k, tap in enumerate(taps / taps.sum()))
        plane = np.asarray(sum(parts))
    return plane


def spectral_residual(images: U8, out: F32, lo: int, hi: int) -> None:
    """See `Backend.spectral_residual`.

    With L the log of an amplitude and P its phase, the spectrum of the map is exp(L - mean of L + iP): the spectrum of
    the picture by exp(-mean of L), up to the guard, which is squared and added to the squared amplitude.
    """
    for i in range(lo, hi):
        grey = _grey_cells(images[i], *out.shape[1:])
        out[i] = 0
        if grey.max() - grey.min() <= _FLAT * grey.max():
            continue
        spectrum = np.fft.fft2(grey)
        logs = np.log(spectrum.real**2 + spectrum.imag**2 + (_GUARD * grey.sum()) ** 2) / 2  # none is above the sum
        residual = np.abs(np.fft.ifft2(spectrum * np.exp(-_mean3x3(logs))))
        values = _blur(residual)
        least, most = values.min(), values.max()
        if most - least > _FLAT * most:
            out[i] = (values - least) / (most - least)


def _taps(cells: int, pixels: int) -> tuple[NDArray[np.int64], NDArray[np.int64], F32]:
    """Along an axis: the cell before a pixel's centre, the one behind it, and how far from the first to the second."""
    places = np.clip((np.arange(pixels) + 0.5) * (cells / pixels) - 0.5, 0, cells - 1)
    before = places.astype(np.int64)
    return before, np.minimum(before + 1, cells - 1), (places - before).astype(np.float32)


def _enlarged(cells: F32, height: int, width: int) -> F32:
    """One map, see `Backend.enlarge`."""
    before, behind, part = _taps(cells.shape[1], width)
    with np.errstate(invalid="ignore", over="ignore"):  # not-a-number beside values that are not finite
        lines = cells[:, before] + part * (cells[:, behind] - cells[:, before])
        before, behind, part = _taps(cells.shape[0], height)
        return np.asarray(lines[before] + part[:, None] * (lines[behind] - lines[before]))


def enlarge(maps: F32, out: F32, lo: int, hi: int) -> None:
    """See `Backend.enlarge`."""
    for i in range(lo, hi):
        out[i] = _enlarged(maps[i], *out.shape[1:])


def quantise(maps: F32, out: U8, lo: int, hi: int) -> None:
    """See `Backend.quantise`.  A range too large for float32 is one without contrast."""
    for i in range(lo, hi):
        out[i] = 0
        finite = np.isfinite(maps[i])
        if not finite.any():
            continue
        least, most = maps[i][finite].min(), maps[i][finite].max()
        with np.errstate(all="ignore"):  # a bin may be too narrow for float32: then all but the least value are in 255
            bins = (np.where(finite, maps[i], least) - least) * (np.float32(256) / (most - least))
        out[i] = np.minimum(np.floor(np.nan_to_num(bins, nan=0, posinf=255)), 255)


def otsu(levels: U8, middle: bool, out: NDArray[np.int32], lo: int, hi: int) -> None:
    """See `Backend.otsu`.

    With n pixels, n1 of them and the sum s1 of their levels up to t, and the sum s of all levels, the criterion is
    (n s1 - n1 s)^2 / (n1 (n - n1)) / n^2; what is squared and what divides it are whole numbers.
    """
    for i in range(lo, hi):
        counts = np.bincount(levels[i].ravel(), minlength=256)
        below, sums = np.cumsum(counts), np.cumsum(counts * np.arange(256))
        n, s = below[-1], sums[-1]
        parted = (below > 0) & (below < n)
        if not parted.any():
            out[i] = 255
            continue
        apart = (n * sums - below * s).astype(np.float64)
        divisor = np.where(parted, below * (n - below), 1).astype(np.float64)
        best = int(np.argmax(np.where(parted, apart * apart / divisor, -1)))
        after = best + 1 + int(np.argmax(counts[best + 1 :] > 0))
        out[i] = (best + after - 1) // 2 if middle else best


def join_masks(
    levels: U8,
    thresholds: NDArray[np.int32],
    partner: NDArray[np.int64],
    union: bool,
    out: U8,
    areas: NDArray[np.int64],
    lo: int,
    hi: int,
) -> None:
    """See `Backend.join_masks`."""
    for i in range(lo, hi):
        own, other = (levels[k] > thresholds[k] for k in (i, partner[i]))
        joint = own | other if union else own & other
        out[i] = np.where(joint, 255, 0)
        areas[i] = own.sum(), other.sum(), joint.sum()


def share_masks(maps: F32, partner: NDArray[np.int64], out: U8, sums: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.share_masks`."""
    for i in range(lo, hi):
        own, other = (_enlarged(maps[k], *out.shape[1:]) + _SMALL for k in (i, partner[i]))
        out[i] = np.floor(np.float32(255) * (own / (own + other)) + np.float32(0.5))
        sums[i] = out[i].sum()


def best_windows(levels: U8, sides: NDArray[np.int64], out: NDArray[np.int64], lo: int, hi: int) -> None:
    """See `Backend.best_windows`."""
    for i in range(lo, hi):
        height, width = (int(side) for side in sides[i])
        integral = np.pad(np.cumsum(np.cumsum(levels[i], 0, np.int64), 1), ((1, 0), (1, 0)))
        columns = integral[height:] - integral[:-height]
        sums = columns[:, width:] - columns[:, :-width]
        out[i] = np.unravel_index(np.argmax(sums), sums.shape)


def distances(maps: F32, others: F32, out: F64, lo: int, hi: int) -> None:
    """See `Backend.distances`."""
    for i in range(lo, hi):
        for j, other in enumerate(others):
            out[i, j] = ((maps[i].astype(np.float64) - other) ** 2).sum()
