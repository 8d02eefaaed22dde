"""CUDA C++ of resize.cu and masks.cu, run on the CPU: against the reference, Pillow, scikit-image and OpenCV."""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest
from checks import picture
from checks_saliency import enlarged, few_levels, otsu_by_fractions
from cuda_host import HostDevice
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from skimage import data
from skimage.filters import threshold_otsu

from fastmix.kernels import reference
from fastmix.kernels.cuda_jobs import CUT

Array = NDArray[Any]
SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 3), (37, 29), (64, 48), (224, 224)]
KINDS = ["noise", "constant", "low", "two", "smooth"]
PHOTOS = ["astronaut", "chelsea", "coffee", "rocket"]
THREADS, PARTS = 256, 3  # of a block; blocks that share a map


def launch(name: str, grid: tuple[int, int], *args: Any, threads: int = THREADS) -> None:
    """A launch whose whole numbers are int32; grid: parts, pictures."""
    HostDevice().launch(name, grid[::-1], threads, *(np.int32(a) if isinstance(a, int) else a for a in args))


@cache
def photo(name: str) -> Array:
    return np.ascontiguousarray(getattr(data, name)())


@cache
def grey_maps(size: tuple[int, int]) -> Array:
    """Float maps of every kind: photographs, noise, a smooth one, a plain one, few values, negative ones."""
    rng = np.random.default_rng(sum(size))
    maps = [cv2.resize(photo(name), size[::-1]).reshape(*size, 3) @ [0.299, 0.587, 0.114] for name in PHOTOS]
    maps += [
        rng.random(size),
        ndimage.gaussian_filter(rng.random(size), 4),
        np.full(size, 0.3),
        rng.integers(0, 4, size),
    ]
    maps += [rng.normal(size=size), 1000 + rng.normal(size=size) / 1000, rng.random(size) ** 8]
    return np.stack(maps).astype(np.float32)


# Resize


def cut(source: Array, box: Any, rectangle: Any, slot: int, flip: bool = False) -> Any:
    """One CUT; source may be a window of a larger picture."""
    made = np.zeros((), CUT)
    made["address"], made["pitch"], made["height"], made["width"] = (
        source.ctypes.data,
        source.strides[0],
        *source.shape[:2],
    )
    made["box"], made["rectangle"], made["slot"], made["flip"] = box, rectangle, slot, flip
    return made


