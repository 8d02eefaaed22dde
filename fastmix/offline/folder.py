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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..manifest import NAME, read_rows, write_rows

__all__ = ["SETTINGS", "Folder"]

SETTINGS = "settings.json"
_LOCK = ".lock"
_UNFINISHED = re.compile(r"\..+\.[0-9]+")  # .name.pid


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
        self._check_ours()
        with _naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("ab")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.path} is being written by another run: wait for it, or name another folder"
                ) from None
            self._settle(settings)
            self._tidy()
            yield

    def write(self, path: Path, data: bytes) -> None:
        """A whole file, or none.  Raises OSError that names it."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(data)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)

    def write_part(self, block: int, rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> None:
        """The rows of a block, as `write`."""
        self._write_rows(self.part(block), rows, settings)

    def merge(self, blocks: int, settings: Mapping[str, Any]) -> None:
        """Make the manifest of all parts, and remove them.  Raises ValueError if one is missing."""
        rows: list[dict[str, Any]] = []
        for block in range(blocks):
            if not self.part(block).is_file():
                raise ValueError(f"{self.part(block)} has disappeared: run it again, it makes what is missing")
            rows += read_rows(self.part(block))[0]
        self._write_rows(self.manifest, rows, settings)
        shutil.rmtree(self.path / "parts")

    def _write_rows(self, path: Path, rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> None:
        with _naming(path):
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

    def _settle(self, settings: Mapping[str, Any]) -> None:
        file, text = self.path / SETTINGS, json.dumps(settings, indent=1, sort_keys=True)
        if not file.is_file():
            self.write(file, text.encode())
            return
        try:
            before = _flat(json.loads(file.read_bytes()))
        except ValueError as error:
            raise ValueError(f"cannot read {file}: {error}; name another folder") from error
        now = _flat(json.loads(text))
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                hint = " (classes, labels or file names have changed)" if name == "data" else ""
                raise ValueError(
                    f"{self.path} was begun with {name} = {_short(before.get(name))}, and now it is "
                    f"{_short(now.get(name))}{hint}: go on with the same, or name another folder"
                )

    def _tidy(self) -> None:
        for folder in (self.path, *(self.path / name for name in ("saliency", "parts", "pictures"))):
            found = folder.rglob(".*") if folder.name == "pictures" else folder.glob(".*")
            for file in found:
                if _UNFINISHED.fullmatch(file.name):
                    file.unlink()
        if self.manifest.is_file():
            shutil.rmtree(self.path / "parts", ignore_errors=True)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the expansion beside the others, for one comparison of all."""
    rest = {name: value for name, value in settings.items() if name != "expansion"}
    return {**rest, **settings.get("expansion", {})}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of writing say what could not be written."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write {path}: {error.strerror or error}; make room for it there, and run it again: it goes on "
            "where it was"
        ) from error
