import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fastmix.windows import (
    box_areas,
    fill_windows,
    find_windows,
    paste_windows,
    peak_windows,
    place_windows,
    window_sizes,
)


def random_maps(n: int, height: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((n, height, width))).to(dtype)


def sizes_of(n: int, shape: tuple[int, int], seed: int = 0, hi: float = 1.0) -> np.ndarray:
    return window_sizes(np.random.default_rng(seed).random(n), shape, (0.01, hi))


def brute_force(values: np.ndarray, height: int, width: int) -> tuple[int, int, int, int]:
    """The first window with the largest sum; integers, so that sums are exact."""
    best, found = -math.inf, (0, 0)
    for y in range(values.shape[0] - height + 1):
        for x in range(values.shape[1] - width + 1):
            total = values[y : y + height, x : x + width].sum()
            if total > best:
                best, found = total, (y, x)
    return found[0], found[0] + height, found[1], found[1] + width


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("side", "by_side", "by_area"),
    [
        (28, (2, 8, 14), (8, 15, 19)),
        (32, (3, 9, 16), (10, 17, 22)),
        (64, (6, 19, 32), (20, 35, 45)),
        (224, (22, 67, 112), (70, 122, 158)),
    ],
)
def test_sizes_rounded_down(side: int, by_side: tuple[int, ...], by_area: tuple[int, ...]) -> None:
    u = np.array([0, 0.5, 1])
    for mode, expected in (("side", by_side), ("area", by_area)):
        got = window_sizes(u, (side, side), (0.1, 0.5), mode, "floor")
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, np.stack([expected, expected], 1))


def test_sizes_are_rounded_to_the_nearest_pixel_and_each_axis_by_itself() -> None:
    np.testing.assert_array_equal(window_sizes(np.array([0.0, 1.0]), (10, 30), (0.25, 0.35)), [[3, 8], [4, 11]])
    np.testing.assert_array_equal(window_sizes(np.array([0.5]), (3, 2), (1e-6, 1e-6)), [[1, 1]])
    np.testing.assert_array_equal(window_sizes(np.ones(1), (7, 9), (0.5, 1.0)), [[7, 9]])


def test_share_of_the_area() -> None:
    """E[v^2] = 0.10333 for v ~ U(0.1, 0.5), E[v] = 0.3: midpoints of a fine grid instead of draws."""
    u = (np.arange(100_000) + 0.5) / 100_000
    for mode, expected in (("side", (0.5**3 - 0.1**3) / (3 * 0.4)), ("area", 0.3)):
        area = window_sizes(u, (10_000, 10_000), mode=mode).prod(1) / 1e8
        np.testing.assert_allclose(area.mean(), expected, rtol=1e-4)


@pytest.mark.parametrize("size_range", [(0.5, 0.1), (0.0, 0.5), (-0.1, 0.5), (0.1, 1.01), (float("nan"), 0.5)])
def test_size_ranges_out_of_bounds(size_range: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"size_range is \(.*expected 0 < lo <= hi <= 1"):
        window_sizes(np.zeros(1), (8, 8), size_range)


def test_unknown_options() -> None:
    with pytest.raises(ValueError, match="mode is 'areas', expected one of 'side', 'area'"):
        window_sizes(np.zeros(1), (8, 8), mode="areas")
    with pytest.raises(ValueError, match="rounding is 'up', expected one of 'nearest', 'floor'"):
        window_sizes(np.zeros(1), (8, 8), rounding="up")
    with pytest.raises(ValueError, match="border is 'inside', expected one of 'shift', 'clip'"):
        peak_windows(torch.zeros(1, 8, 8), np.ones((1, 2), int), "inside")


# ------------------------------------------------------------------ places


def test_random_places_are_inside_and_reach_every_place() -> None:
    sizes = np.tile([[3, 2]], (600, 1))
    boxes = place_windows(np.random.default_rng(0).random((600, 2)), sizes, (5, 4))
    np.testing.assert_array_equal(boxes[:, [1, 3]] - boxes[:, [0, 2]], sizes)
    places, counts = np.unique(boxes[:, [0, 2]], axis=0, return_counts=True)
    np.testing.assert_array_equal(places, [[y, x] for y in range(3) for x in range(3)])
    assert counts.min() > 600 / 9 / 2


@pytest.mark.parametrize("span", [2, 50])  # the small one makes ties of windows with different pixels
@pytest.mark.parametrize("shape", [(8, 8), (5, 11), (1, 4)])
def test_search_is_brute_force(shape: tuple[int, int], span: int) -> None:
    whole = np.random.default_rng(0).integers(-span, span, (60, *shape), endpoint=True)
    sizes = sizes_of(60, shape)
    got = find_windows(torch.from_numpy(whole).float(), sizes)
    assert got.dtype == torch.int64
    np.testing.assert_array_equal(got, [brute_force(a, *size) for a, size in zip(whole, sizes, strict=True)])