def resize(cuts: list[Any], under: Array, keep: bool, out: Array) -> None:
    height, width = out.shape[1:3]
    grid = -(-height * width // THREADS), len(cuts)
    launch("resize", grid, np.stack(cuts), under, int(keep), height, width, out)


def random_box(rng: np.random.Generator, size: tuple[int, ...], whole: bool = False) -> Array:
    """Left, top, width and height inside a picture; the whole of it now and then."""
    height, width = size[:2]
    if whole:
        return np.array([0, 0, width, height], np.float64)
    w, h = rng.uniform(min(0.5, width / 2), width), rng.uniform(min(0.5, height / 2), height)
    return np.array([rng.uniform(0, width - w), rng.uniform(0, height - h), w, h])


def assert_near(made: Array, expected: Array) -> None:
    """Within a level, which only sums next to a rounding edge are apart."""
    difference = np.abs(made.astype(int) - expected)
    assert difference.max(initial=0) <= 1
    assert (difference > 0).sum() <= max(1e-3 * difference.size, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_crops_are_those_of_the_reference_and_of_pillow(size: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(len(kind) + sum(size))
    sources = [picture(k, shape, kind) for k, shape in enumerate([size, (37, 29), (1, 50), (90, 3), (300, 200)])]
    boxes = np.stack([random_box(rng, source.shape, k == 0) for k, source in enumerate(sources)])
    flips = rng.random(5) < 0.5
    out, expected = np.full((5, *size, 3), 77, np.uint8), np.full((5, *size, 3), 77, np.uint8)
    cuts = [cut(s, b, (0, 0, *size), k, f) for k, (s, b, f) in enumerate(zip(sources, boxes, flips, strict=True))]
    resize(cuts, out, False, out)
    reference.crop_resize(sources, boxes, flips, expected, 0, 5)
    assert_near(out, expected)
    for made, source, (x, y, w, h), flip in zip(out, sources, boxes, flips, strict=True):
        image = Image.fromarray(source).resize(size[::-1], Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        pillow = np.asarray(image)[:, :: -1 if flip else 1]
        assert np.abs(made.astype(int) - pillow).max() <= 1


@pytest.mark.parametrize("name", PHOTOS)
def test_crops_of_a_window_of_a_photograph(name: str) -> None:
    """The rows of a window lie further apart than it is wide."""
    source, rng = photo(name)[5:-7, 11:-30], np.random.default_rng(len(name))
    boxes = [random_box(rng, source.shape, k == 0) for k in range(4)]
    out, expected = np.full((4, 64, 48, 3), 77, np.uint8), np.full((4, 64, 48, 3), 77, np.uint8)
    resize([cut(source, box, (0, 0, 64, 48), k, k == 2) for k, box in enumerate(boxes)], out, False, out)
    reference.crop_resize([source] * 4, np.stack(boxes), np.arange(4) == 2, expected, 0, 4)
    assert_near(out, expected)


def test_the_same_size_is_a_copy() -> None:
    """Of a window of a larger picture too, whose rows lie further apart; slots without a cut are left alone."""
    pool = picture(0, (50, 70))
    window, size = pool[7:44, 30:59], (37, 29)
    out = np.full((3, *size, 3), 77, np.uint8)
    cuts = [cut(window, (0, 0, 29, 37), (0, 0, *size), 2), cut(window, (0, 0, 29, 37), (0, 0, *size), 0, True)]
    resize(cuts, out, False, out)
    np.testing.assert_array_equal(out[2], window)
    np.testing.assert_array_equal(out[0], window[:, ::-1])
    assert (out[1] == 77).all()


@pytest.mark.parametrize("size", SIZES)
def test_paste_is_that_of_the_reference(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(size))
    images, partner = np.stack([picture(k, size) for k in range(6)]), np.array([1, 2, 0, 4, 5, 3])
    corners = np.sort(rng.integers(0, np.array(size) + 1, (6, 2, 2)), axis=1).reshape(6, 4)
    corners[0], corners[1] = (0, 0, *size), (0, 0, 0, size[1])  # everything, nothing
    boxes = np.stack([random_box(rng, size, k == 0) for k in range(6)])
    out, expected = np.full(images.shape, 77, np.uint8), np.empty(images.shape, np.uint8)
    resize([cut(images[p], boxes[k], corners[k], k) for k, p in enumerate(partner)], images, True, out)
    reference.paste(images, partner, boxes, corners, expected, 0, 6)
    assert_near(out, expected)
    rows, columns = np.indices(size)
    for made, image, (top, left, bottom, right) in zip(out, images, corners, strict=True):
        outside = (rows < top) | (rows >= bottom) | (columns < left) | (columns >= right)
        np.testing.assert_array_equal(made[outside], image[outside])


@pytest.mark.parametrize("size", SIZES)
def test_shrinking_leaves_black_around(size: tuple[int, int]) -> None:
    images = np.stack([picture(k, size) for k in range(3)])
    corners = [(0, 0, *size), (size[0] // 2, size[1] // 3, size[0], size[1]), (0, 0, 0, 0)]
    out, whole = np.full(images.shape, 77, np.uint8), (0, 0, *size[::-1])
    resize([cut(images[k], whole, corners[k], k) for k in range(3)], out, False, out)
    for made, image, (top, left, bottom, right) in zip(out, images, corners, strict=True):
        inside = np.zeros(size, bool)
        inside[top:bottom, left:right] = True
        assert not made[~inside].any()
        if inside.any():
            expected = Image.fromarray(image).resize((right - left, bottom - top), Image.Resampling.BILINEAR)
            part = made[top:bottom, left:right].astype(int)
            assert np.abs(part - np.asarray(expected)).max() <= 1


# Levels and thresholds


def quantise_otsu(maps: Array, middle: bool, levels: Array | None = None, otsu: bool = True) -> tuple[Array, Array]:
    """Levels and thresholds; given levels are taken as they are."""
    made = np.full(maps.shape, 77, np.uint8) if levels is None else levels.copy()
    found = np.full(len(maps), 77, np.int32)
    numbers = maps[0].size, int(middle), int(levels is None), int(otsu)
    launch("quantise_otsu", (1, len(maps)), maps, *numbers, made, found, threads=1024)
    return made, found


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_levels_and_thresholds(size: tuple[int, int], middle: bool) -> None:
    maps = grey_maps(size)
    levels, thresholds = np.empty(maps.shape, np.uint8), np.empty(len(maps), np.int32)
    reference.quantise_otsu(maps, middle, levels, thresholds, 0, len(maps))
    made, found = quantise_otsu(maps, middle)
    np.testing.assert_array_equal(made, levels)
    np.testing.assert_array_equal(found, thresholds)
    np.testing.assert_array_equal(quantise_otsu(maps, middle, levels)[1], thresholds)
    alone, untouched = quantise_otsu(maps, middle, otsu=False)
    np.testing.assert_array_equal(alone, levels)
    assert (untouched == 77).all()


@pytest.mark.parametrize("size", [(64, 48), (224, 224)])
def test_thresholds_of_photographs_are_those_of_both_libraries(size: tuple[int, int]) -> None:
    levels, found = quantise_otsu(grey_maps(size)[: len(PHOTOS)], False)
    np.testing.assert_array_equal(found, [threshold_otsu(each) for each in levels])
    np.testing.assert_array_equal(found, [cv2.threshold(each, 0, 255, cv2.THRESH_OTSU)[0] for each in levels])


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 3), (30, 40)])
def test_thresholds_that_tie(size: tuple[int, int]) -> None:
    levels = few_levels(60, size)
    expected = np.array([otsu_by_fractions(each) for each in levels])
    maps = np.zeros(levels.shape, np.float32)
    np.testing.assert_array_equal(quantise_otsu(maps, False, levels)[1], expected[:, 0])
    np.testing.assert_array_equal(quantise_otsu(maps, True, levels)[1], expected.sum(1) // 2)


@pytest.mark.filterwarnings("error")
def test_levels_of_values_that_are_not_finite_or_not_apart() -> None:
    inf, nan = np.inf, np.nan
    rows = [[-1, 3, 1], [nan, 2, 4], [inf, 2, 4], [-inf, 2, 4], [-inf, inf, nan], [5, inf, nan], [-0.0, 0.0, nan]]
    rows += [[1e-44, 0, 0], [-1e-44, 0, 1e-44], [0, 3e38, 1.5e38], [-3e38, 3e38, 0], [nan, nan, nan], [-8, -4, -6]]
    expected = [[0, 255, 128], [0, 0, 255], [0, 0, 255], [0, 0, 255], [0] * 3, [0] * 3, [0] * 3]
    expected += [[255, 0, 0], [0, 255, 255], [0, 255, 128], [0] * 3, [0] * 3, [0, 255, 128]]
    maps = np.array(rows, np.float32).reshape(-1, 1, 3)
    np.testing.assert_array_equal(quantise_otsu(maps, False)[0].reshape(-1, 3), expected)
    rng = np.random.default_rng(0)
    for size in SIZES:
        maps = rng.normal(size=(6, *size)).astype(np.float32)
        maps[1] *= np.float32(1e-39)
        maps[2] = np.clip(maps[2], -4, 4) * np.float32(8e37)
        maps[3].flat[::3], maps[4].flat[1::2], maps[4].flat[::5] = nan, inf, -inf
        maps[5] = np.abs(maps[5])
        levels = np.empty(maps.shape, np.uint8)
        reference.quantise(maps, levels, 0, 6)
        np.testing.assert_array_equal(quantise_otsu(maps, False)[0], levels)


# Masks


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lo", [0, 2])
def test_joined_masks(size: tuple[int, int], union: bool, lo: int) -> None:
    rng, pixels = np.random.default_rng(sum(size)), size[0] * size[1]
    levels = rng.integers(0, 256, (6, *size), dtype=np.uint8)
    thresholds, partner = np.array([100, 0, 255, 254, 37, 200], np.int32), np.array([1, 1, 0, 5, 3, 2])
    out, areas = np.full((6 - lo, *size), 77, np.uint8), np.zeros((6 - lo, 3), np.uint64)
    inputs = levels[lo:], thresholds[lo:], partner[lo:] - lo
    launch("join_masks", (PARTS, 6 - lo), *inputs, pixels, int(not union), out, areas)
    own = levels > thresholds[:, None, None]
    joint = np.logical_or(own, own[partner]) if union else np.logical_and(own, own[partner])
    np.testing.assert_array_equal(out, 255 * joint[lo:].astype(int))
    np.testing.assert_array_equal(areas, np.stack([m.sum((1, 2)) for m in (own, own[partner], joint)], 1)[lo:])


def enlarge(maps: Array, size: tuple[int, int]) -> Array:
    out = np.full((len(maps), *size), 77, np.float32)
    launch("enlarge", (-(-out[0].size // THREADS), len(maps)), maps, *maps.shape[1:], *size, out)
    return out


@pytest.mark.parametrize("cells", [(1, 1), (1, 7), (5, 3), (7, 7), (64, 48)])
@pytest.mark.parametrize("size", SIZES)
def test_enlarged_maps(cells: tuple[int, int], size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(4, *cells)).astype(np.float32)
    made = enlarge(maps, size)
    np.testing.assert_allclose(made, [enlarged(each.astype(np.float64), size) for each in maps], rtol=0, atol=2e-6)
    maps[1].flat[::2], maps[2].flat[::3], maps[3] = np.inf, np.nan, 3e38 * rng.choice([-1, 1], cells)
    expected = np.empty((4, *size), np.float32)
    reference.enlarge(maps, expected, 0, 4)
    np.testing.assert_array_equal(enlarge(maps, size), expected)


@pytest.mark.parametrize(("cells", "size"), [((27, 9), (99, 33)), ((15, 14), (55, 110)), ((10, 21), (78, 77))])
def test_enlarged_where_a_pixel_is_next_to_the_centre_of_a_cell(cells: tuple[int, int], size: tuple[int, int]) -> None:
    """Whose place the last bit of float64 decides: values far apart, for a + (b - a) is then not b."""
    maps = np.exp(np.random.default_rng(0).normal(size=(9, *cells)) * 8).astype(np.float32)
    expected = np.empty((9, *size), np.float32)
    reference.enlarge(maps, expected, 0, 9)
    np.testing.assert_array_equal(enlarge(maps, size), expected)


@pytest.mark.parametrize("cells", [(1, 1), (5, 3), (7, 7), (64, 48)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lo", [0, 1])
def test_shared_masks(cells: tuple[int, int], size: tuple[int, int], lo: int) -> None:
    maps, partner = np.abs(grey_maps(cells)), np.roll(np.arange(11), 3)
    maps[1] = 0
    count = len(maps) - lo
    out, sums = np.full((count, *size), 77, np.uint8), np.zeros(count, np.uint64)
    launch("share_masks", (PARTS, count), maps[lo:], partner[lo:] - lo, *cells, *size, out, sums)
    expected, totals = np.empty((len(maps), *size), np.uint8), np.empty(len(maps), np.int64)
    reference.share_masks(maps, partner, expected, totals, 0, len(maps))
    np.testing.assert_array_equal(out, expected[lo:])
    np.testing.assert_array_equal(sums, totals[lo:])


# Windows


def integral(levels: Array) -> Array:
    height, width = levels.shape[1:]
    table = np.full((len(levels), height + 1, width + 1), 77, np.uint32)
    launch("integral_rows", (-(-(height + 1) // THREADS), len(levels)), levels, height, width, table)
    launch("integral_columns", (-(-(width + 1) // THREADS), len(levels)), height, width, table)
    return table


def best_windows(levels: Array, sides: Array) -> Array:
    out = np.full((len(levels), 2), 77, np.int64)
    launch("best_windows", (1, len(levels)), integral(levels), sides, *levels.shape[1:], out)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_all_corners(size: tuple[int, int]) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (3, *size), dtype=np.uint8)
    np.testing.assert_array_equal(integral(levels), [cv2.integral(each) for each in levels])


@pytest.mark.parametrize("size", SIZES)
def test_best_windows(size: tuple[int, int]) -> None:
    """Photographs, noise, and few levels or one, whose windows are often equally good."""
    rng = np.random.default_rng(sum(size))
    levels = np.concatenate([quantise_otsu(grey_maps(size), False)[0], rng.integers(0, 3, (5, *size), dtype=np.uint8)])
    levels[-1] = 0
    sides = rng.integers(1, np.array(size) + 1, (len(levels), 2))
    sides[0], sides[1] = size, (1, 1)
    expected = np.empty((len(levels), 2), np.int64)
    reference.best_windows(levels, sides, expected, 0, len(levels))
    np.testing.assert_array_equal(best_windows(levels, sides), expected)


def test_a_large_bright_window_is_exact() -> None:
    levels = np.full((1, 700, 900), 255, np.uint8)
    levels[0, :2], levels[0, :, :3], levels[0, 600, 899] = 254, 254, 254
    np.testing.assert_array_equal(best_windows(levels, np.array([[650, 880]])), [[2, 3]])
