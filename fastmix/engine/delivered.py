"""What is known of the batch that was handed out last, and how its maps get into the bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images import is_tensor
from ..maps import Geometry, MapBank, hidden_cells
from ..rng import Ids
from .job import Job


@dataclass(frozen=True)
class Delivered:
    """epoch: of the batch.  ids: (N,) int64 numbers of its samples, as they were read.

    weights: (M,) float32, how much of each mixed picture is the sample's own, in the batch's order; M is 0, N or 2N.
    geometries: of each crop, if maps are kept.  hidden: (N, h, w) cells of the maps that other pictures took over by a
    mask, or None.
    """

    epoch: int
    ids: Ids
    weights: NDArray[np.float32]
    geometries: tuple[Geometry, ...]
    hidden: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, job: Job) -> Delivered:
        """What is to be remembered of a job that is done; nothing of its pictures."""
        weights = [view.params.weight for view in job.views if view.params is not None]
        bank, shown = job.recipe.maps, job.views[-1].params if job.views and job.recipe.views == 1 else None
        kept = isinstance(bank, MapBank)
        geometries = tuple(job.geometry(crop) for crop in range(job.recipe.crops if kept else 0))
        hidden = hidden_cells(shown, bank.shape) if isinstance(bank, MapBank) and shown is not None else None
        return cls(job.key.epoch, job.read, np.concatenate([np.empty(0, np.float32), *weights]), geometries, hidden)

    def put(self, bank: MapBank, maps: Any) -> None:
        """Keep the maps (crops x N, h, w) of the batch, a tensor or array.  Raises ValueError for another number."""
        if is_tensor(maps):
            maps = maps.detach().cpu()
            maps = maps.float() if maps.is_floating_point() else maps  # NumPy knows no bfloat16
        maps = np.asarray(maps)
        n, crops = len(self.ids), len(self.geometries)
        if maps.ndim != 3 or len(maps) != n * crops:
            raise ValueError(
                f"maps have shape {maps.shape}, expected ({n * crops}, {bank.shape[0]}, {bank.shape[1]}): one for each "
                f"{'of the two clean views' if crops == 2 else 'picture'} of the batch that was handed out last"
            )
        if self.hidden is not None and maps.shape[1:] == self.hidden.shape[1:]:
            maps = np.where(self.hidden, np.nan, maps)
        for view, geometry in enumerate(self.geometries):
            bank.put(self.ids, maps[view * n : (view + 1) * n], geometry, self.epoch, view)
