"""Checks of the kernels for saliency that every backend must pass; see `checks`."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from checks import picture
from numpy.typing import NDArray
from scipy import ndimage

from fastmix.kernels import Backend

Array = NDArray[Any]


def run(backend: Backend, kernel: str, inputs: tuple[Any, ...], *outs: Array) -> Any:
    """All rows of a kernel.  Rows one by one are the same, others are left alone, and inputs do not change."""
    before = [value.copy() if isinstance(value, np.ndarray) else value for value in inputs]
    count, alone = len(outs[0]), [np.full_like(out, 77) for out in outs]
    getattr(backend, kernel)(*inputs, *outs, 0, count)
    for i in range(count):
        untouched = [out[i + 1 :].copy() for out in alone]
        getattr(backend, kernel)(*inputs, *alone, i, i + 1)
        for out, rest in zip(alone, untouched, strict=True):
            np.testing.assert_array_equal(out[i + 1 :], rest)
    for out, single in zip(outs, alone, strict=True):
        np.testing.assert_array_equal(out, single)
    for value, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(value, old)
    return outs[0] if len(outs) == 1 else outs


def residual(backend: Backend, images: Array, size: tuple[int, int]) -> Array:
    return np.asarray(run(backend, "spectral_residual", (images,), np.full((len(images), *size), 77, np.float32)))


def published_residual(image: Array, size: tuple[int, int]) -> Array:
    """The spectral residual of one picture step by step, in float64, with phases and a complex transform."""
    grey = image @ np.array([0.299, 0.587, 0.114])
    rows, columns = (np.arange(cells + 1) * pixels // cells for cells, pixels in zip(size, grey.shape, strict=True))
    cells = np.array([[grey[a:b, c:d].mean() for c, d in pairwise(columns)] for a, b in pairwise(rows)])
    spectrum = np.fft.fft2(cells)
    logs, phase = np.log(np.abs(spectrum)), np.angle(spectrum)
    rest = logs - ndimage.uniform_filter(logs, 3, mode="wrap")
    magnitude = np.abs(np.fft.ifft2(np.exp(rest + 1j * phase)))
    # A sixteenth of each side, up to an eighth away.
    reach = [-(-cells // 8) for cells in size]
    smooth = ndimage.gaussian_filter(magnitude, [cells / 16 for cells in size], mode="mirror", radius=reach)
    return np.asarray((smooth - smooth.min()) / np.ptp(smooth))


def check_residual(backend: Backend, pixels: tuple[int, int], size: tuple[int, int]) -> None:
    """As published, for pictures without frequencies of no amplitude."""
    images = np.stack([picture(seed, pixels) for seed in range(2)])
    images[1] = ndimage.gaussian_filter(images[1], (1, 1, 0))
    made = residual(backend, images, size)
    np.testing.assert_allclose(made, [published_residual(image, size) for image in images], rtol=0, atol=1e-3)


def enlarged(cells: Array, size: tuple[int, int]) -> Array:
    """NumPy's linear interpolation between the centres of cells, which is flat beyond them."""
    for axis, pixels in ((1, size[1]), (0, size[0])):
        places = (np.arange(pixels) + 0.5) * cells.shape[axis] / pixels - 0.5
        at = np.arange(cells.shape[axis])
        cells = np.apply_along_axis(lambda line, p=places, c=at: np.interp(p, c, line), axis, cells)
    return cells


def check_enlarge(backend: Backend, cells: tuple[int, int], size: tuple[int, int]) -> None:
    maps = np.random.default_rng(1).random((3, *cells)).astype(np.float32)
    made = run(backend, "enlarge", (maps,), np.full((3, *size), 77, np.float32))
    expected = [enlarged(each.astype(np.float64), size) for each in maps]
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6)


