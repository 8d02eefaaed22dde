"""CutMix: a box of one picture pasted into another, labels by area."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..kernels import Mode, Source
from ..rng import Key, Stream, integers
from ..types import Batch, Params
from ._blend import blank, check_choice, check_classes, check_count, check_positive, group_owner, preserving


@dataclass
class CutMix:
    """A box of the partner covers the same box of the sample; Yun et al. (ICCV 2019), equations 1 and 2.

    lam ~ Beta(alpha, alpha); the box has sides H sqrt(1 - lam), W sqrt(1 - lam), rounded down to even, around a uniform
    pixel and is clipped to the picture.  The label weight is 1 - box area / (H W), after clipping.

    alpha: > 0.  mode: "batch" draws one box for each mix group (as the paper's code does for its batch), "elem" one a
    sample. group: size of the mix groups in which partners are drawn, >= 1.  num_classes: needed to turn integer labels
    into soft ones. Raises ValueError for settings outside these ranges.

    Deviations from the paper's code: nobody is their own partner where the group has mates, and a sample without mates
    stays as it is, with weight 1; on CIFAR that code leaves half of the batches unmixed, which is not done here.
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
    def cifar(cls, **changes: Any) -> CutMix:
        """The paper's CIFAR setting (section 4.1): alpha 1."""
        return cls(**{"alpha": 1.0, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> CutMix:
        """The paper's ImageNet setting (section 4.1): alpha 1."""
        return cls(**{"alpha": 1.0, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw partners and boxes."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        ids = batch.targets.ids
        size = batch.images.shape[1:3]
        partner = key.partners(ids, Stream.PARTNER, self.group)
        owner = ids if self.mode == "elem" else group_owner(ids, self.group)
        side = np.sqrt(1 - key.beta(owner, Stream.BETA, self.alpha, self.alpha))
        side[partner == np.arange(len(ids))] = 0
        centre = key.uniform(owner, Stream.BOX, 2)
        step = program.steps[:, 0]
        area = np.ones(len(ids), np.int64)
        for axis, low, high in ((0, "top", "bottom"), (1, "left", "right")):
            half = (side * size[axis]).astype(np.int64) // 2
            middle = integers(centre[:, axis], 0, size[axis])
            step[low], step[high] = np.maximum(middle - half, 0), np.minimum(middle + half, size[axis])
            area *= step[high] - step[low]
        step["mode"] = Mode.SET
        program.layers["source"], program.layers["index"] = Source.MATE, partner[:, None]
        return Params(program, partner, (1 - area / (size[0] * size[1])).astype(np.float32))
