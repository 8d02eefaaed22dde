"""The op suites of the papers as data: each op's range, sign and the way from a magnitude to its kernel parameters.

An op is drawn in three steps.  Its *level* is uniform between 0.1 and `highest(severity, size)`; `parameter` turns the
level into the number the papers speak of (degrees, bits, pixels, ...), negated for half of the draws if `signed`; and
`fill` writes that number into the parameters of a `kernels.OP` record.

AugMix (Hendrycks et al., ICLR 2020) brought the suites BASE and ALL, used by PixMix (Hendrycks et al., CVPR 2022) too;
IPMIX and IPMIX_ALL are those of IPMix (Huang et al., NeurIPS 2023); LAYERMIX is that of LayerMix (Ahmad et al., 2025),
whose ops are torchvision's float-tensor forms: warps about the centre, sub-pixel, with black blended in at the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import OP, Op, Records

__all__ = ["ALL", "BASE", "IPMIX", "IPMIX_ALL", "LAYERMIX", "OpSpec", "Size", "describe", "draw", "draw_as", "record"]

F64 = NDArray[np.float64]
Size = tuple[int, int]  # (H, W) in pixels
_LOWEST = 0.1


@dataclass(frozen=True)
class OpSpec:
    """One op of a suite.

    parameter: (levels, size) -> values, any shape, float64.  fill: (values, size) -> (..., 6) float64, the `p` of an OP
    record.  highest: (severity, size) -> the upper end of the level's range; below 0.1 it is the lower end.
    """

    name: str
    code: Op
    parameter: Callable[[F64, Size], F64]
    fill: Callable[[F64, Size], F64]
    signed: bool = False
    highest: Callable[[float, Size], float] = lambda severity, _size: severity


def record(spec: OpSpec, value: Any, size: Size) -> Records:
    """OP records, of the shape of `value`, of an op with the given parameter values; size (H, W) in pixels.

    Values are degrees (counter-clockwise), bits, thresholds 0..256 (LAYERMIX: 0..1), shear in columns per row or rows
    per column, factors, percent cut off at each end, or pixels t: LAYERMIX moves the content by +t, the others by -t.
    """
    value = np.asarray(value, np.float64)
    records = np.zeros(value.shape, OP)
    records["code"] = spec.code
    records["p"] = spec.fill(value, size)
    return records


def draw(suite: Sequence[OpSpec], u: F64, severity: float, size: Size) -> Records:
    """OP records of shape (...) from u (..., 3), uniform in (0, 1): which op of the suite, its level, its sign."""
    choice = np.floor(u[..., 0] * len(suite)).astype(np.int64)
    return draw_as(suite, choice, u[..., 1:], severity, size)


def draw_as(suite: Sequence[OpSpec], choice: NDArray[np.int64], u: F64, severity: float, size: Size) -> Records:
    """OP records of shape (...) of the ops suite[choice], from u (..., 2), uniform in (0, 1): level and sign.

    severity: 0.1..10, the papers' magnitude; size: (H, W) in pixels.
    """
    records = np.zeros(choice.shape, OP)
    for number, spec in enumerate(suite):
        rows = np.nonzero(choice == number)
        value = spec.parameter(_LOWEST + u[..., 0][rows] * (spec.highest(severity, size) - _LOWEST), size)
        if spec.signed:
            value = np.where(u[..., 1][rows] > 0.5, 0.0 - value, value)
        records[rows] = record(spec, value, size)
    return records


def _matrix(*columns: Any) -> F64:
    """(..., 6) float64 from six numbers or arrays of one shape; NumPy's own stack takes ten times as long."""
    made = np.empty((*max(map(np.shape, columns), key=len), 6))
    for k, column in enumerate(columns):
        made[..., k] = column
    return made


def _number(value: F64, _size: Size) -> F64:
    return _matrix(value, 0, 0, 0, 0, 0)


