"""PixMix: rounds of blending with a mixing picture or an augmentation of the picture itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..kernels import Clip, Mode
from ..rng import Key, Stream, integers
from ..types import Batch, Params, Pool
from ._blend import blank, check_count, check_positive, check_severity, pack, pool_layers, preserving, set_blend


@dataclass
class PixMix:
    """R ~ {0, ..., k} rounds x = clip(blend(x, y)); Hendrycks et al. (CVPR 2022), section 3 and its pseudocode.

    x starts as the picture or, with probability 1/2, one op on it.  y is, with probability 1/2 each, the sample's
    mixing picture or one op on the *original* picture; the blend is "add" or "multiply" with conic weights, clipped to
    [0, 1] after each round.

    k: most rounds, >= 0; 0 changes nothing.  beta: > 0, larger is closer to x.  severity: in (0.1, 10], of the ops.
    all_ops: also color, contrast, brightness and sharpness, which overlap the corruptions of ImageNet-C.  pool: the
    mixing pictures, at least as large as the batch's; one is drawn a sample and shared by its rounds and views. Raises
    ValueError for settings outside these ranges, and in `draw` for a missing or too small pool.

    Deviations from the paper's code: the picture is rounded to uint8 once, at the end; k = 0 is the identity (there,
    half of the pictures would still get their first op); the size used by translate is the picture's own, not a
    module's global.
    """

    k: int = 4
    beta: float = 3.0
    severity: float = 3.0
    all_ops: bool = False
    pool: Pool | None = field(default=None, repr=False, compare=False)
    enabled: bool = True
    label_preserving: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_count("k", self.k)
        check_positive("beta", self.beta)
        check_severity("severity", self.severity)

    @classmethod
    def cifar(cls, **changes: Any) -> PixMix:
        """The setting of the paper's CIFAR runs: k 4, beta 3, severity 3, all ops."""
        return cls(**{"k": 4, "beta": 3.0, "severity": 3.0, "all_ops": True, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> PixMix:
        """The setting of the paper's ImageNet runs: k 4, beta 4, severity 1, all ops."""
        return cls(**{"k": 4, "beta": 4.0, "severity": 1.0, "all_ops": True, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw the start and the rounds.  Step 0 is the start; step and layer r belong to round r."""
        if not self.enabled or self.k == 0:
            return preserving(blank(key, batch))
        pictures = pool_layers(self.pool, key, batch)
        height, width = batch.images.shape[1:3]
        u = key.uniform(batch.targets.ids, Stream.METHOD, 8 * (self.k + 1) + 1)
        each = u[:, 1:].reshape(len(u), self.k + 1, 8)  # source, op (3), blend, coin, a, b
        augmented = each[..., 0] < 0.5
        active = np.arange(self.k + 1) <= integers(u[:, 0], 0, self.k + 1)[:, None]
        active[:, 0] = augmented[:, 0]

        program = blank(key, batch, layers=self.k + 1, steps=self.k + 1)
        own = active & augmented
        suite = ops.ALL if self.all_ops else ops.BASE
        program.ops[own, 0] = ops.draw(suite, each[own, 1:4], self.severity, (height, width))
        row, layer = np.nonzero(active & ~augmented)
        program.layers[row, layer] = pictures[row]
        steps = program.steps
        steps["layer"] = np.arange(self.k + 1)
        set_blend(steps, integers(each[..., 4], 0, 2), each[..., 5:], self.beta)
        steps["clip"] = Clip.UNIT
        steps["mode"][:, 0] = Mode.SET
        pack(steps, active)
        return preserving(program)
