"""The core in a few seconds, on the reference kernels: run it first, and before every commit."""

import numpy as np
import pytest

from fastmix.kernels import Mode, Op, Program, Source, Where, reference
from fastmix.methods.mixup import MixUp
from fastmix.rng import Key, Stream, philox
from fastmix.types import Batch, Method

SIZE = (5, 7)


def batch(n: int = 4) -> Batch:
    pixels = np.random.default_rng(0).integers(0, 256, (n, *SIZE, 3), dtype=np.uint8)
    return Batch.of(pixels, np.arange(n) % 3)


def program(given: Batch, *, layers: int = 1, steps: int = 1) -> Program:
    return Program.empty(given.targets.ids, Key(1).words, SIZE, layers=layers, chain=1, steps=steps)


def run(given: Batch, made: Program) -> np.ndarray:
    out = np.zeros_like(given.images)
    reference.mix(given.images, np.zeros((1, *SIZE, 3), np.uint8), made, out, 0, len(out))
    return out


def test_philox() -> None:
    np.testing.assert_array_equal(
        philox(np.zeros(4, np.uint32), (0, 0)), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    )


def test_partners_swap_a_pair() -> None:
    np.testing.assert_array_equal(Key(0).partners(np.arange(2), Stream.PARTNER, 16), [1, 0])


def test_soft_labels() -> None:
    targets = batch(3).targets
    np.testing.assert_array_equal(targets.soft(3), np.eye(3))


def test_the_empty_program_changes_nothing() -> None:
    given = batch()
    np.testing.assert_array_equal(run(given, program(given)), given.images)


def test_half_a_mate() -> None:
    given = batch()
    mate = np.roll(np.arange(4), 1)
    made = program(given)
    made.layers["source"], made.layers["index"][:, 0] = Source.MATE, mate
    made.steps["mode"], made.steps["a"], made.steps["b"] = Mode.LINEAR, 0.5, 0.5
    want = (given.images.astype(np.int64) + given.images[mate] + 1) // 2
    np.testing.assert_array_equal(run(given, made), want)


def test_a_box_of_the_inverted_picture() -> None:
    given = batch()
    made = program(given)
    made.ops["code"] = Op.INVERT
    made.steps["mode"], made.steps["where"] = Mode.SET, Where.EVERYWHERE
    made.steps["top"], made.steps["bottom"], made.steps["left"], made.steps["right"] = 1, 3, 2, 7
    want = given.images.copy()
    want[:, 1:3, 2:7] = 255 - want[:, 1:3, 2:7]
    np.testing.assert_array_equal(run(given, made), want)


def test_random_pixels_at_their_limits() -> None:
    given = batch()
    for rate, want in ((0.0, 255 - given.images), (1.0, given.images)):
        made = program(given)
        made.ops["code"] = Op.INVERT
        made.steps["mode"], made.steps["where"], made.steps["rate"] = Mode.SET, Where.PIXELS, rate
        made.steps["stream"] = Key(1).stream(Stream.PIXELS)
        np.testing.assert_array_equal(run(given, made), want)


def test_mixup_weighs_pictures_and_labels_alike() -> None:
    given, method = batch(), MixUp(mode="elem")
    params = method.draw(Key(3), given)
    share = params.weight.astype(np.float64)[:, None, None, None]
    want = share * given.images + (1 - share) * given.images[params.partner]
    assert isinstance(method, Method)
    assert len(np.unique(params.weight)) == 4
    np.testing.assert_allclose(run(given, params.program), want, atol=0.5001)


def test_float_pictures_are_refused() -> None:
    with pytest.raises(TypeError, match="mix before normalising"):
        Batch.of(np.zeros((1, *SIZE, 3), np.float32), [0])
