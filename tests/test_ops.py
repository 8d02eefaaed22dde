"""The op suite: recorded Pillow and torchvision results, and Pillow itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import (
    FLOAT_OPS,
    PIL_OPS,
    SIZES,
    assert_same_op,
    cases,
    check_pillow_case,
    check_torchvision_case,
    check_translate,
    golden,
    picture,
    run_op,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from fastmix.kernels import OP, Backend, Op
from fastmix.ops import IPMIX_ALL, LAYERMIX, OpSpec, describe, record

KINDS = ["noise", "constant", "low", "two", "smooth"]


def _transform(*names: str) -> Callable[..., Image.Image]:
    """Pillow's AFFINE with the parameter at the coefficients named."""

    def apply(image: Image.Image, value: float) -> Image.Image:
        data = [value if name in names else float(name in "ae") for name in "abcdef"]
        return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)

    return apply


PILLOW: dict[str, Callable[[Image.Image, Any], Image.Image]] = {
    "autocontrast": lambda image, value: ImageOps.autocontrast(image, value),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, int(value)),
    "invert": lambda image, _: ImageOps.invert(image),
    "mirror": lambda image, _: ImageOps.mirror(image),
    "rotate": lambda image, value: image.rotate(value, Image.Resampling.BILINEAR),
    "shear_x": _transform("b"),
    "shear_y": _transform("d"),
    "translate_x": _transform("c"),
    "translate_y": _transform("f"),
    "color": lambda image, value: ImageEnhance.Color(image).enhance(value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(value),
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(value),
}
VALUES = {
    "autocontrast": st.floats(0, 20),
    "posterize": st.integers(1, 8),
    "solarize": st.integers(0, 256),
    "rotate": st.integers(-45, 45),
    "shear_x": st.floats(-0.5, 0.5),
    "shear_y": st.floats(-0.5, 0.5),
    "translate_x": st.integers(-12, 12),
    "translate_y": st.integers(-12, 12),
    "color": st.floats(0, 2),
    "contrast": st.floats(0, 2),
    "brightness": st.floats(0, 2),
    "sharpness": st.floats(0, 2),
}


def check_against_pillow(backend: Backend, spec: OpSpec, value: float, image: Any) -> None:
    expected = np.asarray(PILLOW[spec.name](Image.fromarray(image), value))
    op = record(spec, value, image.shape[:2])
    assert_same_op(backend, op, run_op(backend, image, op), expected)


def test_recorded_warps_are_nearly_all_exact(backend: Backend) -> None:
    """All recorded rotations, shears and translations together: at most 2e-4 of the values are off, by one level."""
    off = total = 0
    for case in cases("pillow_cases"):
        if case["op"].split("_")[0] in ("rotate", "shear", "translate"):
            image = golden("ops")[f"image_{case['image']}"]
            expected = golden("ops")[case["output_array"]][case["index"]]
            made = run_op(backend, image, record(PIL_OPS[case["op"]], *case["parameter"].values(), image.shape[:2]))
            off, total = off + int((made != expected).sum()), total + expected.size
    assert off <= 2e-4 * total


@pytest.mark.parametrize("name", sorted({case["op"] for case in cases("pillow_cases")}))
def test_recorded_pillow_cases(backend: Backend, name: str) -> None:
    for case in cases("pillow_cases"):
        if case["op"] == name:
            check_pillow_case(backend, case)


def test_every_recorded_pillow_case_is_there() -> None:
    assert len(cases("pillow_cases")) == 737
    assert {case["op"] for case in cases("pillow_cases")} == {*PIL_OPS, "grayscale"}


@pytest.mark.parametrize("name", sorted(FLOAT_OPS))
def test_recorded_torchvision_cases(backend: Backend, name: str) -> None:
    chosen = [case for case in cases("torchvision_cases") if case["op"] == name]
    assert len(chosen) >= 8
    for case in chosen:
        check_torchvision_case(backend, case)


@pytest.mark.parametrize("spec", IPMIX_ALL, ids=lambda spec: spec.name)
def test_pillow(backend: Backend, spec: OpSpec) -> None:
    @settings(deadline=None, max_examples=40, database=None, derandomize=True)
    @given(st.integers(0, 99), st.sampled_from(SIZES), st.sampled_from(KINDS), VALUES.get(spec.name, st.just(0)))
    def check(seed: int, size: tuple[int, int], kind: str, value: float) -> None:
        check_against_pillow(backend, spec, value, picture(seed, size, kind))

    check()


@pytest.mark.parametrize("size", [(24, 24), (24, 17)])
@pytest.mark.parametrize("degrees", [0, 45, 90, 135, 180, 225, 270, 315, -90])
def test_quarter_turns(backend: Backend, degrees: int, size: tuple[int, int]) -> None:
    check_against_pillow(backend, PIL_OPS["rotate"], degrees, picture(degrees % 360, size, "two"))


