"""The fold: blends, clips, regions and sources of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from checks import (
    check_blend,
    check_box,
    check_masked,
    check_random_mask,
    check_rounding,
    golden,
    picture,
    program,
    run_mix,
    run_op,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fastmix.kernels import OP, Backend, Clip, Mode, Op, Program, Source, Where, reference
from fastmix.ops import ALL, draw

EIGHT_BIT = [0, 1, 4, 5, 6, 7, 8, 10]  # the recorded cases whose pictures are levels / 255
BLENDS = [
    *((f"{paper}_add{end}", Mode.ARITHMETIC) for paper, end in (("pixmix", ""), ("ipmix", ""), ("layermix", "_plain"))),
    *(
        (f"{paper}_multiply{end}", Mode.GEOMETRIC)
        for paper, end in (("pixmix", ""), ("ipmix", ""), ("layermix", "_plain"))
    ),
    ("layermix_add_simplified", Mode.LINEAR),
]


@pytest.mark.parametrize(("name", "mode"), BLENDS)
def test_float_blend(name: str, mode: Mode) -> None:
    """All twelve cases before any rounding, huge values relatively: 2e-6 of a value is a few float32 roundings."""
    arrays = golden("blend")
    for case in range(12):
        x, y = (np.float32(255) * arrays[f"input{k}"][case] for k in (1, 2))
        made = reference.blend(mode, x, y, arrays[f"{name}_a"][case], arrays[f"{name}_b"][case])
        expected = 255 * arrays[f"{name}_output"][case].astype(np.float64)
        np.testing.assert_allclose(made, expected, rtol=2e-6, atol=1e-4)


@pytest.mark.parametrize("case", EIGHT_BIT)
@pytest.mark.parametrize(("name", "mode"), BLENDS)
def test_recorded_blend(backend: Backend, name: str, mode: Mode, case: int) -> None:
    check_blend(backend, name, mode, case)


@pytest.mark.parametrize("case", EIGHT_BIT)
@pytest.mark.parametrize("name", ["ipmix_pixel", "ipmix_element", "layermix_pixel", "layermix_element"])
def test_recorded_mask(backend: Backend, name: str, case: int) -> None:
    check_masked(backend, name, case)


@pytest.mark.parametrize("box", [(0, 0, 9, 11), (2, 3, 5, 7), (0, 0, 1, 1), (8, 10, 9, 11), (4, 4, 4, 9)])
def test_box(backend: Backend, box: tuple[int, int, int, int]) -> None:
    check_box(backend, box)


def test_rounding(backend: Backend) -> None:
    check_rounding(backend)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("where", [Where.PIXELS, Where.ELEMENTS])
def test_random_mask(backend: Backend, where: Where, rate: float) -> None:
    check_random_mask(backend, where, rate)


def test_random_masks_inside_a_box_use_the_draws_of_their_place(backend: Backend) -> None:
    size = (6, 7)
    images = np.stack([picture(1, size), picture(2, size)])
    step = {"mode": Mode.SET, "where": Where.PIXELS, "rate": 0.5, "stream": 3}
    whole = run_mix(backend, images, program(2, size, step))
    part = run_mix(backend, images, program(2, size, {**step, "top": 2, "left": 3, "bottom": 5, "right": 6}))
    expected = images.copy()
    expected[:, 2:5, 3:6] = whole[:, 2:5, 3:6]
    np.testing.assert_array_equal(part, expected)


def test_soft_mask(backend: Backend) -> None:
    """weight / 255 of x, the rest of the new value; exact sums of 255 need no tolerance at the ends."""
    images = np.stack([np.full((16, 16, 3), 200, np.uint8), np.full((16, 16, 3), 40, np.uint8)])
    weights = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    programs = program(2, (16, 16), {"mode": Mode.SET, "where": Where.MASK})
    made = run_mix(backend, images, Program(**{**vars(programs), "masks": weights}))
    exact = weights[0] / 255 * 200 + (1 - weights[0] / 255) * 40
    np.testing.assert_allclose(made[0], np.broadcast_to(exact, made[0].shape), rtol=0, atol=0.5 + 1e-4)
    assert made[0, 0, 0, 0] == 40
    assert made[0, -1, -1, 0] == 200


def test_no_steps_is_the_identity(backend: Backend) -> None:
    images = np.stack([picture(seed, (5, 6)) for seed in range(3)])
    np.testing.assert_array_equal(run_mix(backend, images, program(3, (5, 6))), images)
    later = program(3, (5, 6), {"mode": Mode.END}, {"mode": Mode.SET})
    np.testing.assert_array_equal(run_mix(backend, images, later), images)


def _ramp() -> Any:
    """Two rows; the first holds every level."""
    levels = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, -1)
    return np.stack([levels, np.zeros_like(levels)])


@pytest.mark.parametrize("a", [-3.0, -0.75, 0.75, 1.75, 3.0])
def test_clips(backend: Backend, a: float) -> None:
    """After a clip, halving shows what was kept: with `a` a multiple of 1/4 everything is exact."""
    images = _ramp()
    value = a * images[0].astype(np.float64)
    kept = {
        Clip.NONE: value,
        Clip.UNIT: np.clip(value, 0, 255),
        Clip.CUT: np.floor(np.clip(value, 0, 255)),
        Clip.WRAP: np.trunc(value) % 256,
    }
    for clip, expected in kept.items():
        steps = {"mode": Mode.LINEAR, "a": a, "clip": clip}, {"mode": Mode.LINEAR, "a": 0.5}
        made = run_mix(backend, images, program(2, (16, 16), *steps))
        np.testing.assert_array_equal(made[0], np.clip(np.floor(expected / 2 + 0.5), 0, 255))


def test_wrap_of_huge_values_is_zero(backend: Backend) -> None:
    """127.5 * 2 * (1e-37)^-1 and anything else from 2^31 on."""
    images = _ramp()
    step = {"mode": Mode.GEOMETRIC, "a": 1.0, "b": -1.0, "clip": Clip.WRAP}
    np.testing.assert_array_equal(run_mix(backend, images, program(2, (16, 16), step))[0], np.zeros_like(images[0]))
    step = {"mode": Mode.LINEAR, "a": 2.0**24, "clip": Clip.WRAP}
    np.testing.assert_array_equal(run_mix(backend, images, program(2, (16, 16), step))[0], np.zeros_like(images[0]))


def test_geometric_keeps_black_and_saturates(backend: Backend) -> None:
    images = _ramp()
    step = {"mode": Mode.GEOMETRIC, "a": 0.5, "b": -0.9, "clip": Clip.UNIT}
    made = run_mix(backend, images, program(2, (16, 16), step))[0]
    np.testing.assert_array_equal(made, np.where(images[0] == 0, 0, 255))


def test_sum_and_total(backend: Backend) -> None:
    images = np.stack([picture(1, (6, 7)), picture(2, (6, 7))])
    steps = (
        {"mode": Mode.SUM, "a": 0.25},
        {"mode": Mode.SET},
        {"mode": Mode.SUM, "a": 0.75},
        {"mode": Mode.TOTAL},
    )
    made = run_mix(backend, images, program(2, (6, 7), *steps))
    expected = np.floor(0.25 * images + 0.75 * images[::-1] + 0.5)
    np.testing.assert_array_equal(made, expected)


def test_sources_chain_and_finish(backend: Backend) -> None:
    images = np.stack([picture(seed, (6, 7)) for seed in range(3)])
    pool = np.stack([picture(seed + 10, (9, 12)) for seed in range(4)])
    programs = program(3, (6, 7), {"mode": Mode.SET}, chain=(Op.MIRROR, Op.INVERT))
    programs.layers["source"] = np.array([[Source.SAMPLE], [Source.MATE], [Source.POOL]])
    programs.layers["index"][:, 0] = [9, 0, 3]
    programs.layers["top"][2], programs.layers["left"][2] = 3, 5
    programs.finish["code"][1] = Op.FLIP
    made = run_mix(backend, images, programs, pool)
    np.testing.assert_array_equal(made[0], 255 - images[0][:, ::-1])
    np.testing.assert_array_equal(made[1], 255 - images[0][::-1, ::-1])
    np.testing.assert_array_equal(made[2], 255 - pool[3, 3:9, 5:12][:, ::-1])


@pytest.mark.parametrize("pool_in", [False, True])
def test_sets_are_slices(backend: Backend, pool_in: bool) -> None:
    """Boxes of a mate, of a changed sample and of the pool over each other, some of them empty."""
    images = np.stack([picture(seed, (7, 9)) for seed in range(40)])
    pool = np.stack([picture(seed + 90, (9, 12)) for seed in range(4)])
    rng = np.random.default_rng(5)
    made = Program.empty(np.arange(40), np.array([1, 2, 3], np.uint32), (7, 9), layers=3, chain=1, steps=4)
    made.layers["source"], made.layers["index"][:, 0] = (Source.MATE, Source.SAMPLE, Source.POOL), rng.permutation(40)
    made.layers["index"][:, 2], made.layers["top"][:, 2], made.layers["left"][:, 2] = 3, 2, 1
    made.ops["code"][:, 1, 0] = Op.INVERT
    made.steps["mode"], made.steps["layer"] = Mode.SET, rng.integers(0, 3 if pool_in else 2, (40, 4))
    for low, high, side in (("top", "bottom", 7), ("left", "right", 9)):
        made.steps[low], made.steps[high] = rng.integers(0, side + 1, (2, 40, 4))
    expected = images.copy()
    for row, one in enumerate(expected):
        layers = images[made.layers["index"][row, 0]], 255 - images[row], pool[3, 2:, 1:10]
        for step in made.steps[row]:
            box = slice(step["top"], step["bottom"]), slice(step["left"], step["right"])
            one[box] = layers[step["layer"]][box]
    np.testing.assert_array_equal(run_mix(backend, images, made, pool), expected)


def test_only_the_slice_is_made(backend: Backend) -> None:
    images = np.stack([picture(seed, (5, 6)) for seed in range(4)])
    out = np.full_like(images, 77)
    backend.mix(images, images, program(4, (5, 6), {"mode": Mode.SET}), out, 1, 3)
    np.testing.assert_array_equal(out[:2], images[2:4])
    np.testing.assert_array_equal(out[2:], np.full_like(out[2:], 77))


def random_program(seed: int, count: int, size: tuple[int, int], modes: Sequence[Mode]) -> Program:
    """Programs of three random steps over two random layers, with masks, boxes, chains of ops and a finish."""
    rng = np.random.default_rng(seed)
    height, width = size
    made = Program.empty(np.arange(count) * 2**31, np.array([1, 2, 3], np.uint32), size, layers=2, chain=2, steps=3)
    made.layers["source"] = rng.integers(0, 3, (count, 2))
    made.layers["index"] = rng.integers(0, 2, (count, 2))
    made.ops[:] = draw(ALL, rng.random((count, 2, 2, 3)), 8.0, size)
    made.ops["code"] *= rng.random((count, 2, 2)) < 0.5
    made.finish[:] = draw(ALL, rng.random((count, 3)), 8.0, size)
    made.finish["code"] *= rng.random(count) < 0.3
    steps = made.steps
    steps["mode"] = rng.choice(modes, (count, 3))
    steps["layer"] = rng.integers(0, 2, (count, 3))
    steps["a"], steps["b"] = rng.uniform(0, 2, (count, 3)), rng.uniform(-1, 1, (count, 3))
    steps["clip"], steps["where"] = rng.integers(1, 4, (count, 3)), rng.integers(0, 4, (count, 3))
    steps["rate"], steps["stream"] = rng.random((count, 3)), rng.integers(0, 2**12, (count, 3))
    steps["index"] = rng.integers(0, 3, (count, 3))
    whole = rng.random((count, 3)) < 0.5
    steps["top"], steps["left"] = (np.where(whole, 0, rng.integers(0, n + 1, (count, 3))) for n in size)
    steps["bottom"] = np.where(whole, height, rng.integers(steps["top"], height + 1))
    steps["right"] = np.where(whole, width, rng.integers(steps["left"], width + 1))
    masks = rng.integers(0, 256, (3, *size, rng.choice([1, 3])), dtype=np.uint8)
    return Program(**{**vars(made), "masks": masks})


EXACT = [mode for mode in Mode if mode is not Mode.GEOMETRIC]


@settings(deadline=None, max_examples=60, database=None, derandomize=True)
@given(st.integers(0, 2**20), st.sampled_from([(1, 1), (1, 7), (5, 3), (16, 17)]))
def check_random_programs(backend: Backend, seed: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (4, *size, 3), dtype=np.uint8)
    pool = rng.integers(0, 256, (2, *size, 3), dtype=np.uint8)
    programs = random_program(seed, 4, size, EXACT)
    np.testing.assert_array_equal(run_mix(backend, images, programs, pool), run_mix(reference, images, programs, pool))


def test_random_programs_equal_the_reference(cpu: Backend) -> None:
    check_random_programs(cpu)


def test_random_powers_are_within_one_level_of_the_reference(cpu: Backend) -> None:
    """With no later step or wrap to enlarge it, a power is off by at most one level, in at most 1e-3 of the values."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    programs = random_program(5, 8, (32, 32), [Mode.GEOMETRIC])
    programs.steps["mode"][:, 1:], programs.steps["clip"], programs.finish["code"] = Mode.END, Clip.UNIT, Op.NONE
    made, expected = (run_mix(b, images, programs, images) for b in (cpu, reference))
    difference = np.abs(made.astype(np.int64) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 1e-3


def test_layer_ops_are_the_ops(backend: Backend) -> None:
    """An op inside a program does what `op` does."""
    images = np.stack([picture(seed, (17, 16), "smooth") for seed in range(13)])
    ops = draw(ALL, np.stack([(np.arange(13) + 0.5) / 13, np.full(13, 0.9), np.full(13, 0.2)], -1), 8.0, (17, 16))
    programs = program(13, (17, 16), {"mode": Mode.SET})
    programs.layers["source"] = Source.SAMPLE
    programs.ops[:, 0, 0] = ops
    made = run_mix(backend, images, programs)
    for image, op, out in zip(images, np.asarray(ops, OP), made, strict=True):
        np.testing.assert_array_equal(out, run_op(backend, image, op))


def test_a_sum_after_the_total_leaves_the_levels_alone(backend: Backend) -> None:
    images = np.stack([picture(1, (6, 7)), picture(2, (6, 7))])
    steps = ({"mode": Mode.SUM, "a": 0.25}, {"mode": Mode.TOTAL}, {"mode": Mode.SUM, "a": 1.0})
    made = run_mix(backend, images, program(2, (6, 7), *steps))
    np.testing.assert_array_equal(made, np.floor(0.25 * images + 0.5))