def _round15(value: F64) -> F64:
    """Python's round(value, 15), which rounds the exact value: NumPy's own rounds the inexact value * 1e15."""
    return np.round(value.astype(np.longdouble), 15).astype(np.float64)


def _rotate(value: F64, size: Size) -> F64:
    """Pillow's matrix: a turn about the centre, rounded to 15 decimals."""
    height, width = size
    angle = -np.radians(value % 360)
    c, s, minus_s = _round15(np.cos(angle)), _round15(np.sin(angle)), _round15(-np.sin(angle))
    x, y = width / 2, height / 2
    return _matrix(c, s, c * -x + s * -y + x, minus_s, c, minus_s * -x + c * -y + y)


def _shear_x(value: F64, _size: Size) -> F64:
    return _matrix(1, value, 0, 0, 1, 0)


def _shear_y(value: F64, _size: Size) -> F64:
    return _matrix(1, 0, 0, value, 1, 0)


def _translate_x(value: F64, _size: Size) -> F64:
    return _matrix(1, 0, value, 0, 1, 0)


def _translate_y(value: F64, _size: Size) -> F64:
    return _matrix(1, 0, 0, 0, 1, value)


def _shear_x_centre(value: F64, size: Size) -> F64:
    return _matrix(1, value, value * (-size[0] / 2), 0, 1, 0)


def _shear_y_centre(value: F64, size: Size) -> F64:
    return _matrix(1, 0, 0, value, 1, value * (-size[1] / 2))


def _move_x(value: F64, size: Size) -> F64:
    return _translate_x(0.0 - value, size)


def _move_y(value: F64, size: Size) -> F64:
    return _translate_y(0.0 - value, size)


def _first_level(value: F64, size: Size) -> F64:
    """A threshold t of levels v / 255 in [0, 1] selects the same levels as ceil(255 t) selects among 0..255."""
    return _number(np.clip(np.ceil(255 * value), 0, 256), size)


def _none(level: F64, _size: Size) -> F64:
    return np.zeros_like(level)


def _itself(level: F64, _size: Size) -> F64:
    return level


def _whole(level: F64, _size: Size) -> F64:
    return np.trunc(level)


def _of_ten(maximum: float) -> Callable[[F64, Size], F64]:
    """level / 10 of `maximum`, the fraction dropped."""
    return lambda level, _size: np.trunc(level * maximum / 10)


def _down_from(start: float, maximum: float) -> Callable[[F64, Size], F64]:
    return lambda level, _size: start - np.trunc(level * maximum / 10)


def _third(axis: int) -> Callable[[F64, Size], F64]:
    """Whole pixels, up to a third of the picture's side."""
    return lambda level, size: np.trunc(level * (size[axis] / 3) / 10)


def _up_to(maximum: float) -> Callable[[float, Size], float]:
    return lambda severity, _size: maximum * severity / 10


def _up_to_third(axis: int) -> Callable[[float, Size], float]:
    return lambda severity, size: int(0.33 * size[axis]) * severity / 10


def _shear(level: F64, _size: Size) -> F64:
    return level * 0.3 / 10


def _factor(level: F64, _size: Size) -> F64:
    """Always below 1, and the smaller the lower the severity: so do all the papers' programs."""
    return level * 1.8 / 10 + 0.1


_AUTOCONTRAST = OpSpec("autocontrast", Op.AUTOCONTRAST, _none, _number)
_EQUALIZE = OpSpec("equalize", Op.EQUALIZE, _none, _number)
_SPATIAL = (
    OpSpec("posterize", Op.POSTERIZE, _down_from(4, 4), _number),
    OpSpec("rotate", Op.WARP, _of_ten(30), _rotate, signed=True),
    OpSpec("solarize", Op.SOLARIZE, _down_from(256, 256), _number),
    OpSpec("shear_x", Op.WARP, _shear, _shear_x, signed=True),
    OpSpec("shear_y", Op.WARP, _shear, _shear_y, signed=True),
    OpSpec("translate_x", Op.WARP, _third(1), _translate_x, signed=True),
    OpSpec("translate_y", Op.WARP, _third(0), _translate_y, signed=True),
)
_ENHANCE = (
    OpSpec("color", Op.COLOR, _factor, _number),
    OpSpec("contrast", Op.CONTRAST, _factor, _number),
    OpSpec("brightness", Op.BRIGHTNESS, _factor, _number),
    OpSpec("sharpness", Op.SHARPNESS, _factor, _number),
)

