"""Maps that were made beforehand, in a file that knows a picture by its content."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .datasets import Source, open_source
from .images import decode, is_tensor
from .kernels import U8, backend_for
from .maps import Geometry, in_float16, seen_in
from .saliency import is_pair, spectral_maps
from .types import FastmixError

__all__ = ["FileMaps", "MapFile", "content_digest", "whole_pictures"]

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
F16 = NDArray[np.float16]
ON_ERROR = ("raise", "skip")
_UNKNOWN, _NONE = -2, -1
_LISTED = 5  # pictures without a map that a warning names


def content_digest(data: bytes | U8) -> bytes:
    """The 32 bytes of SHA-256 of an encoded file, or of the shape and pixels of a picture (H, W, 3) uint8."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).digest()
    return hashlib.sha256(f"{data.shape}".encode() + np.ascontiguousarray(data).tobytes()).digest()


class Unread(NamedTuple):
    """A sample that was left out."""

    id: int
    path: str | None
    reason: str


class MapFile:
    """Maps (h, w) of whole pictures, float16, found by the pictures' content, so that names and order do not matter.

    For `DataLoader(maps=MapFile(path))`: crops get their part of their picture's map.  A picture that is not in the
    file is an error when it is met; one that cannot be read is not met, if the loader has on_error="replace".

    path: a .npy file that `make` or `write` wrote.  Raises ValueError or OSError if it is none.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._entries = np.lib.format.open_memmap(self.path, "r")
        except ValueError as error:
            raise ValueError(f"cannot open the maps {path}: {error}; expected a file of MapFile.make") from error
        kind = self._entries.dtype
        shape = kind["map"].shape if kind.names == ("digest", "map") else ()
        if self._entries.ndim != 1 or len(shape) != 2 or 0 in shape or kind != _entry(shape):
            raise ValueError(f"{path} holds {kind} {self._entries.shape}, expected a file of MapFile.make")
        self._first = _first_bytes(self._entries["digest"])

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    @property
    def shape(self) -> tuple[int, int]:
        """(h, w) of a map."""
        high, wide = self._entries.dtype["map"].shape
        return int(high), int(wide)

    def row(self, digest: bytes) -> int:
        """The row of a picture's map, -1 if it has none."""
        wanted = np.frombuffer(digest, np.uint8)
        first = int(np.searchsorted(self._first, _first_bytes(wanted[None])[0]))
        while first < len(self) and (self._entries["digest"][first, :8] == wanted[:8]).all():
            if (self._entries["digest"][first] == wanted).all():
                return first
            first += 1
        return _NONE

    def maps(self, rows: Ids) -> F32:
        """(N, h, w) float32, the maps of some rows."""
        return self._entries["map"][rows].astype(np.float32)

    def of(self, source: Source) -> FileMaps:
        """The maps by the numbers of a data set's samples."""
        return FileMaps(self, source)

    @classmethod
    def write(cls, path: str | Path, digests: Iterable[bytes], maps: Any) -> MapFile:
        """Write maps (N, h, w) of the pictures with these digests, each once; the file appears when it is whole.

        Maps of any scale will do, see `fastmix.maps.in_float16`.  Raises ValueError for anything but numbers of that
        shape and N digests of 32 bytes, and OSError if the file cannot be written.
        """
        place, names = _place(path), [*digests]
        for number, name in enumerate(names):
            if not isinstance(name, bytes) or len(name) != 32:
                raise ValueError(f"digest {number} is {name!r:.40}, expected 32 bytes, as content_digest gives")
        found = _checked(maps, len(names))
        entries = np.zeros(len(names), _entry(found.shape[1:]))
        entries["digest"], entries["map"] = np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32), found
        unique = np.unique(entries["digest"], axis=0, return_index=True)[1]  # in the order of the digests
        part = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                np.save(file, entries[unique])
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        return cls(place)

    @classmethod
    def make(
        cls,
        path: str | Path,
        dataset: Any,
        maps_of: Callable[[U8, Ids], Any] | None = None,
        *,
        size: int | tuple[int, int] = 224,
        batch_size: int = 32,
        on_error: str = "raise",
        progress: bool = False,
    ) -> MapFile:
        """Make the maps of all pictures of a data set.

        dataset: whatever `DataLoader` takes.  maps_of: (images (N, H, W, 3) uint8, ids (N,)) -> maps (N, h, w), an
        array or tensor of any scale, such as Grad-CAM of a trained model; None: `spectral_maps`.  size: pixels, an
        integer or (H, W), to which whole pictures are resized (antialiased bilinear), whatever their shape.
        batch_size: most pictures that `maps_of` is given at once.  progress: a bar on stderr.
        on_error: "raise" a FastmixError for a picture that cannot be read, or "skip" it, with a warning at the end: it
        has no map then, nor is it asked for one by a loader with on_error="replace".

        Raises as `write`, and ValueError for other settings and for maps that are not all of one size, as soon as they
        are made, or if no picture at all can be read.
        """
        place, source, sides = _place(path), open_source(dataset), _sides(size)
        _check_settings(len(source), batch_size, on_error)
        digests: list[bytes] = []
        found: list[F16] = []
        bad: list[Unread] = []
        with tqdm(total=len(source), desc="maps", unit="picture", disable=not progress) as bar:
            for low in range(0, len(source), batch_size):
                ids = np.arange(low, min(low + batch_size, len(source)))
                images, names = whole_pictures(source, ids, sides, bad if on_error == "skip" else None)
                bar.update(len(ids))
                if not names:
                    continue
                good = np.setdiff1d(ids, [each.id for each in bad])
                digests += names
                found.append(_checked(spectral_maps(images) if maps_of is None else maps_of(images, good), len(good)))
                _check_cells(found)
        if not found:
            raise ValueError(f"none of the {len(source)} pictures can be read, {bad[0].path}: {bad[0].reason}")
        _warn(bad)
        return cls.write(place, digests, np.concatenate(found))