@pytest.mark.parametrize("shift", [(0, 0), (0, 1), (2, -3), (-8, 0), (0, 10), (9, 0), (0, -11), (40, 40)])
def test_whole_translations(backend: Backend, shift: tuple[int, int]) -> None:
    check_translate(backend, shift)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 2), (5, 3)])
@pytest.mark.parametrize("spec", [*IPMIX_ALL, *LAYERMIX], ids=lambda spec: f"{spec.name}-{spec.code.name}")
def test_one_colour_stays_one_colour(backend: Backend, spec: OpSpec, size: tuple[int, int]) -> None:
    """Whatever an op does to a plain picture, the pixels that do not come from outside agree."""
    image = picture(8, size, "constant")
    neutral = {Op.WARP: 0.0, Op.FLOAT_WARP: 0.0}
    made = run_op(backend, image, record(spec, neutral.get(spec.code, 4.0), size))
    np.testing.assert_array_equal(made, np.broadcast_to(made[0, 0], made.shape))
    if spec.code in (*neutral, Op.AUTOCONTRAST, Op.FLOAT_AUTOCONTRAST, Op.EQUALIZE, Op.MIRROR):
        np.testing.assert_array_equal(made, image)


def _plain(code: Op, value: float = 0.0) -> Any:
    op = np.zeros((), OP)
    op["code"], op["p"][0] = code, value
    return op


@pytest.mark.parametrize("size", SIZES)
def test_ops_outside_the_suites(backend: Backend, size: tuple[int, int]) -> None:
    image = picture(9, size)
    np.testing.assert_array_equal(run_op(backend, image, _plain(Op.NONE)), image)
    np.testing.assert_array_equal(run_op(backend, image, _plain(Op.FLIP)), image[::-1])
    grey = np.asarray(Image.fromarray(image).convert("L").convert("RGB"))
    np.testing.assert_array_equal(run_op(backend, image, _plain(Op.GRAYSCALE)), grey)
    for code in (Op.POSTERIZE, Op.FLOAT_POSTERIZE):
        np.testing.assert_array_equal(run_op(backend, image, _plain(code, 0)), np.zeros_like(image))


@pytest.mark.parametrize("threshold", [-0.7, 0.0, 0.1, 0.2, 0.5, 0.8, 0.999, 1.0])
def test_float_solarize_is_exact(backend: Backend, threshold: float) -> None:
    """v / 255 >= t, whatever t: no level falls on the wrong side."""
    image = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, -1)
    made = run_op(backend, image, record(FLOAT_OPS["solarize"], threshold, (16, 16)))
    np.testing.assert_array_equal(made, np.where(image / 255 >= threshold, 255 - image, image))


def test_only_the_slice_is_written(backend: Backend) -> None:
    images = np.stack([picture(seed, (5, 6)) for seed in range(4)])
    before, out = images.copy(), np.full_like(images, 77)
    backend.op(images, np.full(4, _plain(Op.INVERT)), out, 1, 3)
    np.testing.assert_array_equal(out[1:3], 255 - images[1:3])
    np.testing.assert_array_equal(out[[0, 3]], np.full_like(out[[0, 3]], 77))
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rotate", -12, "rotate -12 deg"),
        ("posterize", 4, "posterize 4"),
        ("solarize", 231, "solarize 231"),
        ("shear_x", 0.09, "shear_x 0.090"),
        ("shear_y", -0.09, "shear_y -0.090"),
        ("translate_x", 3, "translate 3 px left"),
        ("translate_y", -3, "translate 3 px down"),
        ("translate_y", 0, "translate 0 px"),
        ("autocontrast", 0, "autocontrast"),
        ("autocontrast", 7.31, "autocontrast 7.3 %"),
        ("color", 0.64, "color 0.64"),
        ("mirror", 0, "mirror"),
    ],
)
def test_describe(name: str, value: float, text: str) -> None:
    assert describe(record(PIL_OPS[name], value, (32, 32))) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rotate", 6.5, "rotate 6.5 deg"),
        ("shear_x", 0.1, "shear_x 0.100"),
        ("shear_y", 0.1, "shear_y 0.100"),
        ("translate_x", 2.5, "translate 2.5 px right"),
        ("posterize", 0, "posterize 0"),
        ("grayscale", 0, "grayscale"),
        ("solarize", 0.5, "solarize 128"),
    ],
)
def test_describe_float_ops(name: str, value: float, text: str) -> None:
    assert describe(record(FLOAT_OPS[name], value, (32, 32))) == text
