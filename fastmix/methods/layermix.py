"""LayerMix: one op a sample, layered one to three times with blends in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import ops
from ..kernels import OP, Clip, Mode, Op, Records
from ..rng import Key, Stream, integers
from ..types import Batch, Params, Pool
from . import _blend
from ._blend import ADD, ELEMENTS, MULTIPLY, PIXELS

_BLENDS = np.array([ADD, MULTIPLY, ADD, MULTIPLY, PIXELS, ELEMENTS])


@dataclass
class LayerMix:
    """One to three layers of one shared op f; Ahmad et al., "LayerMix" (2025), and its released code.

    Each with probability 1/3: f(x); blend(f(x), f(x)); or f(blend(blend(f(x), f(x)), pool picture)).  Every use of f
    draws its own strength; each blend is clipped to [0, 1] and is "add" or "multiply" (1/3 each), random pixels or
    random elements (1/6 each).

    magnitude: in (0.1, 10], the strength of f.  beta: > 0, of the conic blend weights.  grey: see the pool pictures in
    grey and randomly mirrored and flipped (the paper's grey-fractals option).  min_bits: in 0..4, the fewest bits
    posterize may keep; the released code has 0, which makes a black picture (all posterized ones at magnitude 1, four
    fifths at 3): nothing to learn from, hence 1.  pool: the mixing pictures, at least as large as the batch's.
    Raises ValueError for settings outside these ranges, and in `draw` for a missing or too small pool.

    Deviations from the released code: every f gives a uint8 picture and takes one, where that code stays in floating
    point; a pool picture is drawn a sample and shared by its views, as there.
    """

    magnitude: float = 3.0
    beta: float = 3.0
    grey: bool = True
    min_bits: int = 1
    pool: Pool | None = field(default=None, repr=False, compare=False)
    enabled: bool = True
    label_preserving: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        _blend.check_severity("magnitude", self.magnitude)
        _blend.check_positive("beta", self.beta)
        _blend.check_count("min_bits", self.min_bits)
        _blend.check(self.min_bits <= 4, "min_bits", self.min_bits, "0..4", "posterize keeps at most 4 bits; pass 1")

    @classmethod
    def cifar(cls, **changes: Any) -> LayerMix:
        """The paper's CIFAR setting: magnitude 8, beta 3."""
        return cls(**{"magnitude": 8.0, "beta": 3.0, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> LayerMix:
        """The paper's ImageNet setting: magnitude 1, beta 4.  It also reports magnitude 8, beta 3: that is `cifar`."""
        return cls(**{"magnitude": 1.0, "beta": 4.0, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw the op and the layers: 0 and 1 are f(x), 2 is the pool picture."""
        if not self.enabled:
            return _blend.preserving(_blend.blank(key, batch))
        ids, (height, width) = batch.targets.ids, batch.images.shape[1:3]
        u = key.uniform(ids, Stream.METHOD, 16)
        depth = integers(u[:, 0], 0, 3)
        f = self._ops(u[:, 1], u[:, 2:8].reshape(-1, 3, 2), (height, width))
        program = _blend.blank(key, batch, layers=3, chain=3, steps=3)
        deep, used = depth == 2, np.arange(2) <= depth[:, None]
        program.ops[:, :2, 0][used] = f[:, :2][used]
        program.finish[deep] = f[deep, 2]
        program.layers[:, 2] = _blend.pool_layers(self.pool, key, batch)
        if self.grey:
            program.ops[deep, 2] = _grey(_blend.shared(key).uniform(ids, Stream.POOL, 2, start=4)[deep] < 0.5)
        steps = program.steps
        steps["layer"] = np.arange(3)
        steps["mode"][:, 0] = Mode.SET
        blends = u[:, 8:].reshape(-1, 2, 4)
        _blend.set_blend(steps[:, 1:], _BLENDS[integers(blends[..., 0], 0, 6)], blends[..., 1:], self.beta)
        steps["clip"] = Clip.UNIT
        steps["stream"] = key.stream(Stream.PIXELS) + np.arange(3)
        steps["mode"][np.arange(3) > depth[:, None]] = Mode.END
        return _blend.preserving(program)

    def _ops(self, choice: NDArray[np.float64], u: NDArray[np.float64], size: tuple[int, int]) -> Records:
        """(N, 3) uses of one op a sample.  choice: (N,); u: (N, 3, 2) level and sign."""
        picked = np.repeat(integers(choice, 0, len(ops.LAYERMIX))[:, None], 3, axis=1)
        drawn = ops.draw_as(ops.LAYERMIX, picked, u, self.magnitude, size)
        bits = drawn["p"][..., 0]
        np.maximum(bits, self.min_bits, out=bits, where=drawn["code"] == Op.FLOAT_POSTERIZE)
        return drawn


def _grey(coins: NDArray[np.bool_]) -> Records:
    """(N, 3) OP: grey, then mirrored where coins[:, 0], then flipped where coins[:, 1]."""
    mirror, flip = coins[:, 0], coins[:, 1]
    chain = np.zeros((len(coins), 3), OP)
    chain["code"][:, 0] = Op.GRAYSCALE
    chain["code"][:, 1] = np.where(mirror, Op.MIRROR, np.where(flip, Op.FLIP, Op.NONE))
    chain["code"][:, 2] = np.where(mirror & flip, Op.FLIP, Op.NONE)
    return chain