BASE = (_AUTOCONTRAST, _EQUALIZE, *_SPATIAL)
ALL = (*BASE, *_ENHANCE)
IPMIX = (_EQUALIZE, *_SPATIAL, OpSpec("mirror", Op.MIRROR, _none, _number), OpSpec("invert", Op.INVERT, _none, _number))
IPMIX_ALL = (
    *IPMIX,
    OpSpec("autocontrast", Op.AUTOCONTRAST, lambda level, _size: 10 - level, _number),  # percent cut off at each end
    *_ENHANCE,
)
LAYERMIX = (
    _EQUALIZE,
    OpSpec("posterize", Op.FLOAT_POSTERIZE, _whole, _number, highest=_up_to(4)),
    OpSpec(
        "posterize_increasing", Op.FLOAT_POSTERIZE, lambda level, _size: 4 - np.trunc(level), _number, highest=_up_to(4)
    ),
    OpSpec("solarize", Op.SOLARIZE, _itself, _first_level, highest=_up_to(1)),
    OpSpec(
        "solarize_increasing", Op.SOLARIZE, _itself, _first_level, highest=lambda severity, _size: (1 - severity) / 10
    ),
    OpSpec("autocontrast", Op.FLOAT_AUTOCONTRAST, _none, _number),
    OpSpec("grayscale", Op.FLOAT_GRAYSCALE, _none, _number),
    OpSpec("rotate", Op.FLOAT_WARP, _itself, _rotate, signed=True, highest=_up_to(30)),
    OpSpec("shear_x", Op.FLOAT_WARP, _itself, _shear_x_centre, signed=True, highest=_up_to(0.3)),
    OpSpec("shear_y", Op.FLOAT_WARP, _itself, _shear_y_centre, signed=True, highest=_up_to(0.3)),
    OpSpec("translate_x", Op.FLOAT_WARP, _itself, _move_x, signed=True, highest=_up_to_third(1)),
    OpSpec("translate_y", Op.FLOAT_WARP, _itself, _move_y, signed=True, highest=_up_to_third(0)),
)


def describe(op: Any) -> str:
    """One OP record in words, such as "rotate 12 deg", "posterize 4" or "translate 3 px left"; "none" for Op.NONE."""
    code, p = Op(op["code"]), [float(v) for v in op["p"]]
    name = code.name.lower().removeprefix("float_")
    if code in (Op.WARP, Op.FLOAT_WARP):
        return _describe_warp(*p)
    if code is Op.AUTOCONTRAST and p[0] > 0:
        return f"{name} {p[0]:.1f} %"
    if code in (Op.POSTERIZE, Op.FLOAT_POSTERIZE, Op.SOLARIZE):
        return f"{name} {p[0]:.0f}"
    if code in (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS):
        return f"{name} {p[0]:.2f}"
    if code is Op.HUE:
        return f"{name} {p[0]:+.2f} turns"
    return name


def _describe_warp(a: float, b: float, c: float, d: float, e: float, f: float) -> str:
    if (a, b, d, e) == (1, 0, 0, 1):
        moves = [f"{abs(v):.3g} px {names[v < 0]}" for v, names in ((c, ("left", "right")), (f, ("up", "down"))) if v]
        return " ".join(["translate", *(moves or ["0 px"])])
    if (a, d, e) == (1, 0, 1):
        return f"shear_x {b:.3f}"
    if (a, b, e) == (1, 0, 1):
        return f"shear_y {d:.3f}"
    return f"rotate {np.degrees(np.arctan2(d, a)):.3g} deg"
