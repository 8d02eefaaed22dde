"""Maps of what a model looks at, kept from one epoch for the next: `MapBank`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import Mode, Source, Where
from .types import Params

__all__ = ["Geometry", "MapBank", "covered_boxes", "hidden_cells", "in_float16", "seen_in"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = NDArray[np.int64]
Entries = NDArray[Any]

_LOW, _HIGH = -10, 65504  # of a map's largest value: 2^_LOW leaves 14 bits of float16 to those below it
_TOUCH = 1e-4  # of a cell: a patch that covers less only shares an edge with it, but for rounding
_SLOTS = 2
_BOXES = [("box", "<f4", (4,)), ("covered", "<f4", (4,)), ("flip", "?")]


@dataclass(frozen=True)
class Geometry:
    """How crops were cut, row by row.

    boxes: (N, 4) left, top, width, height as fractions of the whole picture; beyond its border where it was padded.
    flips: (N,) bool, mirrored after cutting.
    covered: (N, 4) left, top, width, height of the box that another picture covers, as fractions of the crop as it is
    seen, mirrored or not; width or height 0 for none.

    Raises ValueError for other shapes, numbers that are not finite, and boxes without an area.
    """

    boxes: F64
    flips: NDArray[np.bool_]
    covered: F64

    def __post_init__(self) -> None:
        """Check the arrays."""
        boxes, flips, covered = np.asarray(self.boxes), np.asarray(self.flips), np.asarray(self.covered)
        n = len(boxes) if boxes.ndim else 0
        if boxes.shape != (n, 4) or flips.shape != (n,) or covered.shape != (n, 4) or flips.dtype != np.bool_:
            raise ValueError(
                f"boxes have shape {boxes.shape}, flips {flips.dtype} {flips.shape}, covered {covered.shape}, expected "
                "(N, 4), bool (N,), (N, 4)"
            )
        if not (np.isfinite(boxes).all() and np.isfinite(covered).all() and (boxes[:, 2:] > 0).all()):
            raise ValueError("boxes or covered are not finite, or boxes are empty, expected fractions of the picture")

    @classmethod
    def whole(cls, count: int) -> Geometry:
        """`count` whole pictures, as they are."""
        boxes = np.tile([0.0, 0.0, 1.0, 1.0], (count, 1))
        return cls(boxes, np.zeros(count, np.bool_), np.zeros((count, 4)))


class MapBank:
    """The newest maps of each sample, float16, with the geometry of the crop that they were made of.

    An epoch reads what earlier epochs wrote and nothing else, whatever the threads do and however far they run ahead:
    each sample has two slots, and a write leaves alone the newest map of an earlier epoch.  All methods may be called
    from several threads.

    length: number of samples; ids are 0..length - 1.  shape: (h, w) cells of a map.  views: how many views of a sample
    have maps.  path: a .npy file that is mapped into memory, one a process; None keeps the maps in memory.  A file that
    exists is taken up with what is in it; remove it to begin anew.

    Raises ValueError if a number is below 1, or the file is another bank's or no bank's.
    """

    def __init__(self, length: int, shape: tuple[int, int] = (7, 7), views: int = 1, path: str | Path | None = None):
        if not isinstance(shape, Sequence) or len(shape) != 2:
            raise ValueError(f"shape is {shape!r}, expected a pair (h, w) of cells")
        for name, value in (("length", length), ("shape", shape[0]), ("shape", shape[1]), ("views", views)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected integers >= 1")
        self.length, self.shape, self.views, self.path = int(length), (int(shape[0]), int(shape[1])), int(views), path
        self._lock = threading.Lock()
        size, kind = (self.length, self.views, _SLOTS), _entry(self.shape)
        self._entries: Entries = np.zeros(size, kind) if path is None else _mapped(Path(path), size, kind)
        written = self._entries["written"].max(2)
        self._count, self._newest = int((written > 0).sum()), int(written.max()) - 1

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a bank in memory has its maps, one of a bank in a file shares the file."""
        left_out = {"_lock"} if self.path is None else {"_lock", "_entries"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())
        if self.path is not None:
            self._entries = _mapped(Path(self.path), (self.length, self.views, _SLOTS), _entry(self.shape))

    def put(self, ids: Any, maps: Any, geometry: Geometry, epoch: int, view: int = 0) -> None:
        """Keep the maps of crops that were seen in `epoch`.

        ids: (N,) integers.  maps: (N, h, w) numbers in the host's memory, of any scale, see `in_float16`; those that
        are not finite are unknown, and rows without any other are not kept, so that the map before stays.  geometry:
        of the maps' crops.

        Raises ValueError if ids, maps, geometry, epoch or view do not fit the bank.
        """
        numbers, given = self._numbers(ids), np.asarray(maps)
        if given.shape != (len(numbers), *self.shape) or given.dtype.kind not in "fiu":
            raise ValueError(
                f"maps are {given.dtype} {given.shape}, expected numbers {(len(numbers), *self.shape)}: make them with "
                f"size={self.shape}"
            )
        if len(geometry.boxes) != len(numbers):
            raise ValueError(f"geometry has {len(geometry.boxes)} rows, expected {len(numbers)}, one for each id")
        if not 0 <= view < self.views:
            raise ValueError(f"view is {view!r}, expected 0..{self.views - 1}: make the bank with more views=")
        _check_epoch(epoch)
        entries = np.zeros(len(numbers), self._entries.dtype)
        entries["map"] = in_float16(given)
        entries["map"][~np.isfinite(entries["map"])] = np.nan
        entries["box"], entries["flip"], entries["covered"] = geometry.boxes, geometry.flips, geometry.covered
        entries["written"] = epoch + 1
        kept = np.isfinite(entries["map"]).any((1, 2))
        self.write(numbers[kept], np.full(int(kept.sum()), view), entries[kept])

    def take(self, ids: Any, geometry: Geometry, epoch: int) -> F32:
        """What is known of new crops of the samples before `epoch`: (N, h, w) float32, NaN where it is unknown.

        Unknown is what the newest crop of an earlier epoch did not show, and the cells of it that a pasted patch
        covered, even in part.  Maps are interpolated bilinearly at the centres of the new cells, by their known cells,
        which must have half of the weight; several views give the mean of those that know a cell.

        ids: (N,) integers.  geometry: of the new crops; `covered` is not looked at.

        Raises ValueError if ids, geometry or epoch do not fit.
        """
        numbers = self._numbers(ids)
        if len(geometry.boxes) != len(numbers):
            raise ValueError(f"geometry has {len(geometry.boxes)} rows, expected {len(numbers)}, one for each id")
        _check_epoch(epoch)
        with self._lock:
            slots = self._entries[numbers]
        older = _older(slots["written"], epoch)
        entries = np.take_along_axis(slots, older.argmax(2)[..., None], 2)[..., 0]
        never = older.max(2) == 0
        entries["map"][never], entries["box"][never] = np.nan, (0, 0, 1, 1)
        maps = _warped(entries, geometry)
        known = np.isfinite(maps)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(known, maps, 0).sum(1) / known.sum(1), np.float32)

    def write(self, ids: Ids, views: Ids, entries: Entries) -> None:
        """Keep entries of one epoch as `written` gives them; of several of one sample the last stays."""
        if not len(ids):
            return
        epoch = int(entries["written"][0]) - 1
        with self._lock:
            written = self._entries["written"][ids, views]
            # The slot that the epoch has begun, else the one without the newest map of an earlier epoch.
            begun, older = written == epoch + 1, _older(written, epoch)
            slot = np.where(begun.any(1), begun.argmax(1), 1 - older.argmax(1))
            new = (written == 0).all(1)
            self._count += len(np.unique(ids[new] * self.views + views[new]))
            self._newest = max(self._newest, epoch)
            self._entries[ids, views, slot] = entries

    def written(self, epoch: int) -> tuple[Ids, Ids, Entries]:
        """What `epoch` has written: ids (M,), views (M,) and entries (M,) records, for `write`."""
        with self._lock:
            ids, views, slots = np.nonzero(self._entries["written"] == epoch + 1)
            return ids, views, self._entries[ids, views, slots]

    def state(self) -> dict[str, Any]:
        """The bank by reference, to be saved with a run's state: where it is and how much it holds, not the maps."""
        path = None if self.path is None else str(self.path)
        about = {"path": path, "length": self.length, "shape": list(self.shape), "views": self.views}
        return {**about, "entries": self._count}

    def check_state(self, state: Mapping[str, Any] | None, epoch: int) -> None:
        """Raise ValueError unless a run that was saved in `epoch` with `state` can go on with this bank."""
        mine = self.state()
        if not isinstance(state, Mapping) or set(state) != set(mine):
            raise ValueError(f"the state of the maps is {state!r}, expected {sorted(mine)}: pass what state() returned")
        for name in ("length", "shape", "views"):
            if state[name] != mine[name]:
                raise ValueError(
                    f"the bank has {name} {mine[name]}, the state was saved with {state[name]}: give the bank of that "
                    f"dataset and those settings (path {state['path']})"
                )
        if self._count < state["entries"]:
            raise ValueError(
                f"the bank has maps of {self._count} views, the state was saved with {state['entries']}: give the bank "
                f"of that run (path {state['path']}); one without path= ends with its process"
            )
        if self._newest > epoch:
            raise ValueError(
                f"the bank has maps of epoch {self._newest}, the state was saved in epoch {epoch}, whose maps are "
                "overwritten: go on from a later state, or begin anew with a new bank"
            )

    def _numbers(self, ids: Any) -> Ids:
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
            raise ValueError(f"ids are {numbers.dtype} {numbers.shape}, expected integers (N,)")
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.length:
            raise ValueError(
                f"ids run from {numbers.min()} to {numbers.max()}, expected 0..{self.length - 1}: make the bank with "
                "length=len(dataset)"
            )
        return numbers.astype(np.int64)


