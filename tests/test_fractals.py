"""Fractal pictures: the chaos game, the systems, and what is refused."""

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from fastmix import fractals
from fastmix.fractals import fractal, sample_system
from fastmix.kernels import backend_for
from fastmix.rng import Key

SIERPINSKI = np.array([[0.5, 0, 0, 0, 0.5, 0], [0.5, 0, 0.5, 0, 0.5, 0], [0.5, 0, 0, 0, 0.5, 0.5]])
UNIT = np.array([0.0, 0.0, 1.0, 1.0])


def play(maps, chances, points, words, box, shape):
    counts = np.full(shape, 7, np.uint32)
    words = np.array(words, np.uint32)
    backend_for(counts).attractor(maps, np.asarray(chances, float), points, words, box, counts)
    return counts


def plain_game(maps, chances, points, words, box, shape):
    """The chaos game, one point after the other, with the draws of the host."""
    draws = Key(words[0] | words[1] << 32).bits(np.array([words[2]]), words[3], points)[0] / 2.0**32
    a, b, c, d, e, f = maps[0]
    x, y = np.linalg.solve(np.array([[1 - a, -b], [-d, 1 - e]]), np.array([c, f]))
    counts = np.zeros(shape, np.uint32)
    left, top, right, bottom = box
    for draw in draws:
        a, b, c, d, e, f = maps[next(k for k, chance in enumerate(chances) if draw < chance)]
        x, y = a * x + b * y + c, d * x + e * y + f
        column, row = (
            int(np.floor((x - left) / (right - left) * shape[1])),
            int(np.floor((y - top) / (bottom - top) * shape[0])),
        )
        if 0 <= column < shape[1] and 0 <= row < shape[0]:
            counts[row, column] += 1
    return counts


@pytest.mark.parametrize("points", [0, 1, 3, 4, 997])
@pytest.mark.parametrize("words", [(0, 0, 0, 0), (5, 9, 123, 2050), (2**32 - 1, 2**32 - 1, 2**32 - 1, 4095)])
def test_attractor_is_the_plain_loop(points, words):
    maps, chances = sample_system(iter(Key(3).uniform(np.array([points]), 9, 64)[0]))
    box = np.array([-0.7, -1.1, 0.9, 0.6])
    expected = plain_game(maps, chances, points, words, box, (19, 31))
    np.testing.assert_array_equal(play(maps, chances, points, words, box, (19, 31)), expected)
    assert points < 900 or 0 < expected.sum() < points  # some points fall inside, some outside


def test_attractor_fills_the_sierpinski_triangle():
    """In 8 x 8 cells the triangle meets those whose row and column share no bit; each gets 1/27 of the visits."""
    counts = play(SIERPINSKI, [1 / 3, 2 / 3, 1], 90_000, (1, 0, 0, 0), UNIT, (8, 8))
    row, column = np.indices((8, 8))
    inside = row & column == 0
    assert counts.sum() == 90_000 and counts[~inside].sum() == 0
    assert stats.chisquare(counts[inside]).pvalue > 1e-3


def test_attractor_takes_maps_by_their_chances():
    counts = play(SIERPINSKI, [0.5, 0.75, 1], 40_000, (2, 0, 0, 0), UNIT, (2, 2))
    assert stats.chisquare(counts.ravel()[:3], [20_000, 10_000, 10_000]).pvalue > 1e-3
    assert play(SIERPINSKI, [1, 1, 1], 50, (2, 0, 0, 0), UNIT, (2, 2)).tolist() == [[50, 0], [0, 0]]


def test_attractor_survives_what_is_not_finite():
    assert play(SIERPINSKI * 1e200, [1 / 3, 2 / 3, 1], 500, (2, 0, 0, 0), UNIT, (4, 4)).sum() <= 1
    assert play(SIERPINSKI, [1 / 3, 2 / 3, 1], 500, (2, 0, 0, 0), np.array([0.0, 0, 0, 0]), (4, 4)).sum() == 0


