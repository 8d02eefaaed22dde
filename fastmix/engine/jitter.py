"""The colour jitter of contrastive training, drawn by key and applied as a program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ..kernels import OP, Mode, Op, Program
from ..ops import Size
from ..rng import Ids, Key, Stream

_OPS = (Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.HUE)
_HIGHEST = {"hue": 0.5, "p": 1, "grey": 1}


@dataclass(frozen=True)
class ColorJitter:
    """Random brightness, contrast, saturation and hue, in random order, and random grey.

    brightness, contrast, saturation: the factor is uniform in [max(0, 1 - value), 1 + value]; finite, >= 0.
    hue: the shift is uniform in [-value, value] turns, 0..0.5.  With 0 an op is left out.
    p: chance that the four are applied, in an order drawn anew for each picture.  grey: chance that the picture becomes
    grey after them.

    The ops are Pillow's, and for the same factors and order the picture is that of torchvision's `ColorJitter` and
    `RandomGrayscale` on a PIL image.  The defaults are those of GradMix, and but for its blur of SimCLR on CIFAR (Chen
    et al., "A simple framework for contrastive learning of visual representations", ICML 2020, appendix A, strength
    0.5).

    Raises ValueError for a setting outside its range.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    p: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, value in vars(self).items():
            most = _HIGHEST.get(name, math.inf)
            if not (isinstance(value, Real) and math.isfinite(value) and 0 <= float(value) <= most):
                bound = f"<= {most}" if math.isfinite(most) else "< infinity"
                raise ValueError(f"{name} is {value!r}, expected a number, 0 <= {name} {bound}")

    def draw(self, key: Key, ids: Ids, size: Size) -> Program:
        """The programs of pictures of `size` (H, W): one layer, the picture seen through its ops, set everywhere."""
        u = key.uniform(ids, Stream.JITTER, 10)
        spread = np.array([self.brightness, self.contrast, self.saturation, self.hue], np.float64)
        low, high = np.maximum(1 - spread, 0), 1 + spread
        low[3], high[3] = -self.hue, self.hue
        ops = np.zeros((len(ids), 5), OP)
        ops["code"][:, :4] = np.where((u[:, :1] < self.p) & (spread > 0), _OPS, Op.NONE)
        ops["p"][:, :4, 0] = low + (high - low) * u[:, 1:5]
        ops["code"][:, 4] = np.where(u[:, 5] < self.grey, Op.GRAYSCALE, Op.NONE)
        ops[:, :4] = np.take_along_axis(ops[:, :4], np.argsort(u[:, 6:], axis=1), axis=1)
        none = ops["code"] == Op.NONE  # it ends a chain, so it goes behind the others
        program = Program.empty(ids, key.words, size, layers=1, chain=5, steps=1)
        program.ops[:, 0] = np.take_along_axis(ops, np.argsort(none, axis=1, kind="stable"), axis=1)
        program.steps["mode"][:, 0] = np.where(none.all(axis=1), Mode.END, Mode.SET)
        return program