def covered_boxes(params: Params, size: tuple[int, int]) -> F64:
    """(N, 4) the smallest box around all that other pictures cover in crops of `size` (H, W), for `Geometry`."""
    steps, layers = params.program.steps, params.program.layers
    running = np.minimum.accumulate(steps["mode"] != Mode.END, axis=1)
    shown = np.take_along_axis(layers["source"], steps["layer"].astype(np.int64), 1) != Source.SAMPLE
    full = (steps["top"] < steps["bottom"]) & (steps["left"] < steps["right"])
    other = running & shown & full & ~np.isin(steps["mode"], (Mode.SUM, Mode.TOTAL)) & (steps["where"] != Where.MASK)
    boxes = np.zeros((len(steps), 4))
    for axis, (low, high) in enumerate((("left", "right"), ("top", "bottom"))):
        first = np.where(other, steps[low], np.iinfo(np.int32).max).min(1)
        last = np.where(other, steps[high], 0).max(1)
        boxes[:, axis], boxes[:, axis + 2] = first, last - first
    boxes[~other.any(1)] = 0
    return boxes / (size[1], size[0], size[1], size[0])


def hidden_cells(params: Params, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """(N, h, w) the cells, of h x w = `shape`, of which masks leave the own picture less than half."""
    steps, masks = params.program.steps, params.program.masks
    hidden = np.zeros((len(steps), *shape), np.bool_)
    running = np.minimum.accumulate(steps["mode"] != Mode.END, axis=1)
    for row, number in zip(*np.nonzero(running & (steps["where"] == Where.MASK)), strict=True):
        mask = masks[steps["index"][row, number]]
        down, across = (np.arange(shape[axis] + 1) * mask.shape[axis] // shape[axis] for axis in (0, 1))
        sums = np.add.reduceat(np.add.reduceat(mask, down[:-1], 0, np.int64), across[:-1], 1).sum(2)
        pixels = np.maximum(np.diff(down), 1)[:, None] * np.maximum(np.diff(across), 1)  # small pictures repeat some
        hidden[row] |= 2 * sums < 255 * mask.shape[2] * pixels
    return hidden


def in_float16(maps: NDArray[Any]) -> NDArray[np.float16]:
    """Maps (N, h, w) of numbers as float16, those whose largest magnitude is below 2^-10 or above 65504 scaled before.

    Small ones are brought to a largest magnitude of 1/2 to 1, large ones just below the limit, by a power of two, so
    that ratios, all that counts in a map, stay as they are.  Values that are not finite have no part in that, and stay.
    """
    given = maps if maps.dtype.kind == "f" else maps.astype(np.float64)
    most = np.abs(np.where(np.isfinite(given), given, 0)).max((1, 2)).astype(np.float64)
    exponent = np.frexp(most)[1]  # most is 2^(exponent - 1) to 2^exponent
    small, large = (most > 0) & (most < 2.0**_LOW), most > _HIGH
    shift = np.where(small, -exponent, np.where(large, 15 - exponent, 0))
    return np.asarray(np.ldexp(given, shift[:, None, None]), np.float16)


def seen_in(maps: F64, geometry: Geometry) -> F32:
    """(N, h, w) float32, maps (N, h, w) of whole pictures as crops of these show them; NaN beyond the picture."""
    entries = np.zeros((len(maps), 1), np.dtype([("map", "<f8", maps.shape[1:]), *_BOXES]))
    entries["map"], entries["box"] = maps[:, None], (0, 0, 1, 1)
    return _warped(entries, geometry)[:, 0].astype(np.float32)


def _entry(shape: tuple[int, int]) -> np.dtype[Any]:
    """An entry; written: epoch + 1, so that zeros are an empty bank, whose file need not be filled."""
    return np.dtype([("map", "<f2", shape), *_BOXES, ("written", "<i4")])


def _mapped(path: Path, size: tuple[int, int, int], kind: np.dtype[Any]) -> Entries:
    """The file's entries, writable; a new file is empty."""
    if not path.exists():
        return np.asarray(np.lib.format.open_memmap(path, "w+", kind, size))
    try:
        np.lib.format.open_memmap(path, "r")  # which refuses a file that is too short; "r+" would fill it up
        entries = np.asarray(np.lib.format.open_memmap(path, "r+"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot open the bank {path}: {error}; expected a file that a MapBank wrote") from error
    if entries.shape != size or entries.dtype != kind:
        raise ValueError(
            f"the bank {path} holds {entries.dtype} {entries.shape}, expected {kind} {size} (length, views, slots): "
            "give the file of this dataset and these settings, or remove it"
        )
    return entries


def _check_epoch(epoch: int) -> None:
    if not isinstance(epoch, int | np.integer) or not 0 <= epoch < 2**31 - 1:
        raise ValueError(f"epoch is {epoch!r}, expected an integer from 0 to 2**31 - 2")


def _older(written: NDArray[np.int32], epoch: int) -> NDArray[np.int32]:
    """`written` of the slots that epochs before `epoch` wrote, 0 for others."""
    return np.where(written <= epoch, written, 0)


def _warped(entries: Entries, now: Geometry) -> F64:
    """(N, V, h, w) the maps of entries (N, V) as seen in the crops `now`; NaN where they are unknown."""
    maps = entries["map"].astype(np.float64)
    across = _taps(entries["box"][..., [0, 2]], entries["flip"], now.boxes[:, [0, 2]], now.flips, maps.shape[3])
    still = np.zeros_like(now.flips)
    down = _taps(entries["box"][..., [1, 3]], still[:, None], now.boxes[:, [1, 3]], still, maps.shape[2])
    known = np.isfinite(maps) & ~_covered(entries["covered"].astype(np.float64), (maps.shape[2], maps.shape[3]))
    weight = down @ known.astype(np.float64) @ across.swapaxes(-1, -2)
    total = down @ np.where(known, maps, 0) @ across.swapaxes(-1, -2)
    return np.where(weight >= 0.5, total / np.maximum(weight, 0.5), np.nan)


def _taps(then: F64, flipped: NDArray[np.bool_], now: F64, flips: NDArray[np.bool_], cells: int) -> F64:
    """(N, V, cells, cells) bilinear weights of old cells (last) in new ones along an axis; zeros outside the old crop.

    then: (N, V, 2) start and extent of the old crops, now: (N, 2) of the new ones, in fractions of the picture.
    """
    centre = (np.arange(cells) + 0.5) / cells
    place = now[:, :1] + np.where(flips[:, None], 1 - centre, centre) * now[:, 1:]
    inner = (place[:, None] - then[..., :1]) / then[..., 1:]
    inner = np.where(flipped[..., None], 1 - inner, inner)[..., None]
    near = (inner * cells).clip(0.5, cells - 0.5)
    share = np.maximum(1 - np.abs(np.arange(cells) + 0.5 - near), 0)
    return np.asarray(share * ((inner >= 0) & (inner <= 1)))


def _covered(boxes: F64, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """(N, V, h, w) whether a box (N, V, 4) left, top, width, height covers any of a cell."""
    touched = []
    for first, extent, cells in ((1, 3, shape[0]), (0, 2, shape[1])):
        start, edge = boxes[..., first, None] * cells, np.arange(cells)
        end = start + boxes[..., extent, None] * cells
        touched.append(np.minimum(end, edge + 1) - np.maximum(start, edge) > _TOUCH)
    return np.asarray(touched[0][..., :, None] & touched[1][..., None, :])