def test_systems_keep_the_constraints():
    draws = Key(1).uniform(np.arange(3000), 9, 48)
    sizes, alphas = [], []
    for row in draws:
        maps, chances = sample_system(iter(row[:41]))
        n = len(maps)
        linear = maps[:, [0, 1, 3, 4]].reshape(n, 2, 2)
        large, small = np.linalg.svd(linear, compute_uv=False).T
        assert large.max() <= 1 + 1e-12 and small.min() >= 0 and np.abs(maps[:, [2, 5]]).max() < 1
        np.testing.assert_allclose((large + 2 * small).sum(), (5 + n + row[1]) / 2, rtol=1e-12)
        areas = np.abs(np.linalg.det(linear))
        np.testing.assert_allclose(np.diff(chances, prepend=0), areas / areas.sum(), atol=1e-12)
        sizes.append(n)
        alphas.append(2 * (large + 2 * small).sum() - 5 - n)
    assert stats.chisquare(np.bincount(sizes)[2:]).pvalue > 1e-3 and len(np.bincount(sizes)) == 5
    assert stats.kstest(alphas, "uniform").pvalue > 1e-3


def test_fractals_are_keyed():
    first = fractal(Key(0), 3, 48, True)
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, fractal(Key(0, epoch=2, view=1), 3, 48, True))
    others = [fractal(Key(0), 4, 48, True), fractal(Key(1), 3, 48, True), fractal(Key(1 << 40), 3, 48, True)]
    assert all((first != other).mean() > 0.5 for other in others)


def test_grey_is_the_luma_of_the_colour():
    color, grey = (fractal(Key(0), 5, 40, color) for color in (True, False))
    np.testing.assert_array_equal(grey, np.asarray(Image.fromarray(color).convert("L").convert("RGB")))
    assert np.ptp(color, axis=2).mean() > 10  # levels between the channels: the colour one has colours


@pytest.mark.parametrize("size", [16, 33, 96])
def test_fractals_are_rich(size, monkeypatch):
    seen = []
    density = fractals._density

    def record(system, key, number, stream, *rest):
        seen.append((stream // 4, density(system, key, number, stream, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(fractals, "_density", record)
    tries = set()
    for number in range(25):
        seen.clear()
        gray = np.asarray(Image.fromarray(fractal(Key(7), number, size, True)).convert("L"), float)
        assert gray.std() > 23.9 and 47.9 < gray.mean() < 208.1
        assert all((levels > 0).mean() > 0.05 for attempt, levels in seen if attempt == seen[-1][0])
        tries.add(seen[-1][0])
    assert len(tries) > 1  # some were drawn anew


def test_empty_systems_are_refused(monkeypatch):
    point = np.array([[0.01, 0, 0, 0, 0.01, 0], [0.01, 0, 0.5, 0, 0.01, 0.5]])
    monkeypatch.setattr(fractals, "sample_system", lambda _draws: (point, np.array([0.5, 1.0])))
    with pytest.raises(RuntimeError, match="seed 3, picture 8: use another seed"):
        fractal(Key(3), 8, 64, True)


def test_poor_pictures_are_refused():
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    pictures = [np.broadcast_to(ramp, (64, 64)), np.full((64, 64), 128), noise, np.broadcast_to(ramp // 3, (64, 64))]
    rgb = [np.repeat(picture.astype(np.uint8)[..., None], 3, axis=2) for picture in pictures]
    assert [fractals._is_rich(picture) for picture in rgb] == [True, False, False, False]


@pytest.mark.parametrize(
    ("number", "size", "message"),
    [
        (0, 15, "size is 15, expected 16..2048"),
        (0, 2049, "is 2049"),
        (-1, 32, "number is -1"),
        (1 << 32, 32, "4294967296"),
    ],
)
def test_fractal_arguments(number, size, message):
    with pytest.raises(ValueError, match=message):
        fractal(Key(0), number, size, True)


def test_recipe():
    """Means of the channels as first drawn.  If they change on purpose, raise `RECIPE`: it names the cached pool."""
    means = [fractal(Key(0), number, 32, True).mean(axis=(0, 1)) for number in range(3)]
    expected = [[99.8, 111.4, 95.6], [95.2, 113.2, 46.2], [84.4, 144.1, 131.1]]
    assert fractals.RECIPE == 1
    np.testing.assert_allclose(means, expected, atol=0.5)
