"""Maps that were made beforehand, in a file that knows a picture by its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .datasets import Source, open_source
from .images import decode, is_tensor
from .kernels import U8, backend_for
from .maps import Geometry, seen_in
from .saliency import spectral_maps

__all__ = ["FileMaps", "MapFile", "content_digest", "whole_pictures"]

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]
_UNKNOWN, _NONE = -2, -1


def content_digest(data: bytes | U8) -> bytes:
    """The 32 bytes of SHA-256 of an encoded file, or of the shape and pixels of a picture (H, W, 3) uint8."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).digest()
    return hashlib.sha256(f"{data.shape}".encode() + np.ascontiguousarray(data).tobytes()).digest()


class MapFile:
    """Maps (h, w) of whole pictures, float16, found by the pictures' content, so that names and order do not matter.

    For `DataLoader(maps=MapFile(path))`: crops get their part of their picture's map.  A picture that is not in the
    file is an error when it is met.

    path: a .npy file that `make` or `write` wrote.  Raises ValueError or OSError if it is none.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._entries = np.lib.format.open_memmap(self.path, "r")
        except ValueError as error:
            raise ValueError(f"cannot open the maps {path}: {error}; expected a file of MapFile.make") from error
        kind = self._entries.dtype
        if self._entries.ndim != 1 or kind.names != ("digest", "map") or kind["map"].ndim != 2:
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

        Raises ValueError for numbers that do not match, or that float16 cannot hold.
        """
        given, names = np.asarray(maps), [*digests]
        if given.ndim != 3 or len(given) != len(names) or given.dtype.kind not in "fiu":
            raise ValueError(f"maps are {given.dtype} {given.shape} for {len(names)} digests, expected (N, h, w)")
        entries = np.zeros(len(names), np.dtype([("digest", "u1", (32,)), ("map", "<f2", given.shape[1:])]))
        with np.errstate(over="ignore"):
            entries["map"] = given
        if (np.isinf(entries["map"]) & np.isfinite(given)).any():
            raise ValueError(f"maps run up to {np.nanmax(np.abs(given))}, expected at most 65504: divide them")
        entries["digest"] = np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32)
        unique = np.unique(entries["digest"], axis=0, return_index=True)[1]  # in the order of the digests
        part = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                np.save(file, entries[unique])
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return cls(path)

    @classmethod
    def make(
        cls,
        path: str | Path,
        dataset: Any,
        maps_of: Callable[[U8, Ids], Any] | None = None,
        *,
        size: int | tuple[int, int] = 224,
        batch_size: int = 32,
        progress: bool = False,
    ) -> MapFile:
        """Make the maps of all pictures of a data set.

        dataset: whatever `DataLoader` takes.  maps_of: (images (N, H, W, 3) uint8, ids (N,)) -> maps (N, h, w), an
        array or tensor, such as Grad-CAM of a trained model; None: `spectral_maps`.  size: pixels, an integer or
        (H, W), to which whole pictures are resized (antialiased bilinear), whatever their shape.  progress: a bar on
        stderr.
        """
        source = open_source(dataset)
        digests: list[bytes] = []
        found: list[Any] = []
        with tqdm(total=len(source), desc="maps", unit="picture", disable=not progress) as bar:
            for low in range(0, len(source), batch_size):
                ids = np.arange(low, min(low + batch_size, len(source)))
                images, names = whole_pictures(source, ids, (size, size) if isinstance(size, int) else size)
                maps: Any = spectral_maps(images) if maps_of is None else maps_of(images, ids)
                digests += names
                found.append(np.asarray(maps.detach().cpu().float() if is_tensor(maps) else maps))
                bar.update(len(ids))
        return cls.write(path, digests, np.concatenate(found))


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


def whole_pictures(source: Source, ids: Ids, size: tuple[int, int]) -> tuple[U8, list[bytes]]:
    """(N, H, W, 3) uint8, samples resized to `size` whatever their shape, and their content digests."""
    images, digests = np.empty((len(ids), *size, 3), np.uint8), []
    for row, number in enumerate(ids.tolist()):
        data = source.read(number).data
        picture = decode(data) if isinstance(data, bytes) else data
        box = np.array([[0.0, 0.0, picture.shape[1], picture.shape[0]]])
        backend_for(picture).crop_resize([picture], box, np.zeros(1, np.bool_), images[row : row + 1], 0, 1)
        digests.append(content_digest(data))
    return images, digests


def _first_bytes(digests: U8) -> NDArray[np.uint64]:
    """(N,) the first 8 bytes of digests (N, 32) as numbers in the order of the digests."""
    return np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
