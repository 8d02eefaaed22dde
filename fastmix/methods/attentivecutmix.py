"""Attentive CutMix: the cells of a batch mate that a model looks at most, pasted at their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..kernels import Mode, Source
from ..rng import Key, Stream
from ..types import Batch, Params
from ._blend import blank, check, check_classes, check_count, preserving
from ._cells import cell_edges, checked_maps


@dataclass
class AttentiveCutMix:
    """The k cells with the largest values of the partner's map cover the same cells; Walawalkar et al. (ICASSP 2020).

    The grid is that of the maps that come with the batch, `Batch.maps`; the paper has 7 x 7 cells for 224 pixels, and
    k = 6.  A grid that does not divide the picture has cells of unequal size, cut at whole pixels.  The label weight is
    1 - their true share of the picture.

    k: number of cells, >= 1; fewer where fewer are known, the first in row-major order of equal ones.
    group: size of the mix groups in which partners are drawn, >= 1; a sample without mates, or whose partner has no
    map, stays as it is, with weight 1.  num_classes: needed to turn integer labels into soft ones.  Raises ValueError
    for settings outside these ranges.

    Deviation from the paper: the maps may be any, where the paper has those of a pretrained network.
    """

    k: int = 6
    group: int = 16
    num_classes: int | None = None
    enabled: bool = True
    label_preserving: ClassVar[bool] = False
    uses_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_count("k", self.k, 1)
        check_count("group", self.group, 1)
        check_classes(self.num_classes)

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw partners and choose cells.

        Raises ValueError for maps of a wrong shape or with fewer than k cells.
        """
        program = blank(key, batch, steps=self.k)
        if not self.enabled:
            return preserving(program)
        partner = key.partners(batch.targets.ids, Stream.PARTNER, self.group)
        program.layers["source"], program.layers["index"] = Source.MATE, partner[:, None]
        maps = checked_maps(batch)
        if maps is None:
            return preserving(program)
        height, width = maps.shape[1:]
        check(self.k <= height * width, "k", self.k, f"k <= {height * width}, the cells of a map", "pass finer maps")
        value = np.nan_to_num(-maps.reshape(len(maps), -1), nan=np.inf)[partner]
        best = np.argsort(value, axis=1, kind="stable")[:, : self.k]
        own = np.arange(len(partner))
        pasted = np.isfinite(np.take_along_axis(value, best, 1)) & (partner != own)[:, None]
        row, column = np.divmod(best, width)
        area = np.where(pasted, 1, 0)
        for length, cells, number, low, high in (
            (batch.images.shape[1], height, row, "top", "bottom"),
            (batch.images.shape[2], width, column, "left", "right"),
        ):
            edges = cell_edges(length, cells)
            program.steps[low], program.steps[high] = edges[number], edges[number + 1]
            area *= edges[number + 1] - edges[number]
        program.steps["mode"] = np.where(pasted, Mode.SET, Mode.END)
        share = area.sum(1) / (batch.images.shape[1] * batch.images.shape[2])
        return Params(program, np.where(pasted[:, 0], partner, own), (1 - share).astype(np.float32))
