"""The kernels for saliency: spectral residual, enlarging, levels, Otsu, masks, windows and distances."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from checks import picture
from checks_saliency import (
    check_distances,
    check_enlarge,
    check_join,
    check_otsu,
    check_quantise,
    check_quantise_otsu,
    check_residual,
    check_share,
    check_windows,
    few_levels,
    published_residual,
    residual,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage import data
from skimage.filters import threshold_otsu

from fastmix.kernels import Backend, reference

SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 3), (37, 29), (224, 224)]
KINDS = ["noise", "constant", "low", "two", "smooth"]
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("pixels", "size"),
    [
        ((224, 224), (64, 64)),
        ((64, 64), (64, 64)),
        ((37, 29), (37, 29)),
        ((61, 90), (16, 21)),
        ((40, 7), (9, 7)),
        ((5, 3), (2, 3)),
        ((1, 7), (1, 7)),
        ((300, 2), (1, 2)),
    ],
)
def test_residual_is_the_published_one(host_backend: Backend, pixels: tuple[int, int], size: tuple[int, int]) -> None:
    check_residual(host_backend, pixels, size)


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "coffee"])
def test_residual_of_a_photograph(host_backend: Backend, name: str) -> None:
    image = np.ascontiguousarray(getattr(data, name)()[:, :397])
    made = residual(host_backend, image[None], (64, 64))[0]
    np.testing.assert_allclose(made, published_residual(image, (64, 64)), rtol=0, atol=1e-3)
    assert made.min() == 0 and made.max() == 1


def test_backends_agree_on_a_residual(cpu: Backend) -> None:
    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    @given(st.integers(1, 40), st.integers(1, 40), st.data(), st.sampled_from(KINDS))
    def check(height: int, width: int, draw: Any, kind: str) -> None:
        size = draw.draw(st.integers(1, height)), draw.draw(st.integers(1, width))
        images = np.stack([picture(seed, (height, width), kind) for seed in range(2)])
        expected = residual(reference, images, size)
        np.testing.assert_allclose(residual(cpu, images, size), expected, rtol=0, atol=1e-3)
        assert np.isfinite(expected).all() and expected.min() >= 0 and expected.max() <= 1

    check()


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (1, 2, 3), (37, 200, 91)])
def test_a_plain_picture_has_no_residual(host_backend: Backend, colour: tuple[int, int, int]) -> None:
    """Also where cells span different numbers of pixels."""
    images = np.full((1, 50, 47, 3), colour, np.uint8)
    assert not residual(host_backend, images, (16, 13)).any()
    assert not residual(host_backend, images, (1, 1)).any()


def test_a_residual_does_not_depend_on_brightness(host_backend: Backend) -> None:
    dark = np.random.default_rng(0).integers(0, 52, (1, 64, 64, 3), dtype=np.uint8)
    np.testing.assert_allclose(
        residual(host_backend, dark * np.uint8(5), (32, 32)), residual(host_backend, dark, (32, 32)), rtol=0, atol=1e-6
    )


def test_a_residual_moves_with_the_picture(host_backend: Backend) -> None:
    """By whole cells, round the edges; four cells from an edge the blur sees beyond it.

    Least and most are those of all cells, so that only ratios of differences are comparable.
    """
    image = picture(3, (66, 60))
    moved = np.roll(image, (8 * 3, 5 * 2), (0, 1))
    first, second = residual(host_backend, np.stack([image, moved]), (22, 30)).astype(np.float64)
    inner = np.zeros((22, 30), bool)
    inner[4:-4, 4:-4] = True
    both = inner & np.roll(inner, (8, 5), (0, 1))
    first = np.roll(first, (8, 5), (0, 1))[both]
    slope, offset = np.polyfit(first, second[both], 1)
    assert 0.2 < slope < 5
    np.testing.assert_allclose(slope * first + offset, second[both], rtol=0, atol=1e-5)


def test_a_lone_spot_stands_out(host_backend: Backend) -> None:
    """The least contrast that there is, one level of blue in one pixel, in a large picture."""
    images = np.full((1, 640, 640, 3), 200, np.uint8)
    images[0, 405, 205, 2] = 201
    made = residual(host_backend, images, (64, 64))[0]
    assert made[40, 20] == 1
    assert (made > 0.5).sum() == 69  # cells at distances up to 4.7, where a Gaussian of sigma 4 is half of its peak


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cells", [(1, 1), (1, 7), (5, 3), (64, 64)])
def test_enlarge(backend: Backend, cells: tuple[int, int], size: tuple[int, int]) -> None:
    check_enlarge(backend, cells, size)


def test_enlarge_by_hand(backend: Backend) -> None:
    maps = np.array([[[0, 4], [8, 12]]], np.float32)
    made = run(backend, "enlarge", (maps,), np.empty((1, 2, 4), np.float32))
    np.testing.assert_array_equal(made, [[[0, 1, 3, 4], [8, 9, 11, 12]]])


@pytest.mark.parametrize("cells", [(1, 1), (5, 3), (64, 64)])
def test_backends_enlarge_to_the_bit(cpu: Backend, cells: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(4, *cells)).astype(np.float32)
    maps[1].flat[::2], maps[2].flat[::3], maps[3] = INF, NAN, 3e38 * rng.choice([-1, 1], cells)
    for size in SIZES:
        made = [run(b, "enlarge", (maps,), np.empty((4, *size), np.float32)) for b in (cpu, reference)]
        np.testing.assert_array_equal(*made)
        shares = [
            run(b, "share_masks", (np.abs(maps[:1]), np.array([0])), np.empty((1, *size), np.uint8), np.empty(1, int))[
                0
            ]
            for b in (cpu, reference)
        ]
        np.testing.assert_array_equal(*shares)


@pytest.mark.parametrize("size", [(1, 2), (1, 7), (37, 29), (224, 224)])
def test_quantise(backend: Backend, size: tuple[int, int]) -> None:
    check_quantise(backend, size)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.25, 0.25, 0.25], [0, 0, 0]),
        ([-1, 3, 1], [0, 255, 128]),
        ([NAN, 2, 4], [0, 0, 255]),
        ([INF, 2, 4], [0, 0, 255]),
        ([-INF, 2, 4], [0, 0, 255]),
        ([-INF, INF, NAN], [0, 0, 0]),
        ([5, INF, NAN], [0, 0, 0]),
        ([-0.0, 0.0, NAN], [0, 0, 0]),
        ([-8, -4, -6], [0, 255, 128]),
        ([0, 255, 254], [0, 255, 254]),
        ([1e-44, 0, 0], [255, 0, 0]),
        ([0, 3e38, 1.5e38], [0, 255, 128]),
    ],
)
def test_quantise_by_hand(backend: Backend, values: list[float], expected: list[int]) -> None:
    maps = np.array(values, np.float32).reshape(1, 1, 3)
    made = run(backend, "quantise", (maps,), np.full((1, 1, 3), 77, np.uint8))
    np.testing.assert_array_equal(made.ravel(), expected)


def test_backends_quantise_to_the_bit(cpu: Backend) -> None:
    rng = np.random.default_rng(0)
    for size in SIZES:
        maps = rng.normal(size=(6, *size)).astype(np.float32)
        maps[1] *= np.float32(1e-39)
        maps[2] = np.clip(maps[2], -4, 4) * np.float32(8e37)  # the range itself overflows, or nearly so
        maps[3].flat[::3], maps[4].flat[1::2], maps[4].flat[::5] = NAN, INF, -INF
        maps[5] = maps[5] * np.float32(1e-3) + 1000
        made = [run(b, "quantise", (maps,), np.full(maps.shape, 77, np.uint8)) for b in (cpu, reference)]
        np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("size", [(1, 2), (1, 7), (2, 4), (16, 16), (17, 31), (37, 29), (224, 224)])
def test_quantise_and_otsu_at_once(backend: Backend, size: tuple[int, int]) -> None:
    check_quantise_otsu(backend, size)


def level_maps(kind: str, size: tuple[int, int]) -> Any:
    """Twenty-five maps of one kind, or nearly so many."""
    rng = np.random.default_rng(len(kind))
    shape = (25, *size)
    if kind == "few levels":
        maps = few_levels(50, size)[1::2]
        maps = maps[np.ptp(maps, axis=(1, 2)) > 0]  # of one level the libraries do not say 255
    elif kind == "noise":
        maps = rng.integers(0, 256, shape)
    elif kind == "low":
        maps = rng.integers(0, 60, shape) ** 2 / 14
    elif kind == "smooth":
        maps = ndimage.gaussian_filter(rng.random(shape), (0, 4, 4))
        maps = 255 * (maps - maps.min()) / np.ptp(maps)
    else:
        maps = rng.normal(np.where(rng.random(shape) < 0.3, 190, 70), 25)
    return np.clip(maps, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [(9, 13), (64, 64), (101, 67)])
@pytest.mark.parametrize("kind", ["noise", "low", "smooth", "two modes", "few levels"])
def test_otsu_is_that_of_both_libraries(backend: Backend, kind: str, size: tuple[int, int]) -> None:
    """But for exact ties, where the two differ, for rounding decides there: those are in the next test."""
    levels = level_maps(kind, size)
    made = run(backend, "otsu", (levels, False), np.full(len(levels), 77, np.int32))
    np.testing.assert_array_equal(made, [threshold_otsu(each) for each in levels])
    np.testing.assert_array_equal(made, [cv2.threshold(each, 0, 255, cv2.THRESH_OTSU)[0] for each in levels])


@pytest.mark.parametrize("middle", [False, True])
def test_otsu_of_ties_is_the_first(backend: Backend, middle: bool) -> None:
    for size in [(1, 1), (1, 7), (2, 3), (6, 6), (30, 40)]:
        check_otsu(backend, middle, few_levels(60, size))
    check_otsu(backend, middle, few_levels(10, (224, 224)))


@pytest.mark.parametrize(
    ("values", "first", "middle"),
    [
        ([10, 200], 10, 104),
        ([0, 255], 0, 127),
        ([254, 255], 254, 254),
        ([0, 1], 0, 0),
        ([0, 100, 200], 0, 49),  # two equally good: the first
        ([10, 11, 200], 11, 105),
        ([7], 255, 255),
        ([0], 255, 255),
        ([255], 255, 255),
    ],
)
def test_otsu_of_spikes(backend: Backend, values: list[int], first: int, middle: int) -> None:
    levels = np.repeat(np.array(values, np.uint8), 5).reshape(1, 5, -1)
    for wanted, plateau in ((first, False), (middle, True)):
        made = run(backend, "otsu", (levels, plateau), np.full(1, 77, np.int32))
        np.testing.assert_array_equal(made, [wanted])


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_join_masks(backend: Backend, size: tuple[int, int], union: bool) -> None:
    check_join(backend, union, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cells", [(1, 1), (5, 3), (64, 64)])
def test_share_masks(backend: Backend, cells: tuple[int, int], size: tuple[int, int]) -> None:
    check_share(backend, cells, size)


def test_shares_of_plain_maps(backend: Backend) -> None:
    """Nothing against nothing is half, 127.5, rounded up; all against nothing is all."""
    maps = np.array([0, 0, 1, 3], np.float32)[:, None, None] * np.ones((4, 2, 2), np.float32)
    outs = np.full((4, 3, 5), 77, np.uint8), np.empty(4, np.int64)
    made = run(backend, "share_masks", (maps, np.array([1, 2, 0, 2])), *outs)[0]
    np.testing.assert_array_equal(made, np.broadcast_to(np.array([128, 0, 255, 191])[:, None, None], made.shape))


@pytest.mark.parametrize("size", [*SIZES[:-1], (40, 64)])
def test_best_windows(backend: Backend, size: tuple[int, int]) -> None:
    check_windows(backend, size)


def test_a_large_bright_window_is_exact(backend: Backend) -> None:
    levels = np.full((1, 700, 900), 255, np.uint8)
    levels[0, :2], levels[0, :, :3], levels[0, 600, 899] = 254, 254, 254
    made = run(backend, "best_windows", (levels, np.array([[650, 880]])), np.full((1, 2), 77, np.int64))
    np.testing.assert_array_equal(made, [[2, 3]])


@pytest.mark.parametrize("count", [1, 7, 32, 33, 100, 4096])
def test_distances(backend: Backend, count: int) -> None:
    check_distances(backend, count)


def test_distances_are_summed_in_float64(backend: Backend) -> None:
    maps = np.random.default_rng(0).random((3, 4099)).astype(np.float32)
    others = np.concatenate([maps, maps + np.float32(1e-4)])
    made = run(backend, "distances", (maps, others), np.full((3, 6), 77, np.float64))
    difference = maps[:, None].astype(np.longdouble) - others
    np.testing.assert_allclose(made, (difference**2).sum(2).astype(np.float64), rtol=1e-12)
    assert not np.diagonal(made).any()
    one = np.ascontiguousarray(others[1:2])
    alone = run(backend, "distances", (maps, one), np.full((3, 1), 77, np.float64))
    np.testing.assert_array_equal(alone, made[:, 1:2])
