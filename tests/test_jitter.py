"""The hue kernel and the colour jitter of contrastive training, against torchvision on PIL images."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torchvision.transforms.functional as F
from checks import picture, run_op
from jittering import files, in_torchvision, ops_of
from loading import make_arrays, make_photos
from PIL import Image
from torchvision.transforms import ColorJitter as TorchvisionJitter

from fastmix import DataLoader, Key
from fastmix.engine.jitter import ColorJitter
from fastmix.kernels import OP, Backend, Op, Program, reference

SHIFTS = [-0.5, -0.25, -0.1, -0.003, 0.0, 0.003, 0.0392, 0.1, 0.3333, 0.5]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB"))


# the hue kernel


def hue(turns: float) -> Any:
    op = np.zeros((), OP)
    op["code"], op["p"][0] = Op.HUE, turns
    return op


def check_hue(backend: Backend, image: Any, turns: float) -> None:
    want = F.adjust_hue(Image.fromarray(image), turns)
    np.testing.assert_array_equal(run_op(backend, image, hue(turns)), np.asarray(want))


@pytest.mark.parametrize("turns", SHIFTS)
def test_hue_of_all_kinds_of_colours(backend: Backend, turns: float) -> None:
    """Every 31st of all colours; 31 and 256 have no common divisor, so each channel takes all of its levels."""
    colours = np.arange(0, 1 << 24, 31)
    colours = colours[: len(colours) // 512 * 512]
    image = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], -1).astype(np.uint8)
    check_hue(backend, image.reshape(-1, 512, 3), turns)


def test_hue_of_photographs(backend: Backend, photos: Path) -> None:
    for number, path in enumerate(files(photos)[:6]):
        check_hue(backend, pixels(path), SHIFTS[number])


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (1, 1343), (1, 1344), (1345, 1), (37, 29), (52, 52)])
def test_hue_of_odd_sizes(backend: Backend, size: tuple[int, int]) -> None:
    for kind in ("noise", "constant", "low", "two"):
        check_hue(backend, picture(3, size, kind), 0.07)


def test_a_wrong_hue_is_caught() -> None:
    def off(images: Any, ops: Any, out: Any, lo: int, hi: int) -> None:
        ops = ops.copy()
        ops["p"][:, 0] += 1 / 255
        reference.op(images, ops, out, lo, hi)

    with pytest.raises(AssertionError):
        check_hue(cast(Backend, SimpleNamespace(op=off)), picture(3, (9, 9)), 0.07)


# the jitter


def run(backend: Backend, images: Any, program: Program) -> Any:
    out = np.empty_like(images)
    backend.mix(images, np.empty((0, *images.shape[1:]), np.uint8), program, out, 0, len(images))
    return out


@pytest.mark.parametrize(
    "jitter", [ColorJitter(), ColorJitter(0.8, 0.8, 0.8, 0.2), ColorJitter(3, 0, 1, 0.5, 1.0, 0.5)], ids=str
)
def test_equals_torchvision(backend: Backend, photos: Path, jitter: ColorJitter) -> None:
    """The same factors in the same order, on photographs."""
    images = np.stack([pixels(path)[:90, :120] for path in files(photos)])
    program = jitter.draw(Key(3), np.arange(len(images)), (90, 120))
    made = run(backend, images, program)
    for row, image in enumerate(images):
        np.testing.assert_array_equal(made[row], in_torchvision(image, ops_of(program, row)))


def test_draws_have_torchvisions_distribution() -> None:
    """Bounds on counts are 5 standard deviations wide."""
    n, jitter = 20_000, ColorJitter(0.4, 1.5, 0.4, 0.1, p=0.8, grey=0.2)
    program = jitter.draw(Key(5), np.arange(n), (8, 8))
    drawn = [ops_of(program, row) for row in range(n)]
    colour = [dict(ops) for ops in drawn if len(ops) >= 4]
    assert abs(len(colour) - 0.8 * n) < 5 * np.sqrt(n * 0.16)
    grey = sum(bool(ops) and ops[-1][0] is Op.GRAYSCALE for ops in drawn)
    both = sum(len(ops) == 5 for ops in drawn)
    assert abs(grey - 0.2 * n) < 5 * np.sqrt(n * 0.16) and abs(both - 0.16 * n) < 5 * np.sqrt(n * 0.1344)
    orders = Counter(tuple(code for code, _ in ops[:4]) for ops in drawn if len(ops) >= 4)
    mean = len(colour) / 24
    assert len(orders) == 24 and max(abs(count - mean) for count in orders.values()) < 5 * np.sqrt(mean)
    theirs = TorchvisionJitter(0.4, 1.5, 0.4, 0.1)
    for code, name in (
        (Op.BRIGHTNESS, "brightness"),
        (Op.CONTRAST, "contrast"),
        (Op.COLOR, "saturation"),
        (Op.HUE, "hue"),
    ):
        low, high = getattr(theirs, name)
        share = (np.sort([ops[code] for ops in colour]) - low) / (high - low)
        assert 0 < share[0] < 0.002 and 0.998 < share[-1] < 1
        steps = np.arange(len(share)) / len(share)
        assert np.abs(share - steps).max() < 2.5 / np.sqrt(len(share))  # Kolmogorov and Smirnov's distance


def test_draws_belong_to_ids_and_views() -> None:
    ids, jitter = np.arange(40) * 7, ColorJitter()
    order = np.random.default_rng(0).permutation(40)
    whole, moved = (jitter.draw(Key(3, 2), x, (8, 8)) for x in (ids, ids[order]))
    np.testing.assert_array_equal(moved.ops, whole.ops[order])
    np.testing.assert_array_equal(moved.steps, whole.steps[order])
    for key in (Key(3, 2, view=1), Key(3, 3), Key(4, 2)):
        assert (jitter.draw(key, ids, (8, 8)).ops["p"][..., 0] != whole.ops["p"][..., 0]).any(axis=(1, 2)).all()


def test_strength_zero_changes_nothing(backend: Backend) -> None:
    """An op of strength 0 is left out: hue would not come back from HSV as it was."""
    images = np.stack([picture(seed, (9, 11)) for seed in range(20)])
    for jitter in (ColorJitter(0, 0, 0, 0, p=1, grey=0), ColorJitter(p=0, grey=0)):
        np.testing.assert_array_equal(run(backend, images, jitter.draw(Key(1), np.arange(20), (9, 11))), images)
    only = ColorJitter(0, 0, 0.3, 0, p=1, grey=0).draw(Key(1), np.arange(20), (9, 11))
    assert [[code for code, _ in ops_of(only, row)] for row in range(20)] == [[Op.COLOR]] * 20


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue", "p", "grey"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.4", None, (0.5, 1.5)])
def test_bad_settings(name: str, value: Any) -> None:
    bound = {"hue": "<= 0.5", "p": "<= 1", "grey": "<= 1"}.get(name, "< infinity")
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}, expected a number, 0 <= {name} {bound}")):
        ColorJitter(**{name: value})


@pytest.mark.parametrize("setting", [{"hue": 0.51}, {"p": 1.01}, {"grey": 2}], ids=str)
def test_settings_that_are_too_large(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a number, 0 <="):
        ColorJitter(**setting)


@pytest.mark.parametrize(
    "jitter", [TorchvisionJitter(0.4), ColorJitter, True, 0.4], ids=["torchvision", "class", "true", "number"]
)
def test_what_is_no_jitter(jitter: Any) -> None:
    with pytest.raises(TypeError, match=r"jitter is .*, expected None or fastmix's own, which is drawn by key"):
        DataLoader(make_arrays(4), size=32, views=2, jitter=jitter)


@pytest.mark.parametrize("views", [0, 4, -1, None, "2"])
def test_bad_numbers_of_views(views: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"views is {views!r}, expected 1, 2 or 3")):
        DataLoader(make_arrays(4), size=32, views=views)
