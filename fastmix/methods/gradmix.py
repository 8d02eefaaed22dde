"""GradMix in the loader: a batch mate, shrunk, covers what the model looks at most, by maps of former epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..kernels import Mode, Op, Source
from ..rng import F64, Ids, Key, Stream, integers
from ..types import Batch, Params
from ._blend import blank, check, check_choice, check_classes, check_count, preserving
from ._cells import Ints, best_windows, checked_maps, peak_windows

Bools = NDArray[np.bool_]
_SIZE, _PLACE = Stream.METHOD + 21, Stream.METHOD + 22  # streams of its own, after those of the training step


@dataclass
class GradMix:
    """The window with the largest sum of the sample's map shows the whole partner, shrunk; after Xu et al. (2025).

    "GradMix" (arXiv 2505.12803) makes maps of the batch itself, see `fastmix.learn.GradMixStep`; here they come with
    the batch, `Batch.maps`, from earlier epochs.  v ~ U(size_range) for each sample; the label weight is
    1 - window / (H W).

    size_range: (lo, hi), 0 < lo <= hi <= 1.  size_mode: "side", windows of v H by v W, or "area", of sqrt(v) H by
    sqrt(v) W; rounded to pixels, halves up, at least one.  locate: "boxsum"; "peak", around the centre of the largest
    cell, moved inside; or "random", the control, which covers the same samples with windows of the same sizes.
    Unknown cells count as 0.  fallback: what becomes of a sample without a map, or whose map is the same everywhere:
    "none" leaves it as it is, with weight 1, "random" covers a random window.
    group: size of the mix groups in which partners are drawn, >= 1; a sample without mates stays as it is.
    num_classes: needed to turn integer labels into soft ones.  Raises ValueError for settings outside these ranges.
    """

    size_range: tuple[float, float] = (0.1, 0.5)
    size_mode: str = "side"
    locate: str = "boxsum"
    fallback: str = "none"
    group: int = 16
    num_classes: int | None = None
    enabled: bool = True
    label_preserving: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings."""
        pair: Any = self.size_range
        ordered = isinstance(pair, tuple | list) and len(pair) == 2 and 0 < pair[0] <= pair[1] <= 1
        check(ordered, "size_range", pair, "(lo, hi), 0 < lo <= hi <= 1", "the paper has (0.1, 0.5)")
        check_choice("size_mode", self.size_mode, ("side", "area"))
        check_choice("locate", self.locate, ("boxsum", "peak", "random"))
        check_choice("fallback", self.fallback, ("none", "random"))
        check_count("group", self.group, 1)
        check_classes(self.num_classes)

    @property
    def uses_maps(self) -> bool:
        """Whether anything depends on maps: not, if all samples are to get random windows."""
        return self.locate != "random" or self.fallback != "random"

    @classmethod
    def paper(cls, **changes: Any) -> GradMix:
        """The paper's windows: sides of 0.1 to 0.5, where the map has most."""
        return cls(**changes)

    @classmethod
    def repo(cls, **changes: Any) -> GradMix:
        """The windows of the authors' program: areas of 0.1 to 0.5, around the peak."""
        return cls(**{"size_mode": "area", "locate": "peak", **changes})

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw partners and sizes, and find windows on the maps.  Raises ValueError for maps of a wrong shape."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        ids, size = batch.targets.ids, (batch.images.shape[1], batch.images.shape[2])
        partner = key.partners(ids, Stream.PARTNER, self.group)
        sides = self._sides(key, ids, size)
        randomly = integers(key.uniform(ids, _PLACE, 2), 0, np.array(size) - sides + 1)
        first, told = self._locate(checked_maps(batch), sides, size, randomly)
        own = np.arange(len(ids))
        mixed = (partner != own) & (told | (self.fallback == "random"))
        box = np.concatenate([first, first + sides], 1)[mixed]  # top, left, bottom, right
        program.layers["source"], program.layers["index"] = Source.MATE, partner[:, None]
        shrink, step = program.ops[:, 0, 0], program.steps[:, 0]
        shrink["code"][mixed], step["mode"][mixed] = Op.SHRINK, Mode.SET
        for number, side in enumerate(("top", "left", "bottom", "right")):
            shrink["p"][mixed, number] = step[side][mixed] = box[:, number]
        area = np.where(mixed, sides.prod(1), 0)
        weight = (1 - area / (size[0] * size[1])).astype(np.float32)
        return Params(program, np.where(mixed, partner, own), weight)

    def _sides(self, key: Key, ids: Ids, size: tuple[int, int]) -> Ints:
        """(N, 2) heights and widths."""
        low, high = self.size_range
        share = low + (high - low) * key.uniform(ids, _SIZE, 1)
        sides = np.floor((share if self.size_mode == "side" else np.sqrt(share)) * size + 0.5)
        return sides.astype(np.int64).clip(1, size)

    def _locate(self, maps: F64 | None, sides: Ints, size: tuple[int, int], randomly: Ints) -> tuple[Ints, Bools]:
        """(N, 2) top and left of the windows, and (N,) whether the maps say anything; where not, `randomly`."""
        if maps is None:
            return randomly, np.zeros(len(sides), np.bool_)
        filled = np.nan_to_num(maps)
        told: Bools = filled.min((1, 2)) < filled.max((1, 2))
        if self.locate == "random" or not told.any():
            return randomly, told
        find = best_windows if self.locate == "boxsum" else peak_windows
        return np.where(told[:, None], find(filled, sides, size), randomly), told
