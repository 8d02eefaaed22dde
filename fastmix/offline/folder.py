"""The folder of an expanded set while it is made: one writer at a time, whole files only, and the same settings.

    settings.json             what is made of what; another run with other settings is refused
    saliency/NNNNNN.npy       maps of a block of samples
    pictures/CLASS/*.png
    parts/NNNNNN.parquet      rows of a block of records, written after its pictures
    manifest.parquet          all rows, at the end; then the parts are gone

Every file is written under a name that begins with a dot and is moved into place when it is whole.  So whatever stops a
run, the next one finds only whole files and goes on after them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..manifest import NAME, read_rows, write_rows
from .sources import class_difference

__all__ = ["SETTINGS", "Folder", "check_room", "check_same", "locked", "naming", "write"]

SETTINGS = "settings.json"
_LOCK = ".lock"
_SUMS = {"data": "other labels or file names", "contents": "other pictures under the same names"}
_UNFINISHED = re.compile(r"\.(settings\.json|manifest\.parquet|[0-9_]+\.(npy|parquet|png|jpg))\.[0-9]+")  # .name.pid


@dataclass(frozen=True)
class Folder:
    """Where a set is made."""

    path: Path

    @property
    def manifest(self) -> Path:
        """There once the set is complete."""
        return self.path / NAME

    def part(self, block: int) -> Path:
        """The rows of a block of records."""
        return self.path / "parts" / f"{block:06d}.parquet"

    def maps(self, block: int) -> Path:
        """The maps of a block of samples."""
        return self.path / "saliency" / f"{block:06d}.npy"

    @contextmanager
    def held(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Nobody else writes meanwhile.  What a killed run left half-written is removed.

        Raises ValueError if another run is at it, or for a folder with other settings or other things in it.
        """
        self.check(settings)
        with locked(self.path):
            self.check(settings)
            if not (self.path / SETTINGS).is_file():
                write(self.path / SETTINGS, json.dumps(settings, indent=1, sort_keys=True).encode())
            self._tidy()
            yield

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for a folder that was begun with others than these settings, or has other things in it."""
        self._check_ours()
        file = self.path / SETTINGS
        if not file.is_file():
            return
        try:
            before = _flat(json.loads(file.read_bytes()))
        except ValueError as error:
            raise ValueError(f"cannot read {file}: {error}; put it back as it was, or name another folder") from error
        # The pictures may not have been looked at yet; and another version may have had other settings.
        given = {**dict.fromkeys(before), "contents": before.get("contents"), **settings}
        check_same(self.path, before, _flat(json.loads(json.dumps(given))))

    def write_part(self, block: int, rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> None:
        """The rows of a block, as `write`."""
        self._write_rows(self.part(block), rows, settings)

    def merge(self, blocks: int, settings: Mapping[str, Any]) -> None:
        """Make the manifest of all parts, and of an earlier manifest's other rows; then the parts are gone.

        Raises ValueError if one is missing.
        """
        rows = {row["record"]: row for row in read_rows(self.manifest)[0]} if self.manifest.is_file() else {}
        parts = [self.part(block) for block in range(blocks)]
        there = [part for part in parts if part.is_file()]
        if not rows and (missing := [part for part in parts if part not in there]):
            raise ValueError(f"{missing[0]} has disappeared: run it again, it makes what is missing")
        for part in there:
            rows |= {row["record"]: row for row in read_rows(part)[0]}
        if there:
            self._write_rows(self.manifest, list(rows.values()), settings)
            shutil.rmtree(self.path / "parts")

    def _write_rows(self, path: Path, rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> None:
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_rows(path, rows, dict(settings))

    def _check_ours(self) -> None:
        if not self.path.exists() or (self.path / SETTINGS).is_file():
            return
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, expected the name of a folder for the pictures")
        for child in self.path.iterdir():
            if child.name != _LOCK and not _UNFINISHED.fullmatch(child.name):
                raise ValueError(
                    f"{self.path} has {child.name} in it and no {SETTINGS}, expected a new folder, or one that "
                    "`fastmix refine` has begun"
                )

    def _tidy(self) -> None:
        for folder in (self.path, *(self.path / name for name in ("saliency", "parts", "pictures"))):
            found = folder.rglob(".*") if folder.name == "pictures" else folder.glob(".*")
            for file in found:
                if _UNFINISHED.fullmatch(file.name) and file.is_file():
                    file.unlink()
        if self.manifest.is_file():
            shutil.rmtree(self.path / "parts", ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """A whole file, or none.  Raises OSError that names it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder in which nobody else writes meanwhile.  Raises ValueError if another run is at it."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is being written by another run: wait for it, or name another folder") from None
        yield


def check_room(folder: Path) -> None:
    """Raise OSError for a folder that cannot be written to, before the work whose result should go there."""
    with naming(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting of `now` that is another one than that of `before`."""
    for name in sorted(now, key=lambda name: (name == "contents", name)):  # names first: they say more
        old, new = before.get(name), now[name]
        if old == new:
            continue
        what = f"{name} = {_short(old)}, and now it is {_short(new)}"
        if name == "classes" and isinstance(old, list):
            what = f"other classes ({class_difference(old, new)})"
        elif name in _SUMS:
            what = _SUMS[name]
        raise ValueError(f"{folder} was begun with {what}: go on with the same, or name another folder")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of writing say what could not be written."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write {path}: {error.strerror or error}; make room there, or let it be written, and run it again: "
            "it goes on where it was"
        ) from error


def _flat(settings: Any) -> dict[str, Any]:
    """Those of the expansion beside the others, for one comparison of all.  Raises ValueError for other things."""
    own = settings.get("expansion", {}) if isinstance(settings, dict) else None
    if not isinstance(own, dict):
        raise ValueError("it does not hold settings")
    rest = {name: value for name, value in settings.items() if name != "expansion"}
    return {**rest, **own}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."
