"""Every kernel, op and blend on 16 real photo crops, at 32 x 32 and 224 x 224: one thread, times for all 16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastmix import ops
from fastmix.kernels import U8, Backend, Clip, Mode, Op, Program, Source, Where, backend_for
from fastmix.photos import cut_patches
from fastmix.rng import Key

N = 16
SIDES = (32, 224)
PILLOW = {spec.name: spec for spec in (*ops.ALL, *ops.IPMIX)}
FLOAT = {f"float_{spec.name}": spec for spec in ops.LAYERMIX}
BLENDS: dict[str, dict[str, Any]] = {
    "set": {"mode": Mode.SET},
    "linear": {"mode": Mode.LINEAR, "a": 0.7, "b": 0.3},
    "add": {"mode": Mode.ARITHMETIC, "a": 0.75, "b": 0.25},
    "multiply": {"mode": Mode.GEOMETRIC, "a": 0.75, "b": 0.25},
    "random_pixels": {"mode": Mode.SET, "where": Where.PIXELS, "rate": 0.5, "stream": 64},
    "random_elems": {"mode": Mode.SET, "where": Where.ELEMENTS, "rate": 0.5, "stream": 64},
}
Time = Callable[..., None]


@pytest.fixture(params=SIDES)
def images(request: pytest.FixtureRequest) -> U8:
    return cut_patches(N, side=request.param)[0]


@pytest.fixture
def backend(images: U8) -> Backend:
    return backend_for(images)


@pytest.fixture
def time(benchmark: Any) -> Time:
    """Time a kernel after one call that compiles it."""

    def run(kernel: Callable[..., None], *arguments: Any) -> None:
        kernel(*arguments)
        benchmark.extra_info["images"] = N
        benchmark(kernel, *arguments)

    return run


def program_of(images: U8, source: Source) -> Program:
    """One layer (the sample, a mate or the pool) and one step, still without a mode."""
    program = Program.empty(np.arange(N), np.zeros(3, np.uint32), images.shape[1:3], layers=1, chain=1, steps=1)
    program.layers["source"][:, 0] = source
    program.layers["index"][:, 0] = np.roll(np.arange(N), 1)
    return program


@pytest.mark.parametrize("name", [*PILLOW, *FLOAT])
def test_op(time: Time, backend: Backend, images: U8, name: str) -> None:
    spec = {**PILLOW, **FLOAT}[name]
    u = np.full((N, 2), 0.7)
    records = ops.draw_as([spec], np.zeros(N, np.int64), u, 8 if name in FLOAT else 3, images.shape[1:3])
    time(backend.op, images, records, np.empty_like(images), 0, N)


@pytest.mark.parametrize("name", BLENDS)
def test_mix(time: Time, backend: Backend, images: U8, name: str) -> None:
    program = program_of(images, Source.POOL)
    for field, value in BLENDS[name].items():
        program.steps[field] = value
    program.steps["clip"] = Clip.UNIT
    time(backend.mix, images, images[::-1].copy(), program, np.empty_like(images), 0, N)


def test_mix_with_a_mask(time: Time, backend: Backend, images: U8) -> None:
    mask = np.linspace(0, 255, images[0, :, :, 0].size).astype(np.uint8).reshape(1, *images.shape[1:3], 1)
    program = replace(program_of(images, Source.MATE), masks=mask)
    program.steps["mode"], program.steps["where"] = Mode.SET, Where.MASK
    time(backend.mix, images, images[:0], program, np.empty_like(images), 0, N)


def test_mix_that_changes_nothing(time: Time, backend: Backend, images: U8) -> None:
    time(backend.mix, images, images[:0], program_of(images, Source.SAMPLE), np.empty_like(images), 0, N)


def test_mix_of_a_warped_layer(time: Time, backend: Backend, images: U8) -> None:
    program = program_of(images, Source.SAMPLE)
    program.ops[:, 0, 0] = ops.record(PILLOW["rotate"], 12, images.shape[1:3])
    program.steps["mode"] = Mode.SET
    time(backend.mix, images, images[:0], program, np.empty_like(images), 0, N)


def test_crop_resize(time: Time, backend: Backend, images: U8) -> None:
    sources = list(cut_patches(N, side=400)[0])
    boxes = np.tile([40.0, 30.0, 300.0, 320.0], (N, 1))
    time(backend.crop_resize, sources, boxes, np.arange(N) % 2 == 0, np.empty_like(images), 0, N)


def test_paste(time: Time, backend: Backend, images: U8) -> None:
    half = images.shape[1] // 2
    box = np.tile([4, 4, 4 + half, 4 + half], (N, 1))
    source = np.tile([2.0, 2.0, half, half], (N, 1))
    time(backend.paste, images, np.roll(np.arange(N), 1), source, box, np.empty_like(images), 0, N)


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["float32", "half"])
def test_to_float(time: Time, backend: Backend, images: U8, dtype: type, channels_last: bool) -> None:
    table: NDArray[Any] = np.tile(np.arange(256), (3, 1)).astype(dtype)
    out = np.empty((N, 3, *images.shape[1:3]) if not channels_last else images.shape, dtype)
    time(backend.to_float, images, table, out, channels_last, 0, N)


def test_histogram(time: Time, backend: Backend, images: U8) -> None:
    time(backend.histogram, images, np.empty((N, 3, 256), np.int32), 0, N)


def test_table(time: Time, backend: Backend, images: U8) -> None:
    tables = np.broadcast_to(np.arange(256, dtype=np.uint8)[::-1], (N, 3, 256)).copy()
    time(backend.table, images, tables, np.empty_like(images), 0, N)


def test_filter3x3(time: Time, backend: Backend, images: U8) -> None:
    weights = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    time(backend.filter3x3, images, weights, np.empty_like(images), 0, N)


def test_warp(time: Time, backend: Backend, images: U8) -> None:
    matrices = np.tile([0.97, 0.2, -3.0, -0.2, 0.97, 4.0], (N, 1))
    time(backend.warp, images, matrices, np.empty_like(images), 0, N)


@pytest.mark.parametrize("side", SIDES)
def test_bits(time: Time, side: int) -> None:
    out = np.empty((N, side * side), np.uint32)
    time(backend_for(out).bits, np.arange(N), Key(0).words, 64, out)


@pytest.mark.parametrize("side", SIDES)
def test_attractor(time: Time, side: int) -> None:
    """One fern of 1e5 points."""
    maps = np.array(
        [
            [0, 0, 0, 0, 0.16, 0],
            [0.85, 0.04, 0, -0.04, 0.85, 1.6],
            [0.2, -0.26, 0, 0.23, 0.22, 1.6],
            [-0.15, 0.28, 0, 0.26, 0.24, 0.44],
        ]
    )
    chances, box = np.array([0.01, 0.86, 0.93, 1.0]), np.array([-3.0, 0.0, 3.0, 10.0])
    out = np.zeros((side, side), np.uint32)
    time(backend_for(out).attractor, maps, chances, 100_000, np.zeros(4, np.uint32), box, out)


def test_ops_are_all_timed() -> None:
    timed = {spec.code for spec in (*PILLOW.values(), *FLOAT.values())}
    assert set(Op) - timed == {Op.NONE, Op.GRAYSCALE, Op.FLIP, Op.HUE, Op.SHRINK}, "what no preset draws"
