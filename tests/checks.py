"""Checks that every backend must pass, with expected values from outside fastmix.

They are functions of a backend, so that `test_wrong_backend` can show that each of them fails when a kernel is wrong.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastmix.kernels import OP, Backend, Clip, Mode, Op, Program, Records, Source, Where, reference
from fastmix.ops import IPMIX_ALL, LAYERMIX, record
from fastmix.rng import Key

U8 = NDArray[np.uint8]
KEY = Key(seed=0x1234_5678_9ABC, epoch=3)
PIL_OPS = {spec.name: spec for spec in IPMIX_ALL}
FLOAT_OPS = {spec.name: spec for spec in LAYERMIX}
SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 3), (3, 3), (32, 32), (37, 29)]


@cache
def golden(name: str) -> dict[str, NDArray[Any]]:
    """The arrays of a recording in tests/data."""
    with np.load(Path(__file__).parent / "data" / f"{name}.npz") as arrays:
        return dict(arrays)


@cache
def cases(name: str) -> list[dict[str, Any]]:
    """The case list `name` of ops.npz."""
    return [json.loads(text) for text in golden("ops")[name]]


def picture(seed: int, size: tuple[int, int], kind: str = "noise") -> U8:
    """A test picture (H, W, 3)."""
    rng = np.random.default_rng(seed)
    if kind == "constant":
        return np.full((*size, 3), rng.integers(0, 256, 3), np.uint8)
    if kind == "low":
        return rng.integers(100, 110, (*size, 3), dtype=np.uint8)
    if kind == "two":
        return rng.choice(np.array([0, 255], np.uint8), (*size, 3))
    if kind == "smooth":
        rows, columns = np.indices(size) / 10
        return np.stack([127 + 120 * np.sin(rows * (c + 1) + columns + seed) for c in range(3)], -1).astype(np.uint8)
    return rng.integers(0, 256, (*size, 3), dtype=np.uint8)


def run_op(backend: Backend, image: U8, op: Records) -> U8:
    """One picture after one OP record."""
    out: U8 = np.full_like(image[None], 77)
    backend.op(image[None].copy(), np.asarray(op, OP).reshape(1), out, 0, 1)
    return np.asarray(out[0])


def assert_same_op(backend: Backend, op: Records, made: U8, expected: U8) -> None:
    """Equal, but for a warp of a backend that weighs its taps in float32.

    It may be one level off where Pillow's float64 value is next to a whole number: in 1e-4 of the values of a
    photograph, in up to 1e-2 where angles, shears and levels are round.
    """
    if op["code"] != Op.WARP or backend is reference:
        np.testing.assert_array_equal(made, expected)
        return
    difference = np.abs(made.astype(np.int64) - expected)
    assert difference.max() <= 1, f"{(difference > 1).sum()} values differ by more than one level"
    assert (difference > 0).sum() <= max(1e-2 * difference.size, 3), f"{(difference > 0).sum()} values differ"


def check_pillow_case(backend: Backend, case: dict[str, Any]) -> None:
    """A recorded Pillow op, exact, see `assert_same_op`."""
    image = golden("ops")[f"image_{case['image']}"]
    value = next(iter(case["parameter"].values()), 0.0)
    op = np.zeros((), OP)
    op["code"] = Op.GRAYSCALE
    if case["op"] != "grayscale":
        op = record(PIL_OPS[case["op"]], value, image.shape[:2])
    assert_same_op(backend, op, run_op(backend, image, op), golden("ops")[case["output_array"]][case["index"]])


def check_torchvision_case(backend: Backend, case: dict[str, Any]) -> None:
    """A recorded float-tensor op: the nearest level; 1e-3 of one is the float32 error of torchvision's coordinates."""
    image = golden("ops")[f"image_{case['image']}"]
    value = next(iter(case["parameter"].values()), 0.0)
    if "shear_degrees" in case["parameter"]:
        value = np.tan(np.radians(value))
    made = run_op(backend, image, record(FLOAT_OPS[case["op"]], value, image.shape[:2]))
    every = 3 if case["output_array"].endswith("every_third") else 1
    expected = 255 * golden("ops")[case["output_array"]][case["index"]].astype(np.float64)
    np.testing.assert_allclose(made[::every, ::every], expected, rtol=0, atol=0.5 + 1e-3)


def check_translate(backend: Backend, shift: tuple[int, int]) -> None:
    """A translation by whole pixels moves the pixels and leaves black."""
    image = picture(1, (9, 11))
    down, right = shift
    expected = np.zeros_like(image)
    expected[max(down, 0) : 9 + min(down, 0), max(right, 0) : 11 + min(right, 0)] = image[
        max(-down, 0) : 9 - max(down, 0), max(-right, 0) : 11 - max(right, 0)
    ]
    matrices = np.array([[1, 0, -right, 0, 1, -down]], np.float64)
    out = np.empty_like(image[None])
    backend.warp(image[None], matrices, out, 0, 1)
    np.testing.assert_array_equal(out[0], expected)
    op = np.zeros(1, OP)
    op["code"], op["p"] = Op.WARP, matrices
    np.testing.assert_array_equal(run_op(backend, image, op), expected)
    op["code"] = Op.FLOAT_WARP
    np.testing.assert_array_equal(run_op(backend, image, op), expected)


