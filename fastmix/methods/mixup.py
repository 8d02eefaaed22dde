"""MixUp: a convex sum of two pictures and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..kernels import Mode, Source
from ..rng import Key, Stream
from ..types import Batch, Params
from ._blend import blank, check_choice, check_classes, check_count, check_positive, group_owner, preserving


@dataclass
class MixUp:
    """x = lam x_i + (1 - lam) x_j, lam ~ Beta(alpha, alpha); Zhang, Cisse, Dauphin & Lopez-Paz (ICLR 2018), section 2.

    alpha: > 0.  mode: "batch" draws one lam for each mix group (as the paper's code does for its batch), "elem" one a
    sample. group: size of the mix groups in which partners are drawn, >= 1.  num_classes: needed to turn integer labels
    into soft ones. Raises ValueError for settings outside these ranges.

    The label weight is the very float32 lam of the pixels.  Deviations from the paper's code: nobody is their own
    partner where the group has mates, and a sample without mates stays as it is, with weight 1.
    """

    alpha: float = 1.0
    mode: str = "batch"
    group: int = 16
    num_classes: int | None = None
    enabled: bool = True
    label_preserving: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive("alpha", self.alpha)
        check_choice("mode", self.mode, ("batch", "elem"))
        check_count("group", self.group, 1)
        check_classes(self.num_classes)

    @classmethod
    def cifar(cls, **changes: Any) -> MixUp:
        """The paper's CIFAR setting (section 3.2): alpha 1."""
        return cls(**{"alpha": 1.0, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> MixUp:
        """The paper's ImageNet setting (section 3.1): alpha 0.2."""
        return cls(**{"alpha": 0.2, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw partners and weights."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        ids = batch.targets.ids
        partner = key.partners(ids, Stream.PARTNER, self.group)
        owner = ids if self.mode == "elem" else group_owner(ids, self.group)
        weight = key.beta(owner, Stream.BETA, self.alpha, self.alpha).astype(np.float32)
        weight[partner == np.arange(len(ids))] = 1
        program.layers["source"], program.layers["index"] = Source.MATE, partner[:, None]
        step = program.steps[:, 0]
        step["mode"], step["a"], step["b"] = Mode.LINEAR, weight, 1 - weight
        return Params(program, partner, weight)
