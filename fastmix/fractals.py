"""Fractals to mix in, each a pure function of a key and a number.

A fractal picture is one to three attractors of random iterated function systems over a cloudy ground.  The ground
matters: a geometric mix with black is black, so thin attractors on black would wipe pictures out instead of mixing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .kernels import F64, U8, backend_for
from .rng import Key

__all__ = ["RECIPE", "SIDES", "fractal", "sample_system"]

Levels = NDArray[np.intp]

SIDES = range(16, 2049)  # sides of a drawn picture, pixels
RECIPE = 1  # raise it whenever `fractal` draws something else: it names cached pools

_TRIES = 64
_DRAWS = 256  # uniform draws set aside for the looks of one try; at most 164 are used
_LEVELS = 1024  # density and height are cut into so many levels, each with its colour
_VISITS = 6  # chaos-game points a pixel, all attractors together
_FILLED = 0.05  # an attractor must visit a larger share of the pixels
_CONTRAST, _MEAN = 24.0, (48.0, 208.0)  # of the grey picture: smallest standard deviation, range of the mean, levels
_ROUGH = 0.8  # largest deviation of the steps between neighbours, by that of the picture; white noise has 1.41
_LOOK, _CLOUDS, _TRACE, _POINTS = 1024, 1025, 1536, 2048  # streams; _TRACE and _POINTS: one a try and layer


def fractal(key: Key, number: int, size: int, color: bool) -> U8:
    """Draw fractal picture `number`: (size, size, 3) uint8, grey ones with three equal channels.

    A pure function of its arguments; of the key only the seed counts.  Near-empty, flat and noisy ones are drawn anew:
    every attractor fills over 5 % of the pixels, and grey levels have a mean of 48..208 and a deviation of at least 24.

    number: 0 <= number < 2^32.  size: side in pixels, 16..2048.
    Raises ValueError for a number or size outside its range.
    """
    if not 0 <= number < 1 << 32:
        raise ValueError(f"picture number is {number}, expected 0 <= number < 2**32")
    if size not in SIDES:
        raise ValueError(f"fractal size is {size}, expected {SIDES[0]}..{SIDES[-1]} pixels: choose one in this range")
    for attempt in range(_TRIES):
        picture = _attempt(Key(key.seed), number, attempt, size)
        if picture is not None:
            return picture if color else np.asarray(Image.fromarray(picture).convert("L").convert("RGB"))
    raise RuntimeError(f"no good fractal in {_TRIES} tries for seed {key.seed}, picture {number}: use another seed")


def _attempt(key: Key, number: int, attempt: int, size: int) -> U8 | None:
    """The picture of one try, or None if an attractor is nearly empty, or the whole flat, dark, pale or noisy."""
    draws = iter(key.uniform(np.array([number]), _LOOK, _DRAWS, start=_DRAWS * attempt)[0])
    layers = []
    count = 1 + int(3 * next(draws))
    for layer in range(count):
        system = sample_system(draws)
        offset = 4 * attempt + layer
        box = _window(_rough_points(system, key, number, _TRACE + offset), draws)
        layers.append(_density(system, key, number, _POINTS + offset, box, size, _VISITS * size**2 // count))
        if np.count_nonzero(layers[-1]) <= _FILLED * size**2:
            return None
    dark = next(draws) < 0.5  # light attractors on a dark ground, or the other way round
    clouds = _clouds(key, number, attempt, size, decay=_between(0.5, 1.0, draws))
    ground = _palette(draws, (0.1, 0.5), (0.4, 0.75)) if dark else _palette(draws, (0.5, 0.8), (0.85, 1.0))
    planes = ground[:, clouds]
    for density in layers:
        _paint(planes, density, dark, draws)
        dark ^= next(draws) < 0.3
    picture = np.ascontiguousarray((planes + 0.5).astype(np.uint8).transpose(1, 2, 0))
    return picture if _is_rich(picture) else None


def _is_rich(picture: U8) -> bool:
    """Whether the grey levels vary enough, and more than those of mere noise between neighbours."""
    gray = np.asarray(Image.fromarray(picture).convert("L"), np.float32)
    deviation = float(gray.std())
    steps = float(np.diff(gray, axis=0).std() + np.diff(gray, axis=1).std()) / 2
    return deviation >= _CONTRAST and _MEAN[0] <= gray.mean() <= _MEAN[1] and steps <= _ROUGH * deviation


def _paint(planes: NDArray[np.float32], density: Levels, dark: bool, draws: Iterator[float]) -> None:
    """Lay an attractor over the picture, in colours and with an opacity that follow its density.

    planes: (3, H, W) float32 levels, changed in place.  The colours span the densities seen: mean +- 2 deviations.
    """
    colors = _palette(draws, (0.3, 0.8), (0.9, 1.0)) if dark else _palette(draws, (0.5, 0.9), (0.05, 0.4))
    seen = np.bincount(density.ravel(), minlength=_LEVELS)
    seen[0] = 0
    ramp = np.arange(_LEVELS)
    mean = np.average(ramp, weights=seen)
    deviation = math.sqrt(np.average((ramp - mean) ** 2, weights=seen)) + 1e-6
    place = np.clip(0.5 + (ramp - mean) / (4 * deviation), 0, 1) * (_LEVELS - 1)
    opacity = np.minimum(1, ramp / (_LEVELS - 1) * _between(1.5, 4, draws)).astype(np.float32)
    planes *= (1 - opacity)[density]
    for plane, color in zip(planes, opacity * colors[:, place.astype(np.intp)], strict=True):
        plane += color[density]


def _palette(draws: Iterator[float], first: tuple[float, float], last: tuple[float, float]) -> NDArray[np.float32]:
    """(3, _LEVELS) float32 RGB levels 0..255: a walk along the hues, from one drawn brightness to another."""
    start, end = _between(*first, draws), _between(*last, draws)
    ramp = np.linspace(0, 1, _LEVELS)
    hue = _between(0, 1, draws) + _between(-0.6, 0.6, draws) * ramp
    saturation = _between(0.3, 0.9, draws)
    k = (np.array([[5], [3], [1]]) + 6 * hue) % 6  # HSV to RGB without cases: one formula, shifted for each channel
    rgb = 255 * (start + (end - start) * ramp) * (1 - saturation * np.clip(np.minimum(k, 4 - k), 0, 1))
    return rgb.astype(np.float32)


def sample_system(draws: Iterator[float]) -> tuple[F64, F64]:
    """Draw an iterated function system of 2 to 4 maps.

    The singular values of n maps satisfy 1 >= s1 >= s2 >= 0 and sum(s1 + 2 s2) = alpha with alpha uniform in
    [(5 + n) / 2, (6 + n) / 2]: the range in which Anderson & Farrell (section 3.2) found attractors to look well.

    draws: uniform numbers in (0, 1), at most 41 are taken.
    Returns (n, 6) float64 maps (x, y) -> (ax + by + c, dx + ey + f), and (n,) float64 cumulative chances, each map's in
    proportion to the area |det| it leaves.
    """
    n = 2 + int(3 * next(draws))
    alpha = (5 + n + next(draws)) / 2
    maps = np.empty((n, 6))
    for row, (large, small) in zip(maps, _singular_values(n, alpha, draws), strict=True):
        matrix = _turn(draws) * [large, small] @ _turn(draws)
        row[[0, 1, 3, 4]] = matrix.ravel()
        row[[2, 5]] = 2 * next(draws) - 1, 2 * next(draws) - 1
    areas = np.abs(maps[:, 0] * maps[:, 4] - maps[:, 1] * maps[:, 3])
    return maps, np.cumsum(areas) / areas.sum()


def _singular_values(n: int, alpha: float, draws: Iterator[float]) -> Iterator[tuple[float, float]]:
    """N pairs with sum(s1 + 2 s2) = alpha, one after the other, each in the range that leaves the rest possible."""
    most, least = alpha, alpha - 3 * (n - 1)  # what this pair may take at most, and must take at least
    for _ in range(n - 1):
        large = _between(max(0.0, least / 3), min(1.0, most), draws)
        most, least = most - large, least - large
        small = _between(max(0.0, least / 2), min(large, most / 2), draws)
        most, least = most - 2 * small, least - 2 * small + 3
        yield large, small
    small = _between(max(0.0, (most - 1) / 2), most / 3, draws)
    yield most - 2 * small, small


def _turn(draws: Iterator[float]) -> F64:
    """A rotation by any angle, and for each axis a coin that mirrors it."""
    angle = _between(-math.pi, math.pi, draws)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return rotation * [math.copysign(1, next(draws) - 0.5), math.copysign(1, next(draws) - 0.5)]


def _between(low: float, high: float, draws: Iterator[float]) -> float:
    return low + (high - low) * next(draws)


def _rough_points(system: tuple[F64, F64], key: Key, number: int, stream: int) -> F64:
    """Points of the attractor, from short chaos games side by side: (P, 2) float64."""
    maps, chances = system
    games, turns, settle = 128, 40, 8
    which = np.searchsorted(chances[:-1], key.uniform(np.array([number]), stream, games * turns)[0])
    points = np.empty((turns, games, 2))
    x, y = np.linalg.solve(np.eye(2) - maps[0].reshape(2, 3)[:, :2], maps[0, [2, 5]])
    for turn, (a, b, c, d, e, f) in enumerate(maps[which].reshape(turns, games, 6).transpose(0, 2, 1)):
        x, y = a * x + b * y + c, d * x + e * y + f
        points[turn, :, 0], points[turn, :, 1] = x, y
    return points[settle:].reshape(-1, 2)


def _window(points: F64, draws: Iterator[float]) -> F64:
    """Left, top, right, bottom of a random part of the points' bounding box, without the outermost 1 % of them."""
    low, high = np.percentile(points, [1, 99], axis=0)
    span = np.maximum(high - low, 1e-9)
    centre = (low + high) / 2 + span * [_between(-0.2, 0.2, draws), _between(-0.2, 0.2, draws)]
    half = span / 2 * [_between(0.3, 0.9, draws), _between(0.3, 0.9, draws)]
    return np.concatenate([centre - half, centre + half])


