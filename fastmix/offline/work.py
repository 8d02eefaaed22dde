"""The work of an expansion, in blocks that do not depend on who makes them, or when.

A block of records is made whole: the members of a batch, and with them every bit of the pictures, depend on the
settings and the batch size alone.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..datasets import Source
from ..kernels import F32, U8
from ..manifest import MADE, read_rows
from ..mapfile import MapFile
from ..maps import Geometry
from ..types import Pool
from .composing import SPECTRAL, Maps, aim, composed, finished, fitting, map_of, picture_of, resized
from .expansion import Expansion
from .folder import Folder, write
from .records import Classes, decided
from .sources import names_of

__all__ = ["BLOCK", "GivenMaps", "Job", "Refiner", "SavedMaps", "has_maps", "make_maps", "make_part", "settings_of"]
__all__ += ["unmade"]

BLOCK = 32  # records
_MAPS = 256  # samples of a file of maps
_TRIES = 4  # with seed, seed + 1, ...: a safety checker makes pictures black
_QUALITY = {"quality": 95, "subsampling": 0}  # of a JPEG
_STARTS, _ENDS = (b"\x89PNG\r\n", b"\xff\xd8\xff"), (b"IEND\xaeB`\x82", b"\xff\xd9")  # of PNG and JPEG


class Refiner(Protocol):
    """What brings pictures to their prompts, such as `Generator`.

    One that edits by instructions, and so takes no strength, has an attribute `edits` that is True.  Where there are
    several precisions, `dtype` names the one it works in.
    """

    @property
    def hashes(self) -> Mapping[str, str | None]:
        """SHA-256 of the weights: "model", "adapter" and "tokens"."""

    def check_prompts(self, prompts: Sequence[str], /) -> None:
        """Raise ValueError for a prompt that it does not understand."""

    def refine(
        self,
        images: U8,
        prompts: Sequence[str],
        strength: float,
        steps: int,
        guidance: float,
        seeds: Sequence[int],
    ) -> F32:
        """(B, S, S, 3) uint8 to float32 in [0, 1]; a picture is a function of its own prompt and seed."""


@dataclass(frozen=True)
class SavedMaps:
    """Spectral residuals of `count` samples, in blocks on disk."""

    folder: Folder
    name: str = SPECTRAL

    def take(self, ids: NDArray[np.int64]) -> F32:
        """See `Maps`."""
        blocks = ids // _MAPS
        parts = {int(block): np.load(self.folder.maps(int(block)), mmap_mode="r") for block in np.unique(blocks)}
        return np.stack([parts[int(block)][int(i) % _MAPS] for i, block in zip(ids, blocks, strict=True)])


class GivenMaps:
    """The maps of a file that `MapFile` opens.  source: whose pictures they are of."""

    def __init__(self, path: str | Path, source: Source):
        self._maps = MapFile(path).of(source)
        with Path(path).open("rb") as file:
            self.name = f"maps {hashlib.file_digest(file, 'sha256').hexdigest()}"

    def take(self, ids: NDArray[np.int64]) -> F32:
        """See `Maps`."""
        return self._maps.take(ids, Geometry.whole(len(ids)))


@dataclass(frozen=True)
class Job:
    """Everything that the blocks of a set need, but for the model.

    hashes: of its weights.  maps: of all samples; None if they are made here, or not needed.  pool: of fractals.
    settings: what the set is made of and how: the contents of its settings.json, and what its manifest says of it.
    """

    source: Source
    folder: Folder
    expansion: Expansion
    classes: Classes
    hashes: Mapping[str, str | None]
    batch_size: int
    maps: Maps | None
    pool: Pool | None
    settings: Mapping[str, Any]

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.source) * self.expansion.multiplier

    @property
    def blocks(self) -> int:
        """Of records."""
        return -(-self.records // BLOCK)

    @property
    def map_blocks(self) -> int:
        """Of maps that are made here."""
        return -(-len(self.source) // _MAPS) if self.expansion.compose and self.maps is None else 0

    def block(self, number: int) -> range:
        """The records of a block."""
        return range(number * BLOCK, min((number + 1) * BLOCK, self.records))


def settings_of(
    expansion: Expansion,
    classes: Classes,
    hashes: Mapping[str, str | None],
    dtype: str | None,
    maps: Maps | None,
    pool: Pool | None,
) -> dict[str, Any]:
    """`Job.settings`, ready for JSON, but for the contents of the pictures."""
    return {
        "expansion": asdict(expansion),
        "sources": len(classes.labels),
        "classes": list(classes.names),
        "token_names": list(classes.tokens),
        "data": names_of(classes),
        "saliency": None if not expansion.compose else maps.name if maps else SPECTRAL,
        "pool": hashlib.sha256(pool.images.data).hexdigest() if pool else None,
        "dtype": dtype,
        **{name: hashes.get(name) for name in ("model", "adapter", "tokens")},
    }


def has_maps(job: Job, block: int) -> bool:
    """Whether the maps of a block of samples are there, and sound."""
    try:
        maps = np.lib.format.open_memmap(job.folder.maps(block), "r")
    except (OSError, ValueError):
        return False
    return bool(maps.dtype == np.float32 and maps.ndim == 3 and len(maps) == len(_samples(job, block)))


def make_maps(job: Job, block: int) -> None:
    """Make and keep the maps of a block of samples."""
    maps = np.stack([map_of(picture_of(job.source, i), job.expansion.size) for i in _samples(job, block)])
    data = io.BytesIO()
    np.save(data, maps)
    write(job.folder.maps(block), data.getvalue())


def _samples(job: Job, block: int) -> range:
    return range(block * _MAPS, min((block + 1) * _MAPS, len(job.source)))


def unmade(job: Job, blocks: Iterable[int]) -> list[int]:
    """Those of some blocks of records of which a row or a picture is missing, or a picture is cut off."""
    folder, found, whole = job.folder, [], None
    if folder.manifest.is_file():
        try:
            whole = read_rows(folder.manifest)[0]
        except ValueError as error:
            raise ValueError(
                f"{error}; or delete {folder.manifest}, and run it again: then it is made again"
            ) from error
    for block in blocks:
        records = job.block(block)
        rows = _part(folder.part(block)) if whole is None else whole[records.start : records.stop]
        if len(rows) < len(records) or not all(_is_whole(folder.path / row["path"]) for row in rows if row["path"]):
            found.append(block)
    return found


def _part(path: Path) -> list[dict[str, Any]]:
    """The rows of a block; none where they are missing or damaged."""
    try:
        return read_rows(path)[0]
    except (OSError, ValueError):
        return []


def _is_whole(path: Path) -> bool:
    """Whether a picture is there from its first byte to its last ones; cheaply, as there are many."""
    try:
        with path.open("rb") as file:
            first = file.read(8)
            file.seek(-8, io.SEEK_END)
            return first.startswith(_STARTS) and file.read().endswith(_ENDS)
    except OSError:  # of a file of fewer bytes, too
        return False


def make_part(job: Job, block: int, generator: Refiner, tell: Callable[[int], Any] = lambda _: None) -> None:
    """Make the pictures of a block of records, then keep its rows.  tell: is called with numbers of records done."""
    rows = [_aimed(job, record) for record in job.block(block)]
    todo = [row for row in rows if row["status"] == MADE]
    tell(len(rows) - len(todo))
    for strength in sorted({row["strength"] for row in todo}):
        same = [row for row in todo if row["strength"] == strength]
        for start in range(0, len(same), job.batch_size):
            batch = same[start : start + job.batch_size]
            _make_pictures(job, batch, generator)
            tell(len(batch))
    job.folder.write_part(block, rows, job.settings)


def _aimed(job: Job, record: int) -> dict[str, Any]:
    """The row of a record, with its target; status "made" if its picture is to be made."""
    row = decided(record, job.expansion, job.classes, job.hashes) | {"status": MADE}
    if job.expansion.compose:
        aim(row, job.expansion, job.classes.labels, _maps(job))
    if row["target"] is not None:
        row["target_path"] = job.classes.paths[row["target"]]
    return row


def _maps(job: Job) -> Maps:
    return job.maps or SavedMaps(job.folder)


def _make_pictures(job: Job, rows: Sequence[dict[str, Any]], generator: Refiner) -> None:
    """Make the pictures of rows of one strength; sets path, seed and status of each."""
    images, shapes = [], []
    for row in rows:
        own = picture_of(job.source, row["source"])
        images.append(composed(own, job.source, row, job.expansion, _maps(job) if job.expansion.compose else None))
        shapes.append(fitting(own.shape, job.expansion.size))
    refined = _refined(generator, np.stack(images), rows)
    for row, image, made, shape in zip(rows, images, refined, shapes, strict=True):
        if row["status"] == MADE:
            levels = _levels(finished(image, made, row["record"], job.expansion, job.pool))
            copy = row["record"] % job.expansion.multiplier
            name = f"{row['source']:07d}_{copy:03d}.{job.expansion.picture}"
            row["path"] = f"pictures/{job.classes.names[row['source_label']]}/{name}"
            write(job.folder.path / row["path"], _encoded(resized(levels, shape), job.expansion.picture))


def _refined(generator: Refiner, images: U8, rows: Sequence[dict[str, Any]]) -> F32:
    """The model's pictures; black ones get further tries with other seeds, then the status "black"."""
    made = np.zeros(images.shape, np.float32)
    black, first = list(range(len(rows))), rows[0]
    for attempt in range(_TRIES):
        seeds = [rows[i]["seed"] + attempt for i in black]
        prompts = [rows[i]["prompt"] for i in black]
        how = (first["strength"], first["scheduled_steps"], first["guidance"])
        made[black] = np.nan_to_num(generator.refine(images[black], prompts, *how, seeds))
        for i in black:
            rows[i]["seed"] += attempt if _levels(made[i]).any() else 0
        black = [i for i in black if not _levels(made[i]).any()]
        if not black:
            break
    for i in black:
        rows[i]["status"] = "black"
    return made


def _levels(pictures: F32) -> U8:
    return np.rint(np.clip(pictures, 0, 1) * 255).astype(np.uint8)


def _encoded(picture: U8, kind: str) -> bytes:
    data = io.BytesIO()
    if kind == "jpg":
        Image.fromarray(picture).save(data, "JPEG", **_QUALITY)
    else:
        Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()
