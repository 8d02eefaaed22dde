"""The picture that goes into the model, made of source, target and their saliency maps; and what follows the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..datasets import Source
from ..images import decode
from ..kernels import F32, U8, backend_for
from ..manifest import MADE
from ..saliency import distances, object_masks, spectral_maps
from ..types import FastmixError, Pool
from .expansion import Expansion
from .records import candidates_of, fractal_of, is_beside

__all__ = ["SPECTRAL", "Maps", "Mask", "aim", "composite", "finished", "fitting", "joint_mask", "map_of", "picture_of"]
__all__ += ["composed", "resized"]

SPECTRAL = "spectral residual"  # in the column `saliency`
_SEAM = 20  # px, of DiffuseMix

Bools = NDArray[np.bool_]


class Maps(Protocol):
    """Saliency maps of all samples."""

    @property
    def name(self) -> str:
        """What made them."""

    def take(self, ids: NDArray[np.int64], /) -> F32:
        """(N, h, w) maps of whole pictures."""


@dataclass(frozen=True)
class Mask:
    """status: "made", or why no picture can be.  keep: (S, S) bool, where the source stays; areas are shares of it."""

    status: str
    keep: Bools
    area: float
    leak: float


def picture_of(source: Source, index: int) -> U8:
    """(H, W, 3) uint8 pixels of a sample.  Raises FastmixError that names it."""
    try:
        item = source.read(index)
        return decode(item.data) if isinstance(item.data, bytes) else np.ascontiguousarray(item.data)
    except (OSError, TypeError, ValueError) as error:
        raise FastmixError(str(error), sample_id=index, path=source.path(index)) from error


def resized(picture: U8, size: tuple[int, int]) -> U8:
    """The whole picture at `size` (H, W), whatever its shape."""
    out = np.empty((1, *size, 3), np.uint8)
    box = np.array([[0.0, 0.0, picture.shape[1], picture.shape[0]]])
    backend_for(out).crop_resize([picture], box, np.zeros(1, np.bool_), out, 0, 1)
    made: U8 = out[0]
    return made


def fitting(shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """(H, W) of the finished picture: the source's own shape, its short side at most `size`."""
    high, wide = shape[:2]
    scale = min(1.0, size / min(high, wide))
    return max(1, round(high * scale)), max(1, round(wide * scale))


def map_of(picture: U8, size: int) -> F32:
    """(h, w) spectral residual of the whole picture at size x size."""
    made: F32 = spectral_maps(resized(picture, (size, size))[None])[0]
    return made


def aim(row: dict[str, Any], expansion: Expansion, labels: NDArray[np.int64], maps: Maps) -> Mask | None:
    """Choose the target of a row: the candidate with the map most like the source's, the first of several.

    Sets target, target_label, distance, saliency, mask_area, leak_area and status.  The mask; None without a target.
    """
    row["saliency"] = maps.name
    own = maps.take(np.array([row["source"]]))
    ids = candidates_of(row["record"], expansion, labels)
    theirs = maps.take(ids) if len(ids) else np.empty((0, *own.shape[1:]), np.float32)
    known = np.isfinite(theirs).any((1, 2))  # of an unknown map nothing says where the object is
    if not known.any():
        row["status"] = "no target"
        return None
    apart = np.where(known, distances(own, theirs)[0], np.inf)
    best = int(apart.argmin())
    row.update(target=int(ids[best]), target_label=int(labels[ids[best]]), distance=float(apart[best]))
    mask = joint_mask(np.concatenate([own, theirs[best : best + 1]]), expansion)
    row.update(status=mask.status, mask_area=mask.area, leak_area=mask.leak)
    return mask


def joint_mask(maps: F32, expansion: Expansion) -> Mask:
    """Where the source stays: on its own object and on the target's, which it hides.  maps: (2, h, w) of the two.

    If that is too much of the picture, on its own object alone.
    """
    own, other = object_masks(maps, (expansion.size, expansion.size)) > 0
    keep, leak = own | other, float((other & ~own).mean())
    if keep.mean() >= expansion.max_area and own.mean() < expansion.max_area:
        keep = own
    area = float(keep.mean())
    status = "small mask" if area < expansion.min_area else "large mask" if area >= expansion.max_area else MADE
    return Mask(status if own.any() else "no contrast", keep, area, leak)


def composite(source: Source, row: Mapping[str, Any], expansion: Expansion, maps: Maps | None = None) -> U8:
    """(S, S, 3) uint8, the picture of a row that goes into the model; of a row without a target, the source.

    maps: those of the run, if they were given to it.  Raises ValueError if they are missing, or for a row that has no
    composite, and FastmixError for a sample that cannot be read.
    """
    return composed(picture_of(source, row["source"]), source, row, expansion, maps)


def composed(own: U8, source: Source, row: Mapping[str, Any], expansion: Expansion, maps: Maps | None) -> U8:
    """`composite` of a source whose picture is known."""
    side = (expansion.size, expansion.size)
    small = resized(own, side)
    if not expansion.compose:
        return small
    if row["target"] is None:
        raise ValueError(f"record {row['record']} has no target ({row['status']}), expected one that was made")
    other = resized(picture_of(source, row["target"]), side)
    mask = joint_mask(_pair(row, small, other, maps), expansion)
    return np.where(mask.keep[..., None], small, other)


def _pair(row: Mapping[str, Any], small: U8, other: U8, maps: Maps | None) -> F32:
    if maps is not None:
        return maps.take(np.array([row["source"], row["target"]]))
    if row["saliency"] != SPECTRAL:
        raise ValueError(f"the set was made with {row['saliency']}, expected these maps to be given: pass maps=")
    return spectral_maps(np.stack([small, other]))


def finished(original: U8, refined: F32, record: int, expansion: Expansion, pool: Pool | None) -> F32:
    """What follows the model: halves and fractal, if the expansion has them.  refined: (S, S, 3) in [0, 1]."""
    if expansion.concatenate:
        share = _share_of_first(expansion.size)
        share = share[None, :, None] if is_beside(record, expansion) else share[:, None, None]
        refined = np.asarray(share * (original.astype(np.float32) / 255) + (1 - share) * refined, np.float32)
    if expansion.fractal:
        assert pool is not None
        number = fractal_of(record, expansion, len(pool))
        fractal = resized(pool.images[number], (expansion.size, expansion.size)).astype(np.float32) / 255
        refined = np.asarray((1 - expansion.fractal) * refined + expansion.fractal * fractal, np.float32)
    return refined


def _share_of_first(size: int) -> F32:
    """(size,) the share of the left or upper picture in each pixel: 1, then down to 0 across the seam."""
    place = np.arange(size) + 0.5 - size / 2
    return np.clip(0.5 - place / _SEAM, 0, 1).astype(np.float32)