class FileMaps:
    """The maps of a `MapFile`, by the numbers of the samples of a data set; each picture is looked up once.

    Its methods may be called from several threads.
    """

    def __init__(self, file: MapFile, source: Source):
        self.file, self._source = file, source
        self._rows = np.full(len(source), _UNKNOWN)

    def take(self, ids: Any, geometry: Geometry, _epoch: int = 0) -> F32:
        """The maps of new crops of samples: (N, h, w) float32, NaN beyond the picture.

        Raises ValueError for a sample whose picture is not in the file.
        """
        numbers = np.asarray(ids, np.int64)
        for number in np.unique(numbers[self._rows[numbers] == _UNKNOWN]).tolist():
            self._rows[number] = self.file.row(content_digest(self._source.read(number).data))
        without = numbers[self._rows[numbers] == _NONE]
        if len(without):
            path = self._source.path(int(without[0]))
            raise ValueError(
                f"sample {without[0]}{f' ({path})' if path else ''} has no map in {self.file.path}: make the file "
                "again of this data set, with MapFile.make"
            )
        return seen_in(self.file.maps(self._rows[numbers]).astype(np.float64), geometry)


def whole_pictures(
    source: Source, ids: Ids, size: tuple[int, int], bad: list[Unread] | None = None
) -> tuple[U8, list[bytes]]:
    """(N, H, W, 3) uint8, samples resized to `size` whatever their shape, and their content digests.

    bad: where samples that cannot be read are put, which are then left out; None: they are a FastmixError.
    """
    images = np.empty((len(ids), *size, 3), np.uint8)
    digests: list[bytes] = []
    for number in ids.tolist():
        data: bytes | U8 | None = None
        try:
            data = source.read(number).data
            picture = decode(data) if isinstance(data, bytes) else data
        except Exception as error:
            path, stage = source.path(number), "read" if data is None else "decode"
            if bad is None:
                message = f"{error}; mend or remove it, or pass on_error='skip'"
                raise FastmixError(message, sample_id=number, path=path, stage=stage) from error
            bad.append(Unread(number, path, str(error)))
            continue
        box = np.array([[0.0, 0.0, picture.shape[1], picture.shape[0]]])
        row = len(digests)
        backend_for(picture).crop_resize([picture], box, np.zeros(1, np.bool_), images[row : row + 1], 0, 1)
        digests.append(content_digest(data))
    return images[: len(digests)], digests


def _warn(bad: list[Unread]) -> None:
    if bad:
        some = "".join(f"\n  {each.id} ({each.path}): {each.reason}" for each in bad[:_LISTED])
        warnings.warn(f"pictures without a map: {len(bad)}{some}", stacklevel=3)


def _checked(maps: Any, count: int) -> F16:
    """Maps, an array or tensor, as float16.  Raises ValueError for anything but numbers (count, h, w)."""
    given = np.asarray(maps.detach().cpu().double() if is_tensor(maps) else maps)
    if given.ndim != 3 or len(given) != count or 0 in given.shape[1:] or given.dtype.kind not in "fiu":
        raise ValueError(f"maps are {given.dtype} {given.shape}, expected numbers ({count}, h, w), one map a picture")
    return in_float16(given)


def _check_cells(found: list[F16]) -> None:
    (high, wide), now = found[0].shape[1:], found[-1].shape[1:]
    if now != (high, wide):
        raise ValueError(f"maps have {now[0]} x {now[1]} cells, expected {high} x {wide} as those before: resize them")


def _check_settings(count: int, batch_size: Any, on_error: Any) -> None:
    if not is_pair((batch_size, 1)):
        raise ValueError(f"batch_size is {batch_size!r}, expected an integer >= 1")
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is {on_error!r}, expected one of {ON_ERROR}")
    if not count:
        raise ValueError("the data set is empty, expected pictures to make maps of")


def _sides(size: Any) -> tuple[int, int]:
    """Pixels as (H, W), given as an integer or a pair.  Raises ValueError for anything else."""
    high, wide = size if is_pair(size) else (size, size)
    if not is_pair((high, wide)):
        raise ValueError(f"size is {size!r}, expected pixels >= 1: an integer or a pair (height, width)")
    return int(high), int(wide)


def _place(path: str | Path) -> Path:
    """Where a file will be.  Raises OSError if none can be written there."""
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder, expected the name of a .npy file")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"the folder {place.parent} does not exist: make it, then the maps")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"the folder {place.parent} is write-protected, expected one to put {place.name} in")
    return place


def _entry(shape: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype([("digest", "u1", (32,)), ("map", "<f2", shape)])


def _first_bytes(digests: U8) -> NDArray[np.uint64]:
    """(N,) the first 8 bytes of digests (N, 32) as numbers in the order of the digests."""
    return np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
