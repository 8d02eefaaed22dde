"""GuidedMixup: pairs whose maps differ most, and each pixel weighed by what stands out there in either picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np

from ..kernels import F32, Mode, Source, Where, backend_for
from ..rng import Key, Stream
from ..types import Batch, Params
from ._blend import blank, check, check_classes, check_count, preserving
from ._saliency import check_chance, farthest_cycle, group_distances, maps_of, mates_of, with_masks

_COIN = Stream.METHOD + 24
_REACH = 3  # cells to each side that the blur looks at
_VALUES = 1 << 16  # of maps that it works on at a time, so that they stay in a core's cache


@dataclass
class GuidedMixup:
    """r x + (1 - r) partner with r = s / (s + s_partner) at each pixel; Kang & Kim (AAAI 2023).

    s is a sample's map, `Batch.maps`, blurred, with mean 1, enlarged bilinearly to the picture.  Inside each mix group
    partners are those of a circle along the greatest L2 distances of these maps, built greedily from the pair farthest
    apart: nobody is their own partner.  The label weight is the mean of r, in the 255ths that the pixels are mixed by.

    group: size of the mix groups, >= 1; a sample without mates, or of whose map no cell is known, stays as it is, with
    weight 1, and takes no part.  A map that is the same everywhere does take part: it gives every pixel its mean.
    Unknown cells count as the least known one, and values below 0 as 0.  prob: chance of a sample to be mixed, in
    [0, 1]; the paper has 0.5 with spectral maps, 0.8 with gradients.  blur: sigma of the Gaussian over 7 x 7 cells, 0
    for none, which suits maps of few cells.  num_classes: needed to turn integer labels into soft ones.  Raises
    ValueError for settings outside these ranges.

    Deviations from the paper's code: the blur is in cells of the map, with the outermost ones repeated, where that code
    has it in pixels of a map of up to 128; groups are paired, where that code pairs a whole batch; who of the farthest
    pair comes first is drawn; whether to mix is drawn for each sample; maps may be any.
    """

    group: int = 16
    prob: float = 1.0
    blur: float = 3.0
    num_classes: int | None = None
    enabled: bool = True
    label_preserving: ClassVar[bool] = False
    uses_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_count("group", self.group, 1)
        check_chance("prob", self.prob)
        ok = isinstance(self.blur, Real) and 0 <= self.blur < math.inf
        check(ok, "blur", self.blur, "0 <= blur < infinity", "pass blur=3.0, the paper's, or 0 for none")
        check_classes(self.num_classes)

    def draw(self, key: Key, batch: Batch) -> Params:
        """Pair the samples and weigh the pixels.  Raises ValueError for maps of a wrong shape."""
        program = blank(key, batch)
        if not self.enabled:
            return preserving(program)
        ids, own = batch.targets.ids, np.arange(len(batch.images))
        program.layers["source"], program.layers["index"] = Source.MATE, own[:, None]
        maps = maps_of(batch)
        if maps is None:
            return preserving(program)
        salient = mean_one(blurred(maps.values.clip(0), self.blur))
        order = np.lexsort((key.bits(ids, Stream.PARTNER, 1)[:, 0], own // self.group))
        members, away = group_distances(salient, order, maps.known, self.group)
        partner = mates_of(members, farthest_cycle(away), len(ids))
        mixed = (partner != own) & (key.uniform(ids, _COIN, 1)[:, 0] < self.prob)
        masks = np.empty((len(ids), batch.images.shape[1], batch.images.shape[2]), np.uint8)
        sums = np.empty(len(ids), np.int64)
        backend_for(salient).share_masks(salient, partner, masks, sums, 0, len(ids))
        program.layers["index"] = partner[:, None]
        program.steps["mode"][mixed], program.steps["where"] = Mode.SET, Where.MASK
        weight = np.where(mixed, sums / (255 * masks[0].size), 1).astype(np.float32)
        return Params(with_masks(program, masks), np.where(mixed, partner, own), weight)


def blurred(maps: F32, sigma: float) -> F32:
    """Maps (N, h, w) after a Gaussian over 7 x 7 cells, with the outermost cells repeated around them."""
    if sigma == 0:
        return maps
    weights = np.exp(-0.5 * (np.arange(_REACH + 1) / sigma) ** 2)
    weights = (weights / (2 * weights.sum() - weights[0])).astype(np.float32)
    (height, width), around = maps.shape[1:], 2 * _REACH
    wide, made = np.pad(maps, [(0, 0), (_REACH, _REACH), (_REACH, _REACH)], mode="edge"), np.empty_like(maps)
    rows = max(1, _VALUES // wide[0].size)
    lines = np.zeros((3, rows * wide[0].size), np.float32)
    for low in range(0, len(maps), rows):
        # One long line, for NumPy is slow at many short ones; what it makes of the cells added around is cut off.
        part = wide[low : low + rows]
        once, twice, spare = lines[:, : part.size]
        _weigh(part.reshape(-1), weights, 1, spare, once)
        _weigh(once, weights, width + around, spare, twice)
        made[low : low + rows] = twice.reshape(part.shape)[:, :height, :width]
    return made


def _weigh(line: F32, weights: F32, pitch: int, spare: F32, out: F32) -> None:
    """out = at each place the weighed sum of seven values a pitch apart, from that place on, where there are seven."""
    n = len(line) - 2 * _REACH * pitch
    np.multiply(line[_REACH * pitch :][:n], weights[0], out=out[:n])
    for step in range(1, _REACH + 1):
        np.add(line[(_REACH - step) * pitch :][:n], line[(_REACH + step) * pitch :][:n], out=spare[:n])
        spare[:n] *= weights[step]
        out[:n] += spare[:n]


def mean_one(maps: F32) -> F32:
    """Maps (N, h, w) >= 0 with mean 1; those of zeros are 1 everywhere."""
    mean = maps.mean((1, 2), keepdims=True, dtype=np.float64)
    scaled: F32 = maps * (1 / np.where(mean > 0, mean, 1)).astype(np.float32)
    scaled[mean[:, 0, 0] == 0] = 1
    return scaled
