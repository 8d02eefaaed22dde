"""A data set as the off-line commands see it: its classes, its names, and pictures that can all be read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..datasets import Source, known_labels
from ..images import decode
from ..mapfile import content_digest
from ..types import FastmixError
from .records import Classes

__all__ = ["class_difference", "classes_of", "contents_of", "digests_of", "names_of"]


def classes_of(source: Source, tokens: Sequence[str] | None = None) -> Classes:
    """Labels, names and paths of a data set.  tokens: one a class; None: <class_0>, <class_1> and so on.

    Raises ValueError for labels that are no class numbers, names that are missing, are no text or cannot be those of
    folders, or another number of tokens.
    """
    names = source.classes
    if len(source) == 0 or not names:
        raise ValueError(
            f"the data set has {len(source)} samples and {len(names or [])} class names, expected at least one of "
            "each: give a folder with one subfolder a class"
        )
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name or names.count(name) > 1:
            raise ValueError(f"a class is named {name!r}, expected different names of folders: rename it")
    labels = known_labels(source)
    if labels is None:
        labels = np.array([source.read(i).label for i in range(len(source))])
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < len(names):
        raise ValueError(
            f"labels are {labels.dtype} {labels.shape}, expected class numbers in 0..{len(names) - 1}, one a sample"
        )
    tokens = [f"<class_{number}>" for number in range(len(names))] if tokens is None else tokens
    if len(tokens) != len(names):
        raise ValueError(f"there are {len(tokens)} tokens, expected one for each of the {len(names)} classes")
    paths = _below([*map(source.path, range(len(source)))])
    for text in (*names, *paths):
        _check_text(text)
    return Classes(labels.astype(np.int64), tuple(names), tuple(tokens), paths)


def digests_of(source: Source, numbers: Sequence[int], quiet: bool = True) -> list[bytes]:
    """SHA-256 of what is stored of some samples, each of which is decoded: cheap beside what a diffusion model costs.

    Raises FastmixError for the first one that cannot be read.
    """
    found = []
    for number in tqdm(numbers, "checking", unit="picture", disable=quiet):
        try:
            data = source.read(number).data
            if isinstance(data, bytes):
                decode(data)
        except (OSError, TypeError, ValueError) as error:
            cure = "put a sound picture of the same name in its place, and run it again"
            raise FastmixError(f"{error}; {cure}", sample_id=number, path=source.path(number)) from error
        found.append(content_digest(data))
    return found


def contents_of(digests: Sequence[bytes]) -> str:
    """One SHA-256 of those of all samples."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def names_of(classes: Classes) -> str:
    """SHA-256 of the names of classes and files, and of the labels."""
    made = hashlib.sha256(json.dumps([classes.names, list(classes.paths)]).encode())
    made.update(classes.labels.astype("<i8").tobytes())
    return made.hexdigest()


def class_difference(before: Sequence[str], now: Sequence[str]) -> str:
    """How one list of classes differs from another, in words: what is missing, what is new, or the order."""
    parts = []
    for word, names, others in (("missing", before, {*now}), ("new", now, {*before})):
        if only := [repr(name) for name in names if name not in others]:
            parts.append(f"{word}: {', '.join(only[:5])}" + (f" and {len(only) - 5} more" if len(only) > 5 else ""))
    if not parts:
        pairs = enumerate(zip(before, now, strict=False))
        parts = [
            f"another order: class {number} was {old!r}, now {new!r}" for number, (old, new) in pairs if old != new
        ]
    return "; ".join(parts[:2])


def _check_text(name: str | None) -> None:
    """Lists of JSON and Parquet hold nothing else."""
    try:
        (name or "").encode()
    except UnicodeEncodeError:
        raise ValueError(f"the data has a name {os.fsencode(name or '')!r}, expected UTF-8: rename it") from None


def _below(paths: Sequence[str | None]) -> list[str | None]:
    """Paths below the folder that all of them are in, so that a set may be moved."""
    known = [path for path in paths if path is not None]
    root = os.path.commonpath([str(Path(path).parent) for path in known]) if known else ""
    return [None if path is None else os.path.relpath(path, root) for path in paths]