def _density(system: tuple[F64, F64], key: Key, number: int, stream: int, box: F64, size: int, points: int) -> Levels:
    """Logarithm of how often the chaos game visits each pixel of the window: (size, size), 0.._LEVELS - 1."""
    counts = np.empty((size, size), np.uint32)
    words = np.array([key.seed & 0xFFFFFFFF, key.seed >> 32, number, stream], np.uint32)
    backend_for(counts).attractor(*system, points, words, box, counts)
    logs = np.log1p(_smooth(_smooth(counts)))
    return np.asarray(logs * ((_LEVELS - 1) / max(logs.max(), 1.0)), np.intp)


def _smooth(counts: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sum with weights 1, 2, 1 along columns, transposed: it takes the speckle out of thinly visited parts."""
    edged = np.concatenate([counts[:1], counts, counts[-1:]])
    return np.asarray((edged[:-2] + 2 * counts + edged[2:]).T)


def _clouds(key: Key, number: int, attempt: int, size: int, decay: float) -> Levels:
    """Smooth noise over eight scales, by midpoint displacement: (size, size), from 0 to _LEVELS - 1.

    Each halving of the scale multiplies the noise by exp(-decay).
    """
    sides = [2**level + 1 for level in range(8)]
    ends = np.cumsum(np.square(sides))
    noise = key.uniform(np.array([number]), _CLOUDS, ends[-1], start=attempt << 16)[0]
    grid = np.zeros((2, 2))
    for level, (side, part) in enumerate(zip(sides, np.split(noise, ends[:-1]), strict=True)):
        grid = _finer(_finer(grid)) if level else grid
        grid += math.exp(-decay * level) * part.reshape(side, side)
    while len(grid) < size:
        grid = _finer(_finer(grid))
    grid = grid[:size, :size] - grid[:size, :size].min()
    return np.asarray(grid * ((_LEVELS - 1) / grid.max()), np.intp)


def _finer(grid: F64) -> F64:
    """Twice the rows by Dubuc's four-point scheme (1986), smooth without the creases of linear steps; transposed."""
    out = np.empty((2 * len(grid) - 1, grid.shape[1]))
    edged = np.concatenate([2 * grid[:1] - grid[1:2], grid, 2 * grid[-1:] - grid[-2:-1]])
    out[::2] = grid
    out[1::2] = (9 * (edged[1:-2] + edged[2:-1]) - edged[:-3] - edged[3:]) / 16
    return out.T