def check_quantise(backend: Backend, size: tuple[int, int]) -> None:
    """Whole numbers 0..1024 by 1/4 are exact in float32: bins of four, the last of which has its upper end too."""
    values = np.random.default_rng(2).integers(0, 1025, (4, *size))
    values[:, 0, 0], values[:, -1, -1] = 0, 1024
    expected = np.minimum(values // 4, 255)
    offset = np.array([0, 64, -512, -100000])[:, None, None]
    made = run(backend, "quantise", (((values + offset) / 4).astype(np.float32),), np.full(values.shape, 77, np.uint8))
    np.testing.assert_array_equal(made, expected)


def otsu_by_fractions(levels: Array) -> tuple[int, int]:
    """The first and the last threshold of those that part the levels best, in fractions; 255, 255 for one level."""
    values, counts = (part.tolist() for part in np.unique(levels, return_counts=True))
    n, best, found = sum(counts), Fraction(-1), (255, 255)
    for cut in range(1, len(values)):
        below, above = sum(counts[:cut]), sum(counts[cut:])
        first = Fraction(sum(v * c for v, c in zip(values[:cut], counts[:cut], strict=True)), below)
        second = Fraction(sum(v * c for v, c in zip(values[cut:], counts[cut:], strict=True)), above)
        criterion = Fraction(below, n) * Fraction(above, n) * (first - second) ** 2
        if criterion > best:
            best, found = criterion, (values[cut - 1], values[cut] - 1)
    return found


def few_levels(count: int, size: tuple[int, int]) -> Array:
    """Maps of one to five levels; every other one has as much above its middle as below, and so ties."""
    rng = np.random.default_rng(3)
    maps = np.stack([rng.choice(rng.choice(np.arange(0, 256, 15), rng.integers(1, 6)), size) for _ in range(count)])
    flat = maps.reshape(count, -1)
    half = flat.shape[1] // 2
    apart = rng.choice([0, 1, 2], (count, half)) * rng.integers(1, 50, (count, 1))
    flat[::2, : 2 * half] = np.concatenate([100 - apart, 100 + apart], 1)[::2]
    flat[::2, 2 * half :] = 100
    return maps.astype(np.uint8)


def check_otsu(backend: Backend, middle: bool, levels: Array) -> None:
    made = run(backend, "otsu", (levels, middle), np.full(len(levels), 77, np.int32))
    found = [otsu_by_fractions(each) for each in levels]
    np.testing.assert_array_equal(made, [(first + last) // 2 if middle else first for first, last in found])


def check_quantise_otsu(backend: Backend, size: tuple[int, int]) -> None:
    """Values of 256 steps are their own levels: plain maps beside others, whose ranges cannot be found ahead."""
    levels = np.concatenate([few_levels(4, size), np.random.default_rng(8).integers(0, 256, (5, *size), np.uint8)])
    levels[:, 0, 0], levels[:, -1, -1] = 0, 255
    maps = levels.astype(np.float32)
    maps[1::3] -= 100
    maps[2].flat[1:-1], maps[4] = np.nan, 3
    levels[2].flat[1:-1], levels[4] = 0, 0
    outs = np.full(levels.shape, 77, np.uint8), np.full(len(levels), 77, np.int32)
    made, thresholds = run(backend, "quantise_otsu", (maps, False), *outs)
    np.testing.assert_array_equal(made, levels)
    np.testing.assert_array_equal(thresholds, [otsu_by_fractions(each)[0] for each in levels])


def check_join(backend: Backend, union: bool, size: tuple[int, int]) -> None:
    levels = np.random.default_rng(4).integers(0, 256, (4, *size), dtype=np.uint8)
    levels[:, 0, 0], thresholds, partner = 100, np.array([100, 99, 255, 0], np.int32), np.array([1, 0, 3, 3])
    outs = np.full(levels.shape, 77, np.uint8), np.full((4, 3), 77, np.int64)
    made, areas = run(backend, "join_masks", (levels, thresholds, partner, union), *outs)
    own = np.array([each > limit for each, limit in zip(levels, thresholds, strict=True)])
    joint = (own | own[partner]) if union else (own & own[partner])
    np.testing.assert_array_equal(made, 255 * joint.astype(int))
    np.testing.assert_array_equal(areas, np.stack([m.sum((1, 2)) for m in (own, own[partner], joint)], 1))


def check_share(backend: Backend, cells: tuple[int, int], size: tuple[int, int]) -> None:
    """The nearest level to the float64 share, but where that is next to the edge of two."""
    maps = np.random.default_rng(5).random((3, *cells)).astype(np.float32) ** 4
    maps[0] = 0
    partner = np.array([1, 2, 0])
    made, sums = run(backend, "share_masks", (maps, partner), np.full((3, *size), 77, np.uint8), np.full(3, 77))
    np.testing.assert_array_equal(sums, made.sum((1, 2), np.int64))
    own = 1e-6 + np.array([enlarged(each.astype(np.float64), size) for each in maps])
    share = 255 * own / (own + own[partner])
    np.testing.assert_allclose(made, share, rtol=0, atol=0.5 + 1e-3)


def check_windows(backend: Backend, size: tuple[int, int]) -> None:
    """Every window is tried; few levels, so that several are equally good."""
    rng = np.random.default_rng(6)
    levels = rng.integers(0, 3, (5, *size), dtype=np.uint8) * 127
    levels[4] = 0
    sides = rng.integers(1, np.array(size) + 1, (5, 2))
    sides[0], sides[1] = size, (1, 1)
    expected = []
    for each, (height, width) in zip(levels.astype(np.int64), sides, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(each, (height, width)).sum((2, 3))
        expected.append(np.argwhere(windows == windows.max())[0])
    made = run(backend, "best_windows", (levels, sides), np.full((5, 2), 77, np.int64))
    np.testing.assert_array_equal(made, expected)


def check_distances(backend: Backend, count: int) -> None:
    """Whole numbers, whose sums of squares are exact in float64, and equal rows."""
    rng = np.random.default_rng(7)
    maps, others = rng.integers(-999, 1000, (5, count)), rng.integers(-999, 1000, (11, count))
    others[4], others[9], maps[2] = others[0], others[0], others[0]
    inputs = maps.astype(np.float32), others.astype(np.float32)
    made = run(backend, "distances", inputs, np.full((5, 11), 77, np.float64))
    np.testing.assert_array_equal(made, ((maps[:, None] - others) ** 2).sum(2))
