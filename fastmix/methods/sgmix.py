"""SGMix: around the objects of a sample and of its most similar batch mate, the picture is the mate's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import ClassVar

import numpy as np

from ..kernels import U8, Mode, Source, Where, backend_for
from ..rng import Ids, Key
from ..saliency import object_levels, stretched
from ..types import Batch, Params
from ._blend import blank, check, check_count, preserving
from ._cells import Ints
from ._saliency import Maps, group_distances, maps_of, mates_of, nearest, with_masks


class Outcome(IntEnum):
    """What becomes of a sample; those from SMALL on stay as they are."""

    UNION = 0  # the union of both objects is its own picture
    OWN = 1  # its own object alone is, for the union is too large
    SMALL = 2  # too little would be its own picture
    LARGE = 3  # too little would be the target's
    NO_CONTRAST = 4  # no map, or the same everywhere
    NO_TARGET = 5  # no mate has a map


@dataclass
class SGMix:
    """A sample keeps its own and its target's object, and around both of them it is the target; label kept.

    The composition of SGD-Mix (Dong et al., WACV 2026, arXiv 2505.11813), made anew in every batch of the maps that
    come with it, `Batch.maps`; the paper's third stage, a refinement by diffusion, is `fastmix refine`.  The target of
    i is the mate j in its mix group with the least |S_i - S_j|, of maps stretched to 0..1, the one with the smallest id
    of several; GuidedMixup pairs the other way round, the most different maps.  M = Otsu(S_i) or Otsu(S_j), of maps
    enlarged bilinearly to the picture, and M x_i + (1 - M) x_j is made: the target's object is never seen, for the
    sample's own pixels lie where it was.  Nothing is left to chance but who is in the group, so a loader with views=3
    makes the same mixed picture twice, and a loss that compares the two compares a picture with itself: take another
    method for that.

    group: size of the mix groups in which targets are sought, >= 1.  min_area, max_area: shares of the picture, 0 <=
    min_area < max_area <= 1.  Where the union has max_area or more, the sample's own object alone is kept; where what
    would be kept has less than min_area, or still max_area or more, the sample stays as it is, as one does without a
    map or with one that is the same everywhere, which is nobody's target either; `outcomes` tells.  Unknown cells count
    as the least known one.  Raises ValueError for settings outside these ranges.

    There is no released code.  Not known from the paper, and chosen here: how many candidates there are, that maps are
    stretched before they are compared, the limits of areas and what happens beyond them.  Deviations: candidates are
    batch mates, where the paper draws them from the whole set; maps may be any, where the paper has Grad-CAM.
    """

    group: int = 32
    min_area: float = 0.02
    max_area: float = 0.95
    enabled: bool = True
    label_preserving: ClassVar[bool] = True
    uses_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_count("group", self.group, 1)
        for name, value in (("min_area", self.min_area), ("max_area", self.max_area)):
            ok = isinstance(value, Real) and 0 <= value <= 1
            check(ok, name, value, f"0 <= {name} <= 1", "pass min_area=0.02, max_area=0.95")
        expected = f"min_area < max_area, which is {self.max_area}"
        check(self.min_area < self.max_area, "min_area", self.min_area, expected, "pass a smaller one")

    def draw(self, key: Key, batch: Batch) -> Params:
        """Find targets and masks.  Raises ValueError for maps of a wrong shape."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        program.layers["source"], program.layers["index"] = Source.MATE, np.arange(len(batch.images))[:, None]
        maps = maps_of(batch)
        if maps is None:
            return preserving(program)
        target = self._targets(maps, batch.targets.ids)
        masks, outcome = self._masks(maps, target, (batch.images.shape[1], batch.images.shape[2]))
        program.layers["index"] = target[:, None]
        program.steps["mode"][outcome <= Outcome.OWN], program.steps["where"] = Mode.SET, Where.MASK
        return preserving(with_masks(program, masks))

    def outcomes(self, batch: Batch) -> Ints:
        """(N,) the `Outcome` of each sample of `batch`."""
        maps = maps_of(batch)
        if maps is None:
            return np.full(len(batch.images), Outcome.NO_CONTRAST, np.int64)
        target = self._targets(maps, batch.targets.ids)
        return self._masks(maps, target, (batch.images.shape[1], batch.images.shape[2]))[1]

    def _targets(self, maps: Maps, ids: Ids) -> Ids:
        """(N,) rows of the targets; the own one for want of any."""
        order = np.lexsort((ids, np.arange(len(ids)) // self.group))
        members, away = group_distances(stretched(maps.values), order, maps.uneven, self.group)
        return mates_of(members, nearest(away), len(ids))

    def _masks(self, maps: Maps, target: Ids, size: tuple[int, int]) -> tuple[U8, Ints]:
        """(N, H, W) uint8, 255 where the own picture is kept, and the outcomes."""
        count, backend = len(target), backend_for(maps.values)
        levels, thresholds = object_levels(maps.values, size)
        masks, areas, own = np.empty_like(levels), np.empty((count, 3), np.int64), np.arange(count)
        backend.join_masks(levels, thresholds, target, True, masks, areas, 0, count)
        mine, _, both = areas.T / (size[0] * size[1])
        joined = both < self.max_area
        kept = np.where(joined, both, mine)
        outcome = np.where(joined, Outcome.UNION, Outcome.OWN)
        outcome[kept < self.min_area], outcome[kept >= self.max_area] = Outcome.SMALL, Outcome.LARGE
        outcome[target == own], outcome[~maps.uneven] = Outcome.NO_TARGET, Outcome.NO_CONTRAST
        for row in np.flatnonzero(outcome == Outcome.OWN).tolist():
            backend.join_masks(levels, thresholds, own, True, masks, areas, row, row + 1)
        return masks, outcome