def program(count: int, size: tuple[int, int], *steps: dict[str, Any], chain: tuple[int, ...] = ()) -> Program:
    """`count` equal programs whose layer 0 is the next row of the batch, seen through the ops `chain`."""
    made = Program.empty(np.arange(count) + 5, KEY.words, size, layers=1, chain=len(chain) + 1, steps=len(steps) + 1)
    made.layers["source"] = Source.MATE
    made.layers["index"][:, 0] = np.roll(np.arange(count), -1)
    for number, step in enumerate(steps):
        for name, value in step.items():
            made.steps[name][:, number] = value
    for number, code in enumerate(chain):
        made.ops["code"][:, 0, number] = code
    return made


def run_mix(backend: Backend, images: U8, programs: Program, pool: U8 | None = None) -> U8:
    """All rows mixed; checks that nothing but `out` changes."""
    before, out = images.copy(), np.full_like(images, 77)
    pool = np.zeros((1, *images.shape[1:]), np.uint8) if pool is None else pool
    backend.mix(images, pool, programs, out, 0, len(images))
    np.testing.assert_array_equal(images, before)
    return out


def check_blend(backend: Backend, name: str, mode: Mode, case: int) -> None:
    """A recorded blend of two 8-bit pictures, clipped and rounded to the nearest level."""
    arrays = golden("blend")
    pair = np.stack([arrays["input1"][case], arrays["input2"][case]])
    images = np.round(255 * pair).astype(np.uint8)
    np.testing.assert_allclose(images / 255, pair, rtol=0, atol=1e-7)
    step = {"mode": mode, "a": arrays[f"{name}_a"][case], "b": arrays[f"{name}_b"][case]}
    expected = np.clip(255 * arrays[f"{name}_output"][case].astype(np.float64), 0, 255)
    for clip in (Clip.NONE, Clip.UNIT):
        made = run_mix(backend, images, program(2, images.shape[1:3], {**step, "clip": clip}))
        np.testing.assert_allclose(made[0], expected, rtol=0, atol=0.5 + 1e-3)


def check_masked(backend: Backend, name: str, case: int) -> None:
    """A recorded mask: where it is set the first picture stays, elsewhere the second one shows."""
    arrays = golden("blend")
    images = np.round(255 * np.stack([arrays["input1"][case], arrays["input2"][case]])).astype(np.uint8)
    mask = arrays[f"{name}_mask"][case]
    programs = program(2, images.shape[1:3], {"mode": Mode.SET, "where": Where.MASK})
    masks = 255 * mask.reshape(1, *mask.shape[:2], -1).astype(np.uint8)
    made = run_mix(backend, images, Program(**{**vars(programs), "masks": masks}))
    expected = 255 * arrays[f"{name}_output"][case].astype(np.float64)
    np.testing.assert_allclose(made[0], expected, rtol=0, atol=0.5 + 1e-3)


def check_box(backend: Backend, box: tuple[int, int, int, int]) -> None:
    """SET inside a box (top, left, bottom, right) is a slice assignment."""
    images = np.stack([picture(2, (9, 11)), picture(3, (9, 11))])
    top, left, bottom, right = box
    expected = images.copy()
    expected[:, top:bottom, left:right] = images[::-1, top:bottom, left:right]
    step = {"mode": Mode.SET, "top": top, "left": left, "bottom": bottom, "right": right}
    np.testing.assert_array_equal(run_mix(backend, images, program(2, (9, 11), step)), expected)


def check_paste(backend: Backend, box: tuple[int, int, int, int], source: tuple[int, int]) -> None:
    """A source box of the same size, at (left, top), is copied as it is."""
    images = np.stack([picture(4, (9, 11)), picture(5, (9, 11))])
    top, left, bottom, right = box
    height, width = bottom - top, right - left
    expected = images.copy()
    expected[:, top:bottom, left:right] = images[::-1, source[1] : source[1] + height, source[0] : source[0] + width]
    boxes = np.array([box, box], np.int64)
    source_boxes = np.array([[*source, width, height]] * 2, np.float64)
    out = np.full_like(images, 77)
    backend.paste(images, np.array([1, 0]), source_boxes, boxes, out, 0, 2)
    np.testing.assert_array_equal(out, expected)


def check_rounding(backend: Backend) -> None:
    """Half of x and half of y is rounded half up."""
    levels = np.arange(256, dtype=np.uint8)
    images = np.zeros((2, 256, 256, 3), np.uint8)
    images[0], images[1] = levels[:, None, None], levels[None, :, None]
    made = run_mix(backend, images, program(2, (256, 256), {"mode": Mode.LINEAR, "a": 0.5, "b": 0.5}))
    expected = (levels[:, None].astype(np.int64) + levels[None] + 1) // 2
    np.testing.assert_array_equal(made[0], np.repeat(expected[..., None], 3, -1))


def check_random_mask(backend: Backend, where: Where, rate: float) -> None:
    """A pixel (or an element) keeps x where its draw, made on the host, is below the rate."""
    size, stream = (6, 7), 9
    images = np.stack([picture(6, size), picture(7, size)])
    step = {"mode": Mode.SET, "where": where, "rate": rate, "stream": stream}
    made = run_mix(backend, images, program(2, size, step))
    shape = (2, *size, 3 if where is Where.ELEMENTS else 1)
    draws = KEY.bits(np.arange(2) + 5, stream, int(np.prod(shape[1:]))).reshape(shape)
    keep = draws.astype(np.float64) < np.floor(float(np.float32(rate)) * 2.0**32)
    np.testing.assert_array_equal(made, np.where(keep, images, images[::-1]))
