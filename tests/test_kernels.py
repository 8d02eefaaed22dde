"""The kernels around the fold: resize, paste, warp, filter, histogram, table, bits, to_float and the chaos game."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from checks import KEY, SIZES, check_paste, picture, program
from cuda_real import There
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from fastmix.kernels import Backend, Mode, Op, Source
from fastmix.kernels.cuda import Cuda
from fastmix.rng import philox

KERNELS = [name for name, member in vars(Backend).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("name", KERNELS)
def test_signatures_are_those_of_the_protocol(backend: Backend, name: str) -> None:
    expected = list(inspect.signature(getattr(Backend, name)).parameters)[1:]
    if isinstance(backend, Cuda | There) and name in ("spectral_residual", "attractor"):
        assert not hasattr(backend, name)  # crops, and pools, are made on the host
        return
    kernel = getattr(backend, name)
    assert list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters) == expected


def crop(backend: Backend, image: Any, box: Any, size: tuple[int, int], flip: bool = False) -> Any:
    out = np.full((1, *size, 3), 77, np.uint8)
    backend.crop_resize([image], np.array([box], np.float64), np.array([flip]), out, 0, 1)
    return out[0]


@st.composite
def boxes(draw: Any) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """A picture's size and a box inside it."""
    height, width = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    box_width = draw(st.floats(min(1, width), width))
    box_height = draw(st.floats(min(1, height), height))
    left = draw(st.floats(0, 1)) * (width - box_width)
    top = draw(st.floats(0, 1)) * (height - box_height)
    return (height, width), (left, top, box_width, box_height)


def test_crop_resize_is_within_a_level_of_pillow(backend: Backend) -> None:
    """Pillow rounds between its two passes and uses fixed-point weights; we do neither."""

    @settings(deadline=None, max_examples=80, database=None, derandomize=True)
    @given(st.integers(0, 99), boxes(), st.tuples(st.integers(1, 40), st.integers(1, 40)), st.booleans())
    def check(seed: int, place: Any, size: tuple[int, int], flip: bool) -> None:
        shape, box = place
        image = picture(seed, shape)
        left, top, width, height = box
        region = (left, top, min(left + width, shape[1]), min(top + height, shape[0]))
        expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR, box=region))
        made = crop(backend, image, box, size, flip)
        made = made[:, ::-1] if flip else made
        assert np.abs(made.astype(np.int64) - expected).max() <= 1

    check()


def test_crop_resize_of_a_whole_box_at_its_own_size_copies(backend: Backend) -> None:
    image = picture(1, (20, 30))
    np.testing.assert_array_equal(crop(backend, image, (3, 4, 11, 9), (9, 11)), image[4:13, 3:14])
    np.testing.assert_array_equal(crop(backend, image, (3, 4, 11, 9), (9, 11), flip=True), image[4:13, 3:14][:, ::-1])


def test_crop_resize_halves_by_the_triangle(backend: Backend) -> None:
    """Scale 2: weights 1 3 3 1 / 8 away from the edge."""
    rows = np.arange(0, 16, dtype=np.uint8) ** 2
    image = np.repeat(np.repeat(rows[:, None, None], 8, 1), 3, 2)
    made = crop(backend, image, (0, 0, 8, 16), (8, 4))
    wide = rows.astype(np.float64)
    inner = [(wide[2 * i - 1] + 3 * wide[2 * i] + 3 * wide[2 * i + 1] + wide[2 * i + 2]) / 8 for i in range(1, 7)]
    np.testing.assert_array_equal(made[1:7, 0, 0], np.floor(np.array(inner) + 0.5))


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 64)])
def test_crop_resize_keeps_a_plain_colour(backend: Backend, size: tuple[int, int]) -> None:
    image = picture(2, (33, 21), "constant")
    made = crop(backend, image, (1.25, 2.5, 15.3, 17.7), size)
    np.testing.assert_array_equal(made, np.broadcast_to(image[0, 0], made.shape))


@pytest.mark.parametrize("box", [(0, 0, 9, 11), (2, 3, 5, 7), (8, 10, 9, 11), (0, 0, 1, 1)])
def test_paste_of_equal_size_copies(backend: Backend, box: tuple[int, int, int, int]) -> None:
    top, left, bottom, right = box
    for source in ((left, top), (0, 0), (11 - (right - left), 9 - (bottom - top))):
        check_paste(backend, box, source)


def test_paste_resizes_as_crop_resize(backend: Backend) -> None:
    images = np.stack([picture(seed, (20, 24)) for seed in range(2)])
    place, source = np.array([[3, 4, 12, 20], [5, 5, 5, 9]], np.int64), np.array([[1.5, 2.25, 20, 15], [0, 0, 4, 4]])
    out = np.full_like(images, 77)
    backend.paste(images, np.array([1, 0]), source, place, out, 0, 2)
    expected = images.copy()
    expected[0, 3:12, 4:20] = crop(backend, images[1], source[0], (9, 16))
    np.testing.assert_array_equal(out, expected)


def test_warp_is_pillows(backend: Backend) -> None:
    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    @given(st.integers(0, 99), st.sampled_from(SIZES), st.tuples(*[st.integers(-64, 64)] * 6))
    def check(seed: int, size: tuple[int, int], sixteenths: tuple[int, ...]) -> None:
        """Coefficients are multiples of 1/64 or 1/16, so that every order of the sums gives the same coordinate."""
        image = picture(seed, size)
        a, b, c, d, e, f = sixteenths
        matrix = np.array([1 + a / 64, b / 64, c / 16, d / 64, 1 + e / 64, f / 16])
        out = np.empty((1, *image.shape), np.uint8)
        backend.warp(image[None], matrix[None], out, 0, 1)
        pillow = Image.fromarray(image).transform(
            size[::-1], Image.Transform.AFFINE, matrix.tolist(), Image.Resampling.BILINEAR
        )
        np.testing.assert_array_equal(out[0], np.asarray(pillow))

    check()


