"""What several methods share: checks, mix groups, pool layers, the conic blends, and packing a program."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from ..kernels import LAYER, STEP, Mode, Program, Records, Source, Where
from ..rng import F64, Ids, Key, Stream, integers
from ..types import Batch, Params, Pool

ADD, MULTIPLY, PIXELS, ELEMENTS = range(4)
_MODES = np.array([Mode.ARITHMETIC, Mode.GEOMETRIC, Mode.SET, Mode.SET], np.int32)
_WHERES = np.array([Where.EVERYWHERE, Where.EVERYWHERE, Where.PIXELS, Where.ELEMENTS], np.int32)


def check(ok: bool, name: str, value: object, expected: str, fix: str) -> None:
    """Raise the one ValueError of a bad setting."""
    if not ok:
        raise ValueError(f"{name} is {value!r}, expected {expected}: {fix}")


def check_positive(name: str, value: float) -> None:
    """A shape parameter of a Beta or Dirichlet distribution."""
    ok = isinstance(value, Real) and 0 < value < math.inf
    check(ok, name, value, f"0 < {name} < infinity", f"pass {name}=1.0, or enabled=False to mix nothing")


def check_severity(name: str, value: float) -> None:
    """A strength on the papers' scale."""
    ok = isinstance(value, Real) and 0.1 < value <= 10
    check(ok, name, value, f"0.1 < {name} <= 10", "the papers use 1, 3 and 8; enabled=False mixes nothing")


def check_count(name: str, value: int, least: int = 0) -> None:
    """A whole number of things."""
    whole = isinstance(value, int | np.integer)
    check(whole and value >= least, name, value, f"an integer >= {least}", f"pass {least} or more")


def check_classes(value: int | None) -> None:
    """The number of classes, where it is given."""
    if value is not None:
        check_count("num_classes", value, 1)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    check(value in choices, name, value, " or ".join(map(repr, choices)), f"pass {name}={choices[0]!r}")


def blank(key: Key, batch: Batch, *, layers: int = 1, chain: int = 1, steps: int = 1) -> Program:
    """Programs that change nothing yet, for the pictures of `batch`."""
    height, width = batch.images.shape[1:3]
    return Program.empty(batch.targets.ids, key.words, (height, width), layers=layers, chain=chain, steps=steps)


def preserving(program: Program) -> Params:
    """The params of a method that keeps labels: everyone is their own partner."""
    n = len(program.ids)
    return Params(program, np.arange(n, dtype=np.int64), np.ones(n, np.float32))


def group_owner(ids: Ids, group: int) -> Ids:
    """(N,) the smallest id of each row's mix group: the name under which the group's shared draws are made."""
    smallest = np.minimum.reduceat(ids, np.arange(0, len(ids), group))
    return np.repeat(smallest, group)[: len(ids)]


def shared(key: Key) -> Key:
    """The key of what all views of a sample have in common: its pool picture."""
    return replace(key, view=0)


def pool_layers(pool: Pool | None, key: Key, batch: Batch) -> Records:
    """(N,) LAYER: one pool picture a sample and a window of the batch's picture size in it, the same in every view.

    Raises ValueError if there is no pool or its pictures are smaller than the batch's.
    """
    if pool is None:
        raise ValueError("pool is None, expected a Pool: pass pool=fastmix.default_pool() or pool=Pool.open(path)")
    count, *have = pool.images.shape[:3]
    height, width = batch.images.shape[1:3]
    if have[0] < height or have[1] < width:
        raise ValueError(
            f"pool pictures are {have[0]} x {have[1]}, expected at least the batch's {height} x {width}: "
            f"make larger ones with `fastmix pool make --size {max(height, width)}`"
        )
    u = shared(key).uniform(batch.targets.ids, Stream.POOL, 3)
    layers = np.zeros(len(u), LAYER)
    layers["source"] = Source.POOL
    layers["index"] = integers(u[:, 0], 0, count)
    layers["top"] = integers(u[:, 1], 0, have[0] - height + 1)
    layers["left"] = integers(u[:, 2], 0, have[1] - width + 1)
    return layers


def set_blend(steps: Records, kind: NDArray[np.int64], u: F64, beta: float) -> None:
    """Make `steps` the blends of PixMix and IPMix.  kind: ADD, MULTIPLY, PIXELS or ELEMENTS; u: (..., 3) coin, a, b.

    Half of the weights are (Beta(beta, 1), Beta(1, beta)), half (1 + Beta(1, beta), -Beta(1, beta)): conic, not convex
    (PixMix, section 3).  V = U^(1 / beta) is Beta(beta, 1), so 1 - V is Beta(1, beta).  The masks keep x with
    probability U(0, 1).
    """
    v = u[..., 1:] ** (1 / beta)
    positive = u[..., 0] < 0.5
    steps["mode"], steps["where"] = _MODES[kind], _WHERES[kind]
    steps["a"] = np.where(positive, v[..., 0], 2 - v[..., 0])
    steps["b"] = np.where(positive, 1 - v[..., 1], v[..., 1] - 1)
    steps["rate"] = np.where(kind >= PIXELS, u[..., 1], 0)


def set_boxes(steps: Records, u: F64, sides: tuple[int, ...], size: tuple[int, int]) -> None:
    """Draw a box for each of `steps`: a square of one of the `sides`, or a rectangle within it.  u: (..., 6).

    Squares half of the time; else width and height are drawn from 2 up to the side.  Sides beyond the picture are cut
    to it.
    """
    fitting = np.minimum(sides, min(size))
    side = fitting[integers(u[..., 0], 0, len(fitting))]
    least, square = np.minimum(2, side), u[..., 1] < 0.5
    for low, high, place, extent, room in (("left", "right", 2, 3, size[1]), ("top", "bottom", 4, 5, size[0])):
        steps[low] = integers(u[..., place], 0, room - side + 1)
        steps[high] = steps[low] + np.where(square, side, least + integers(u[..., extent], 0, side - least + 1))


def simplex(u: F64) -> F64:
    """Dirichlet(1, ..., 1) draws along the last axis, from uniform ones: exponential draws over their sum."""
    exponential = -np.log(u)
    return np.asarray(exponential / exponential.sum(axis=-1, keepdims=True))


def pack(steps: Records, active: NDArray[np.bool_]) -> None:
    """Move the active steps of each row to its front, in order, and end its program behind them."""
    raw = steps.view(f"V{steps.itemsize}")  # moves whole records, which is faster than field by field
    kept = raw[active]
    place = np.arange(steps.shape[1]) < active.sum(axis=1)[:, None]
    steps[~place] = np.zeros((), STEP)
    raw[place] = kept
