"""AugMix: a convex sum of a picture and a few chains of ops on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import ops
from ..kernels import Mode
from ..rng import Key, Stream, integers
from ..types import Batch, Params
from ._blend import blank, check, check_count, check_positive, check_severity, preserving


@dataclass
class AugMix:
    """(1 - m) x + m sum_i w_i chain_i(x); Hendrycks et al. (ICLR 2020), algorithm 1.

    w ~ Dirichlet(alpha, ..., alpha), m ~ Beta(alpha, alpha).  A chain is a sequence of ops, each drawn uniformly from
    the suite at a level U(0.1, severity).

    width: number of chains, >= 0; 0 changes nothing.  depth: ops a chain, >= 1, or -1 for 1, 2 or 3 drawn for each
    chain. alpha: > 0.  severity: in (0.1, 10].  all_ops: also color, contrast, brightness and sharpness, which overlap
    the corruptions of ImageNet-C.  Raises ValueError for settings outside these ranges.

    Deviation from the paper's code: the sum is made before normalising, which gives the same picture because the
    weights sum to 1, and is rounded to uint8 once.
    """

    width: int = 3
    depth: int = -1
    alpha: float = 1.0
    severity: float = 3.0
    all_ops: bool = False
    enabled: bool = True
    label_preserving: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_count("width", self.width)
        known = isinstance(self.depth, int) and (self.depth == -1 or self.depth >= 1)
        check(known, "depth", self.depth, "an integer >= 1, or -1", "pass depth=-1 for 1, 2 or 3 ops a chain")
        check_positive("alpha", self.alpha)
        check_severity("severity", self.severity)

    @classmethod
    def cifar(cls, **changes: Any) -> AugMix:
        """The paper's CIFAR setting: 3 chains of 1 to 3 ops, severity 3."""
        return cls(**{"severity": 3.0, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> AugMix:
        """The paper's ImageNet setting: 3 chains of 1 to 3 ops, severity 1."""
        return cls(**{"severity": 1.0, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw chains and weights."""
        if not self.enabled or self.width == 0:
            return preserving(blank(key, batch))
        ids = batch.targets.ids
        height, width = batch.images.shape[1:3]
        longest = 3 if self.depth == -1 else self.depth
        u = key.uniform(ids, Stream.METHOD, self.width * (1 + 3 * longest))
        u = u.reshape(len(ids), self.width, 1 + 3 * longest)
        length = integers(u[..., 0], 1, 4) if self.depth == -1 else np.full(u.shape[:2], longest)
        used = np.arange(longest) < length[..., None]
        shares = key.dirichlet(ids, Stream.WEIGHTS, self.alpha, self.width)
        mixed = key.beta(ids, Stream.BETA, self.alpha, self.alpha)

        program = blank(key, batch, layers=self.width, chain=longest, steps=self.width)
        level = u[..., 1:].reshape(len(ids), self.width, longest, 3)[used]
        program.ops[used] = ops.draw(ops.ALL if self.all_ops else ops.BASE, level, self.severity, (height, width))
        steps = program.steps
        steps["mode"], steps["layer"] = Mode.LINEAR, np.arange(self.width)
        steps["a"], steps["b"] = 1, mixed[:, None] * shares
        steps["a"][:, 0] = 1 - mixed
        return preserving(program)