@pytest.mark.parametrize("size", SIZES)
def test_filter3x3_is_pillows(backend: Backend, size: tuple[int, int]) -> None:
    """Pillow applies the rows of a kernel from below."""
    weights = (np.array([[1, -2, 3], [4, 5, -1], [0, 2, 1]]) / 8).astype(np.float32)
    image = picture(3, size)
    out = np.full((1, *image.shape), 77, np.uint8)
    backend.filter3x3(image[None], weights, out, 0, 1)
    kernel = ImageFilter.Kernel((3, 3), weights[::-1].ravel().tolist(), scale=1)
    np.testing.assert_array_equal(out[0], np.asarray(Image.fromarray(image).filter(kernel)))


@pytest.mark.parametrize("size", SIZES)
def test_histogram_and_table(backend: Backend, size: tuple[int, int]) -> None:
    images = np.stack([picture(seed, size) for seed in range(3)])
    counts = np.full((3, 3, 256), -1, np.int32)
    backend.histogram(images, counts, 0, 3)
    expected = [np.array(Image.fromarray(image).histogram()).reshape(3, 256) for image in images]
    np.testing.assert_array_equal(counts, expected)
    tables = np.random.default_rng(0).integers(0, 256, (3, 3, 256), dtype=np.uint8)
    out = np.empty_like(images)
    backend.table(images, tables, out, 0, 3)
    pillow = [
        np.asarray(Image.fromarray(image).point(t.ravel().tolist())) for image, t in zip(images, tables, strict=True)
    ]
    np.testing.assert_array_equal(out, pillow)


@pytest.mark.parametrize("count", [1, 4, 7, 129])
def test_bits_are_those_of_the_host(backend: Backend, count: int) -> None:
    ids = np.array([0, 1, 2**31, 2**32 + 5, 2**48 - 1])
    for stream in (0, 64, KEY.stream(64) + 4096 * 15):
        out = np.zeros((len(ids), count), np.uint32)
        backend.bits(ids, KEY.words, stream, out)
        np.testing.assert_array_equal(out, KEY.bits(ids, stream, count))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_to_float(backend: Backend, channels_last: bool, dtype: Any) -> None:
    images = np.stack([picture(seed, (5, 6)) for seed in range(3)])
    table = np.random.default_rng(0).integers(0, 60000, (3, 256)).astype(dtype)
    expected = np.stack([table[c][images[..., c]] for c in range(3)], -1)
    expected = expected if channels_last else expected.transpose(0, 3, 1, 2)
    out = np.full(expected.shape, 77, dtype)
    backend.to_float(images, table, out, channels_last, 1, 3)
    np.testing.assert_array_equal(out[1:], expected[1:])
    np.testing.assert_array_equal(out[0], np.full_like(out[0], 77))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_mix_float(backend: Backend, channels_last: bool, dtype: Any) -> None:
    images = np.stack([picture(seed, (5, 6)) for seed in range(4)])
    table = np.random.default_rng(0).integers(0, 60000, (3, 256)).astype(dtype)
    programs = program(4, (5, 6), {"mode": Mode.LINEAR, "a": 0.5, "b": 0.5}, chain=(Op.INVERT,))
    programs.layers["source"], programs.layers["index"][:, 0] = Source.MATE, [3, 2, 1, 0]
    programs.finish["code"][2] = Op.MIRROR
    mixed = np.floor(images / 2 + (255 - images[::-1].astype(np.float64)) / 2 + 0.5).astype(np.int64)
    mixed[2] = mixed[2][:, ::-1]
    expected = np.stack([table[c][mixed[..., c]] for c in range(3)], -1)[1:3]
    expected = expected if channels_last else expected.transpose(0, 3, 1, 2)
    out = np.full(expected.shape, 77, dtype)
    backend.mix_float(images, images[:0], programs, table, out, channels_last, 1, 3)
    np.testing.assert_array_equal(out, expected)


def test_attractor_follows_the_chaos_game(host_backend: Backend) -> None:
    """Sierpinski's triangle: halves and corners are exact in binary, so the visits can be counted in fractions."""
    corners = np.array([[0, 0], [0.5, 0], [0.25, 0.5]])
    maps = np.array([[0.5, 0, x, 0, 0.5, y] for x, y in corners])
    chances, words, points = np.array([0.25, 0.625, 1.0]), np.array([7, 8, 9, 0], np.uint32), 40
    counter = np.array([[block, 9, 0, 0] for block in range(10)], np.uint32)
    draws = philox(counter, (7, 8)).ravel() / 2**32
    point, expected = np.zeros(2), np.zeros((8, 16), np.uint32)
    for u in draws:
        point = point / 2 + corners[0 if u < 0.25 else 1 if u < 0.625 else 2]
        if point[1] < 0.5:
            expected[int(point[1] * 16), int(point[0] * 16)] += 1
    out = np.zeros((8, 16), np.uint32)
    host_backend.attractor(maps, chances, points, words, np.array([0, 0, 1, 0.5]), out)
    assert 0 < expected.sum() < points
    np.testing.assert_array_equal(out, expected)
