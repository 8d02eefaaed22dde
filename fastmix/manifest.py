"""The list of an expanded set: what was made of which sample, and how; one row a record, in a Parquet file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet as pq
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('expanded sets need pyarrow: pip install "fastmix[diffusion]"') from missing

__all__ = ["MADE", "NAME", "SCHEMA", "VERSION", "Manifest", "read_made", "read_manifest", "read_rows", "write_rows"]

VERSION = "1"
NAME = "manifest.parquet"
MADE = "made"
_ABOUT = b"fastmix.manifest"

SCHEMA = pa.schema(
    [
        pa.field("record", pa.int64(), nullable=False),  # source * multiplier + number of the copy
        pa.field("status", pa.string(), nullable=False),  # "made", or why there is no picture
        pa.field("path", pa.string()),  # of the picture, below the folder; null unless it was made
        pa.field("source", pa.int64(), nullable=False),  # number of the sample in the data set
        pa.field("source_path", pa.string()),
        pa.field("source_label", pa.int32(), nullable=False),
        pa.field("target", pa.int64()),  # the sample that gave the background, or the class of the prompt
        pa.field("target_path", pa.string()),
        pa.field("target_label", pa.int32()),
        pa.field("weight", pa.float64(), nullable=False),  # share of the source's label, the rest is the target's
        pa.field("strength", pa.float64(), nullable=False),
        pa.field("steps", pa.int32(), nullable=False),  # executed: int(strength * scheduled)
        pa.field("scheduled_steps", pa.int32(), nullable=False),
        pa.field("guidance", pa.float64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),  # of the picture's own generator
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("mask_area", pa.float64()),  # shares of the picture: of the mask,
        pa.field("leak_area", pa.float64()),  # and of what the target's object alone adds to it
        pa.field("distance", pa.float64()),  # L2, between the two saliency maps
        pa.field("saliency", pa.string()),  # what made these
        pa.field("model", pa.string(), nullable=False),  # SHA-256 of the weights
        pa.field("adapter", pa.string()),
        pa.field("tokens", pa.string()),
    ]
)


@dataclass(frozen=True)
class Manifest:
    """rows: dictionaries of the columns of SCHEMA, by record.  about: classes, settings, ...  folder: of the paths."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]
    folder: Path

    @property
    def made(self) -> list[dict[str, Any]]:
        """The rows that have a picture."""
        return [row for row in self.rows if row["status"] == MADE]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        return list(self.about["classes"])


def write_rows(path: Path, rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Write rows, in the order of their records, under another name, and move the file into place when it is whole.

    The same rows give the same bytes.  Raises OSError where that fails; nothing is left behind then.
    """
    ordered = sorted(rows, key=lambda row: row["record"])
    described = SCHEMA.with_metadata({_ABOUT: json.dumps({"version": VERSION, **about}, sort_keys=True).encode()})
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(pa.Table.from_pylist(ordered, schema=described), part, compression="zstd")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and what is said about them.  Raises ValueError for a file of another version, or none of ours."""
    table, about = _read(path)
    return table.to_pylist(), about


def read_made(path: str | Path, columns: Sequence[str]) -> tuple[Any, Any, dict[str, Any], Path]:
    """Some columns of the records that have a picture, as a pyarrow Table, for sets whose rows would fill the memory.

    path: as for `read_manifest`.  Also returned are the same columns of all records, what is said about the set, and
    the folder of its paths.
    """
    file = _file(path)
    table, about = _read(file, [*columns, "status"])
    _check_classes(file, about)
    made = table.filter(pa.compute.equal(table["status"], MADE)).combine_chunks()
    return made.drop_columns("status"), table.drop_columns("status"), about, file.parent


def _read(path: Path, columns: Sequence[str] | None = None) -> tuple[Any, dict[str, Any]]:
    try:
        names = pq.read_schema(path).names
        table = pq.read_table(path, columns=[name for name in columns or names if name in names])
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path}: {error}; expected a Parquet file that `fastmix refine` wrote") from error
    about = _about(path, (table.schema.metadata or {}).get(_ABOUT, b"{}"))
    version = about.pop("version", None)
    if version != VERSION:
        raise ValueError(
            f"{path} has manifest version {version}, expected {VERSION}: make the set again with "
            "`fastmix refine` into a new folder, or read it with the fastmix that wrote it"
        )
    if names != SCHEMA.names:
        raise ValueError(f"{path} has columns {names}, expected {SCHEMA.names}")
    return table, about


def _about(path: Path, text: bytes) -> dict[str, Any]:
    """What is said about a set.  Raises ValueError if that is damaged."""
    try:
        about = json.loads(text)
    except ValueError as error:  # also of bytes that are no text
        about = error
    if not isinstance(about, dict):
        raise ValueError(
            f"{path} says {str(about)[:80]!r} about itself, expected a JSON object: copy it again, or make the set "
            "anew with `fastmix refine`"
        )
    return about


def _check_classes(path: Path, about: dict[str, Any]) -> None:
    """Raise ValueError unless the names of the classes are told."""
    names = about.get("classes")
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise ValueError(
            f"{path} has classes {names!r}, expected their names: make the set anew with `fastmix refine`, or copy "
            'them with the rows, from the "classes" of `Manifest.about`'
        )


def read_manifest(path: str | Path) -> Manifest:
    """The manifest of a folder that `fastmix refine` has finished, or such a file itself.

    Raises FileNotFoundError where there is none, and ValueError as `read_rows` does, or if it names no classes.
    """
    file = _file(path)
    rows, about = read_rows(file)
    _check_classes(file, about)
    return Manifest(rows, about, file.parent)


def _file(path: str | Path) -> Path:
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} has no {NAME}, expected a folder that `fastmix refine` has finished: run it again, it goes on "
            "where it was"
        )
    return file
