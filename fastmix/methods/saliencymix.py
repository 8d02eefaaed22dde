"""SaliencyMix: a box of a batch mate around what stands out in it most, pasted at its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..kernels import F32, Mode, Source, backend_for
from ..rng import Key, Stream
from ..types import Batch, Params
from ._blend import blank, check_choice, check_classes, check_count, check_positive, preserving
from ._cells import Ints
from ._saliency import check_chance, levels_of, maps_of, peaks

_COIN = Stream.METHOD + 23


@dataclass
class SaliencyMix:
    """A box around the peak of the partner's map covers the same box of the sample; Uddin et al. (ICLR 2021).

    lam ~ Beta(alpha, alpha) for each sample; the box has sides H sqrt(1 - lam), W sqrt(1 - lam), rounded down to even,
    as CutMix's.  It is around the pixel with the largest value of the partner's map, `Batch.maps`, enlarged bilinearly
    to the picture, the first of several.  The label weight is 1 - box area / (H W), of the box that is pasted.

    alpha: > 0.  prob: chance of a sample to be mixed at all, in [0, 1].  locate: "peak", or "boxsum", the box with the
    largest sum of the map, in 256 levels, which lies inside the picture.  border: what happens to a box around a peak
    that reaches beyond the picture: "clip", as in the paper, or "shift", moved inside.  group: size of the mix groups
    in which partners are drawn, >= 1; a sample without mates, or whose partner has no map or one that is the same
    everywhere, stays as it is, with weight 1.  Unknown cells count as the least known one.  num_classes: needed to turn
    integer labels into soft ones.  Raises ValueError for settings outside these ranges.

    Deviations from the paper's code: partners, boxes and whether to mix are drawn for each sample, where that code has
    one box around the peak of one picture for all of a batch; nobody is their own partner; maps may be any, where that
    code has OpenCV's fine-grained saliency (Montabone & Soto, 2010) of normalised values.
    """

    alpha: float = 1.0
    prob: float = 1.0
    border: str = "clip"
    locate: str = "peak"
    group: int = 16
    num_classes: int | None = None
    enabled: bool = True
    label_preserving: ClassVar[bool] = False
    uses_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive("alpha", self.alpha)
        check_chance("prob", self.prob)
        check_choice("border", self.border, ("clip", "shift"))
        check_choice("locate", self.locate, ("peak", "boxsum"))
        check_count("group", self.group, 1)
        check_classes(self.num_classes)

    @classmethod
    def cifar(cls, **changes: Any) -> SaliencyMix:
        """The paper's CIFAR setting: alpha 1, half of the samples mixed."""
        return cls(**{"alpha": 1.0, "prob": 0.5, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> SaliencyMix:
        """The paper's ImageNet setting: alpha 1, every sample mixed."""
        return cls(**{"alpha": 1.0, "prob": 1.0, **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw partners and sizes, and find boxes on the maps.  Raises ValueError for maps of a wrong shape."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        ids, size = batch.targets.ids, np.array(batch.images.shape[1:3])
        partner, own = key.partners(ids, Stream.PARTNER, self.group), np.arange(len(ids))
        program.layers["source"], program.layers["index"] = Source.MATE, partner[:, None]
        maps = maps_of(batch)
        if maps is None:
            return preserving(program)
        side = np.sqrt(1 - key.beta(ids, Stream.BETA, self.alpha, self.alpha))
        half = (side[:, None] * size).astype(np.int64) // 2
        mixed = (partner != own) & maps.uneven[partner] & (half > 0).all(1)
        mixed &= key.uniform(ids, _COIN, 1)[:, 0] < self.prob
        first, last = self._boxes(maps.values[partner[mixed]], half[mixed], size)
        step = program.steps[:, 0]
        step["mode"][mixed] = Mode.SET
        for axis, low, high in ((0, "top", "bottom"), (1, "left", "right")):
            step[low][mixed], step[high][mixed] = first[:, axis], last[:, axis]
        weight = np.ones(len(ids), np.float32)
        weight[mixed] = 1 - (last - first).prod(1) / size.prod()
        return Params(program, np.where(mixed, partner, own), weight)

    def _boxes(self, maps: F32, half: Ints, size: Ints) -> tuple[Ints, Ints]:
        """(N, 2) top and left, (N, 2) bottom and right of boxes of at most twice `half` on maps of sources."""
        room = (int(size[0]), int(size[1]))
        if self.locate == "boxsum":
            first = np.empty_like(half)
            backend_for(maps).best_windows(levels_of(maps, room), 2 * half, first, 0, len(half))
            return first, first + 2 * half
        first = peaks(maps, room) - half
        if self.border == "shift":
            first = first.clip(0, size - 2 * half)
        return first.clip(0), np.minimum(first + 2 * half, size)
