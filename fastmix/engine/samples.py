"""One sample: from the source, through its decoder, into a row of the batch's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..datasets import Item, Label, Source
from ..images import (
    CROP_DRAWS,
    Box,
    Header,
    center_box,
    decode,
    decode_scale,
    header,
    pad4,
    random_resized_crop,
    reach,
)
from ..kernels import F64, OP, U8, Op, Records, backend_for
from ..rng import Ids, Key, Stream
from ..synthetic import Expanded
from ..types import FastmixError
from .recipe import Crop

KEPT = 1 << 24  # largest decoded picture, bytes, whose memory a thread keeps for the next one


class Space:
    """Memory of one thread, used again for the next sample."""

    def __init__(self) -> None:
        self._parts: dict[str, U8] = {}

    def take(self, name: str, count: int) -> U8:
        """`count` bytes, valid until the same name is taken again."""
        part = self._parts.get(name)
        if part is None or part.size < count:
            part = self._parts[name] = np.empty(count, np.uint8)
        return part[:count]

    def pictures(self, name: str, size: tuple[int, int], *counts: int) -> U8:
        """(*counts, H, W, 3) uint8, as `take`."""
        shape = (*counts, *size, 3)
        return self.take(name, math.prod(shape)).reshape(shape)

    def decoded(self, info: Header) -> U8 | None:
        """Memory for a decoded file; None for one so large that it should not be kept."""
        count = info.height * info.width * 3
        return self.take("decoded", count) if count <= KEPT else None


class Place(NamedTuple):
    """Where a sample was cut from its picture, and whether it was mirrored."""

    box: Box
    flip: bool


@dataclass(frozen=True)
class Cuts:
    """The crops of a batch, drawn before any picture is known; row i belongs to sample i.

    draws: (N, CROP_DRAWS) nested lists, what `random_resized_crop` wants.  windows: (N,) OP for pictures that have the
    batch's size already; offsets: (N, 2) top, left of these in 0..8, or None.
    boxes: (N, 4) left, top, width, height as fractions of the picture, each known when its sample has been placed.
    """

    crop: Crop
    flips: NDArray[np.bool_]
    draws: list[list[float]]
    boxes: F64
    windows: Records | None = None
    offsets: NDArray[np.int64] | None = None

    def place(self, row: int, height: int, width: int) -> Place:
        """The crop of a picture of this size.  Raises ValueError if the size is wrong for the mode."""
        flip = bool(self.flips[row])
        if self.windows is not None:
            have, want = (height, width), self.crop.size
            if have != want:
                raise ValueError(
                    f"the picture is {height} x {width} pixels (height x width), crop={self.crop.mode!r} expects "
                    f"size={want}: pass size={have} if all are like this one, or crop='random_resized' or 'center'"
                )
            top, left = (0, 0) if self.offsets is None else (int(v) - 4 for v in self.offsets[row])
            return Place((left, top, want[1], want[0]), flip)
        crop = self.crop
        if crop.mode == "center":
            box = center_box(height, width, crop.size)
        else:
            box = random_resized_crop(self.draws[row], height, width, crop.scale, crop.ratio)
        self.boxes[row] = box[0] / width, box[1] / height, box[2] / width, box[3] / height
        return Place(box, flip)


def draw_cuts(crop: Crop, key: Key, ids: Ids) -> Cuts:
    """Draw the crops of a batch."""
    randomly = crop.mode == "random_resized"
    u = key.uniform(ids, Stream.CROP, CROP_DRAWS + 1 if randomly else 3)
    flips = u[:, -1] < crop.flip_chance
    boxes = np.tile([0.0, 0.0, 1.0, 1.0], (len(flips), 1))
    if randomly or crop.mode == "center":
        return Cuts(crop, flips, u.tolist(), boxes)
    offsets = pad4(u) if crop.mode == "pad4" else None
    if offsets is not None:
        boxes[:, :2] = (offsets[:, ::-1] - 4) / (crop.size[1], crop.size[0])
    return Cuts(crop, flips, [], boxes, _windows(crop, offsets, flips), offsets)


def _windows(crop: Crop, offsets: NDArray[np.int64] | None, flips: NDArray[np.bool_]) -> Records:
    """Moved (with black beyond the edge) and mirrored pictures as one op each."""
    windows = np.zeros(len(flips), OP)
    if offsets is None:
        windows["code"] = np.where(flips, Op.MIRROR, Op.NONE)
        return windows
    top, left = (offsets - 4).T
    windows["code"] = Op.WARP
    windows["p"][:, 0] = np.where(flips, -1, 1)
    windows["p"][:, 2] = np.where(flips, crop.size[1] + left, left)
    windows["p"][:, 4], windows["p"][:, 5] = 1, top
    return windows


def cut(picture: U8, place: Place, scale: int, cuts: Cuts, row: int, out: U8) -> None:
    """Cut row `row` out of a picture, decoded at 1 / scale of its size, into `out` (1, H, W, 3)."""
    backend = backend_for(picture)
    if cuts.windows is not None:
        backend.op(picture[None], cuts.windows[row : row + 1], out, 0, 1)
    else:
        backend.crop_resize([picture], np.array([place.box]) / scale, cuts.flips[row : row + 1], out, 0, 1)


def _fill(data: bytes | U8, cuts: Sequence[Cuts], row: int, out: U8, space: Space) -> None:
    if isinstance(data, bytes):
        info = header(data)
        placed = [each.place(row, info.height, info.width) for each in cuts]
        picture, scale = _decode(data, info, placed, cuts[0], space)
    else:
        placed = [each.place(row, *data.shape[:2]) for each in cuts]
        picture, scale = data, 1
    for each, place, part in zip(cuts, placed, out, strict=True):
        cut(picture, place, scale, each, row, part)


def _decode(data: bytes, info: Header, placed: Sequence[Place], cuts: Cuts, space: Space) -> tuple[U8, int]:
    """A picture in which all its crops find their pixels, as large as the most demanding one wants; and its scale."""
    scale, region = 1, None
    if cuts.windows is None:
        size = cuts.crop.size
        scale = min(decode_scale(info, place.box, size) for place in placed)
        if scale == 1:
            seen = [reach(place.box, size, info.height, info.width) for place in placed]
            lows, highs = ([f(sides) for sides in zip(*seen, strict=True)] for f in (min, max))
            region = lows[0], lows[1], highs[2], highs[3]
    return decode(data, scale=scale, buffer=space.decoded(info), region=region, info=info), scale


def read(
    source: Source, index: int, known: Item | None, cuts: Sequence[Cuts], row: int, out: U8, space: Space
) -> Label:
    """Read sample `index` into `out` (crops, 1, H, W, 3), cut as row `row` of each of `cuts`; returns its label.

    known: the sample, if it has been fetched.  However many crops, it is decoded once.  Raises FastmixError naming the
    sample, its file and the stage.
    """
    stage = "read"
    try:
        item = source.read(index) if known is None else known
        stage = "decode" if isinstance(item.data, bytes) else "crop"
        _fill(item.data, cuts, row, out, space)
        return item.label
    except Exception as error:
        if isinstance(error, FastmixError) and error.stage == "label":
            raise  # the source has said it all
        raise failure(error, stage, source, index) from error


def failure(error: BaseException, stage: str, source: Source, index: int) -> FastmixError:
    """The one error for whatever went wrong with a sample."""
    kind = "" if isinstance(error, ValueError | TypeError | OSError) else f"{type(error).__name__}: "
    path = source.path(index)
    of_file = path is not None and stage in ("read", "decode")
    made = isinstance(source, Expanded) and source.is_made(index)  # such a file may not be missing: it is in a list
    mend = "make the set anew with fastmix refine, or mend the file" if made else "mend or remove the file"
    fix = f"; {mend}, or pass on_error='replace'" if of_file else ""
    return FastmixError(f"{kind}{error}{fix}", sample_id=index, path=path, stage=stage)