def test_sums_are_those_of_average_pooling() -> None:
    maps = random_maps(40, 33, 47)
    sizes = sizes_of(40, (33, 47))
    for each, (h, w), (y0, y1, x0, x1) in zip(maps.double(), sizes.tolist(), find_windows(maps, sizes), strict=True):
        pooled = F.avg_pool2d(each[None, None], (h, w), stride=1) * h * w
        np.testing.assert_allclose(each[y0:y1, x0:x1].sum(), pooled.max(), rtol=1e-9)


def test_the_hot_pixel_is_in_the_window() -> None:
    maps = torch.eye(35).reshape(35, 5, 7)
    for size in ((1, 1), (2, 3), (5, 7)):
        boxes = find_windows(maps, np.tile([size], (35, 1)))
        for i, (y0, y1, x0, x1) in enumerate(boxes.tolist()):
            assert y0 <= i // 7 < y1 and x0 <= i % 7 < x1 and 0 <= y0 and y1 <= 5 and 0 <= x0 and x1 <= 7


@pytest.mark.parametrize("value", [0.0, 0.1, -0.3, 1e-30, 7e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ties_go_to_the_first_window(value: float, dtype: torch.dtype) -> None:
    """0.1 is no binary fraction: plain differences of an integral image would break the tie by their rounding."""
    maps = torch.full((3, 31, 17), value, dtype=dtype)
    sizes = np.array([[1, 1], [7, 3], [31, 17]])
    np.testing.assert_array_equal(find_windows(maps, sizes), [[0, 1, 0, 1], [0, 7, 0, 3], [0, 31, 0, 17]])


def test_two_equal_peaks() -> None:
    maps = torch.zeros(1, 9, 9)
    maps[0, 2, 7] = maps[0, 6, 1] = 0.1
    assert find_windows(maps, np.array([[2, 2]])).tolist() == [[1, 3, 6, 8]]
    assert peak_windows(maps, np.array([[2, 2]])).tolist() == [[1, 3, 6, 8]]


def test_the_least_active_window() -> None:
    maps = torch.ones(1, 6, 6)
    maps[0, 3:5, 2:4] = 0
    assert find_windows(-maps, np.array([[2, 2]])).tolist() == [[3, 5, 2, 4]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_maps_that_are_not_finite_count_as_constant(bad: float) -> None:
    maps = random_maps(2, 6, 6)
    maps[0, 4, 4] = bad
    sizes = np.array([[2, 3], [2, 3]])
    for find, first in ((find_windows, [0, 2, 0, 3]), (peak_windows, [0, 2, 0, 3])):
        got = find(maps, sizes)
        assert got[0].tolist() == first
        assert got[1].tolist() == find(maps[1:], sizes[1:])[0].tolist()


@pytest.mark.parametrize("side", [1, 2, 3, 4, 6])
def test_peak_windows(side: int) -> None:
    """All 36 peaks of a 6 x 6 map, axis by axis, against the rule written out."""
    boxes = {
        border: peak_windows(torch.eye(36).reshape(36, 6, 6), np.full((36, 2), side), border)
        for border in ("shift", "clip")
    }
    for i in range(36):
        for axis, at in ((0, i // 6), (2, i % 6)):
            first = min(max(at - side // 2, 0), 6 - side)
            assert boxes["shift"][i, axis : axis + 2].tolist() == [first, first + side]
            kept = [p for p in range(6) if at - side // 2 <= p < at + side // 2] or [at]
            assert boxes["clip"][i, axis : axis + 2].tolist() == [kept[0], kept[-1] + 1]
    np.testing.assert_array_equal(box_areas(boxes["shift"]), np.full(36, side**2))


def test_area_after_clipping() -> None:
    maps = torch.zeros(3, 10, 10)
    maps[0, 0, 0] = maps[1, 5, 5] = maps[2, 9, 5] = 1
    assert box_areas(peak_windows(maps, np.full((3, 2), 4), "clip")).tolist() == [4, 16, 12]


@pytest.mark.parametrize(
    ("maps", "sizes", "message"),
    [
        (torch.zeros(2, 4), np.ones((2, 2), int), r"maps are torch.float32 \(2, 4\), expected floating \(N, H, W\)"),
        (torch.zeros(2, 4, 4, dtype=torch.int64), np.ones((2, 2), int), "maps are torch.int64"),
        (torch.zeros(2, 4, 4), np.ones((3, 2), int), r"sizes are int64 \(3, 2\), expected integers \(2, 2\)"),
        (torch.zeros(2, 4, 4), np.ones((2, 2)), r"sizes are float64"),
        (
            torch.zeros(2, 4, 6),
            np.array([[4, 4], [5, 6]]),
            r"sizes run from \[4, 4\] to \[5, 6\], expected heights 1..4 and widths 1..6",
        ),
        (torch.zeros(2, 4, 6), np.array([[4, 4], [0, 6]]), r"sizes run from \[0, 4\] to \[4, 6\]"),
    ],
)
@pytest.mark.parametrize("find", [find_windows, peak_windows])
def test_bad_maps_and_sizes(find: object, maps: torch.Tensor, sizes: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(maps, sizes)


# ------------------------------------------------------------------ pictures


def pictures(n: int, shape: tuple[int, int], seed: int, channels: int = 3) -> torch.Tensor:
    return torch.randn((n, channels, *shape), generator=torch.Generator().manual_seed(seed))


def boxes_in(n: int, shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    u = np.random.default_rng(seed).random((n, 2))
    return torch.from_numpy(place_windows(u, sizes_of(n, shape, seed), shape))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize(("shape", "source"), [((32, 32), (32, 32)), ((20, 33), (20, 33)), ((16, 12), (9, 31))])
def test_pasted_is_interpolated(shape: tuple[int, int], source: tuple[int, int], antialias: bool) -> None:
    images, partners, boxes = pictures(12, shape, 0), pictures(12, source, 1), boxes_in(12, shape)
    got = paste_windows(images, partners, boxes, antialias=antialias)
    for i, (y0, y1, x0, x1) in enumerate(boxes.tolist()):
        inside = F.interpolate(partners[i : i + 1], (y1 - y0, x1 - x0), mode="bilinear", antialias=antialias)[0]
        np.testing.assert_allclose(got[i, :, y0:y1, x0:x1], inside, atol=1e-5)
        expected = images[i].clone()
        expected[:, y0:y1, x0:x1] = got[i, :, y0:y1, x0:x1]
        assert torch.equal(got[i], expected)


def test_pasted_at_full_size_is_the_partner() -> None:
    images, partners = pictures(2, (8, 9), 0), pictures(2, (8, 9), 1)
    got = paste_windows(images, partners, torch.tensor([[0, 8, 0, 9], [0, 8, 0, 9]]))
    np.testing.assert_allclose(got, partners, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_pasted_in_single(dtype: torch.dtype) -> None:
    images, partners, boxes = (
        pictures(6, (16, 16), 0).to(dtype),
        pictures(6, (16, 16), 1).to(dtype),
        boxes_in(6, (16, 16)),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = paste_windows(images, partners, boxes)
    assert got.dtype == dtype
    assert torch.equal(got, paste_windows(images.float(), partners.float(), boxes).to(dtype))


def test_memory_format_inputs_and_graph_are_left_alone() -> None:
    images = pictures(4, (12, 10), 0).to(memory_format=torch.channels_last)
    partners, boxes = pictures(4, (12, 10), 1).requires_grad_(), boxes_in(4, (12, 10))
    before = images.clone()
    got = paste_windows(images.requires_grad_(), partners, boxes)
    assert got.is_contiguous(memory_format=torch.channels_last) and not got.is_contiguous()
    assert not got.requires_grad and torch.equal(images, before)
    np.testing.assert_array_equal(got, paste_windows(images.detach().contiguous(), partners.detach(), boxes))
    assert not find_windows(random_maps(1, 4, 4).requires_grad_(), np.ones((1, 2), int)).requires_grad


def test_filled() -> None:
    images, boxes = pictures(3, (6, 7), 0), boxes_in(3, (6, 7))
    mean = images.mean((2, 3), keepdim=True)
    got = fill_windows(images, mean, boxes)
    for i, (y0, y1, x0, x1) in enumerate(boxes.tolist()):
        expected = images[i].clone()
        expected[:, y0:y1, x0:x1] = mean[i]
        assert torch.equal(got[i], expected)


def test_bad_pictures() -> None:
    good, boxes = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"images are torch.uint8, expected floating: paste after normalising"):
        paste_windows(good.byte(), good, boxes)
    with pytest.raises(ValueError, match=r"images have shape \(3, 4, 4\) and boxes \(2, 4\)"):
        paste_windows(good[0], good, boxes)
    with pytest.raises(ValueError, match=r"boxes \(1, 4\), expected \(N, C, H, W\) and \(N, 4\)"):
        fill_windows(good, good, boxes[:1])
    with pytest.raises(ValueError, match=r"partners have shape \(1, 3, 4, 4\) for images of \(2, 3, 4, 4\)"):
        paste_windows(good, good[:1], boxes)


@pytest.mark.parametrize("module", ["attribution", "windows"])
def test_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import fastmix; import fastmix.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f'fastmix.{module} needs torch: pip install "fastmix[torch]"' in done.stderr
