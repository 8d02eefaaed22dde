"""Tar shards in WebDataset's format as a map-style dataset: numbered samples, read in any order from local files.

WebDataset itself streams, so that the order depends on ranks, workers and buffers.  Here shards are listed once, and
arrays hold where the bytes of each sample lie.  The webdataset package expands names, splits them into key and
extension, decodes labels and fetches remote shards; the standard library's tarfile finds the members.  wids, which
webdataset had until 0.2 for access by number, would not do: it cuts long names, takes a truncated shard for a whole,
keeps Python objects for every file, and closes shards that other threads may still read.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlparse

import numpy as np
from numpy.typing import NDArray

from ..datasets import Item, Label, _Paths, as_label

try:
    from webdataset import autodecode, cache, shardlists, tariterators  # type: ignore[import-untyped, unused-ignore]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('Shards needs webdataset: pip install "fastmix[webdataset]"') from missing

__all__ = ["Shards"]

Target = Callable[[Any], Any] | None
_META = re.compile(r"__[^/]*__($|/)")  # members that webdataset skips
_CURE = "expected a whole tar, not compressed: write or copy it again"


class _Place(NamedTuple):
    """Where the bytes of a member lie in its shard."""

    name: str
    start: int
    size: int


class Shards:
    """The samples of tar shards, for `fastmix.DataLoader`: in the order of the shards as given, and of each tar.

    urls: local paths, with braces ("train-{000000..000003}.tar") and "::" between several; or a list of them.  Other
    places that webdataset opens ("https:", "pipe:", ...) are copied to `cache_dir` first.  No shard is compressed.
    image, label: extensions separated by ";"; the first that a sample has counts.  Labels are decoded as webdataset
    does (cls to an integer, json to a dict, ...), given to `target`, if any, and must then be an integer or a vector of
    C numbers in [0, 1].  classes: names of the class numbers, if known.

    Making it reads all headers and labels; pictures stay in the shards.  It can be pickled, and read by several threads
    at once.  Raises FileNotFoundError, ValueError or TypeError that names the shard, and the key of the sample.
    """

    def __init__(
        self,
        urls: str | Path | Sequence[str | Path],
        image: str = "jpg;jpeg;png;webp",
        label: str = "cls",
        *,
        target: Target = None,
        classes: list[str] | None = None,
        cache_dir: str | Path | None = None,
    ):
        wanted, self.classes = {"image": _extensions(image), "label": _extensions(label)}, classes
        self._shards = [_local(url, cache_dir) for url in _expanded(urls)]
        self._sizes, self._names, places, labels = dict[str, int](), list[_Paths](), [], list[Label]()
        for shard in self._shards:
            found = list(_samples(shard, wanted, target))
            self._sizes[shard] = Path(shard).stat().st_size
            self._names.append(_Paths.of(place.name for place, _ in found))
            places.append(np.array([(place.start, place.size) for place, _ in found], np.int64))
            labels += [each for _, each in found]
        self._places, self._ends = np.concatenate(places), np.cumsum([len(part) for part in places])
        shape = np.shape(labels[0])
        if (odd := next((i for i, each in enumerate(labels) if np.shape(each) != shape), None)) is not None:
            told = f"the label has shape {np.shape(labels[odd])}, that of the first sample {shape}"
            raise ValueError(f"shard {self.path(odd)}: {told}; expected one for all: pass target= to make them alike")
        self.targets = np.array(labels, np.float32 if shape else np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> tuple[bytes | NDArray[np.uint8], Label]:
        return self.read(index)[:2]

    def _where(self, index: int) -> tuple[int, str, str]:
        """Number of the sample, counted from the front; its shard; the name of its picture there."""
        number = range(len(self))[index]
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return number, self._shards[shard], self._names[shard][number - (int(self._ends[shard - 1]) if shard else 0)]

    def path(self, index: int) -> str:
        """The shard and, after a colon, the picture in it."""
        return "{1}: {2}".format(*self._where(index))

    def read(self, index: int) -> Item:
        """See `Source`.  The shard is opened for each read, as a picture's own file would be: no handle is shared."""
        number, shard, name = self._where(index)
        start, size = self._places[number].tolist()
        with open(shard, "rb", buffering=0) as file:  # noqa: PTH123 (a Path for each sample would cost as much again)
            if (now := os.fstat(file.fileno()).st_size) != self._sizes[shard]:
                raise OSError(
                    f"shard {shard!r} has {now} bytes, not {self._sizes[shard]} as when listed: make Shards again"
                )
            data = os.pread(file.fileno(), size, start)
        return Item(data, as_label(self.targets[number]), f"{shard}: {name}")

    def read_many(self, _indices: Sequence[int]) -> None:
        """See `Source`."""

    def read_block(self, _indices: NDArray[np.int64]) -> None:
        """See `Source`."""


def _extensions(text: str) -> list[str]:
    """In lower case, as webdataset compares them."""
    if not all(found := [part.strip().lstrip(".").lower() for part in text.split(";")]):
        raise ValueError(f"{text!r} was given as extensions, expected some, with semicolons between: 'jpg;png'")
    return found


def _expanded(urls: str | Path | Sequence[str | Path]) -> list[str]:
    """The names of all shards, each once."""
    given = [urls] if isinstance(urls, str | Path) else urls
    found = [str(name) for each in given for name in shardlists.expand_urls(str(each))]
    if not any(found):
        raise ValueError(f"urls is {urls!r} and names no shard, expected paths of tar files")
    if twice := next((name for name, count in Counter(found).items() if count > 1), None):
        raise ValueError(f"shard {twice!r} is named twice, expected once: its samples would count twice")
    return found


def _local(url: str, cache_dir: str | Path | None) -> str:
    """The local file of a shard; remote ones are copied once."""
    path, scheme = url, urlparse(url).scheme
    if scheme and scheme != "file" and cache_dir is None:
        raise ValueError(f"shard {url!r} is not a local file, expected cache_dir=, a folder that it is copied to first")
    if scheme:
        own = f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.tar"  # webdataset would name it by the last part alone
        path = cache.FileCache(str(cache_dir), url_to_name=lambda _: own, validator=None).get_file(url)
    if not Path(path).is_file():
        hint = "; braces are expanded, * is not: list the files with glob" if "*" in path else ""
        raise FileNotFoundError(f"shard {path!r} does not exist or is no file, expected a tar{hint}")
    return path


def _samples(shard: str, wanted: dict[str, list[str]], target: Target) -> Iterator[tuple[_Place, Label]]:
    """Picture and label of each sample of a shard."""
    keys: set[str] = set()
    with open(shard, "rb") as file:  # noqa: PTH123
        for key, places in _groups(shard, file):
            where = f"shard {shard!r}: sample {key!r}"
            if key in keys:
                raise ValueError(f"{where} comes again after others, expected its files side by side: sort the tar")
            keys.add(key)
            kinds = [next((each for each in choices if each in places), "") for choices in wanted.values()]
            if lacking := [name for name, kind in zip(wanted, kinds, strict=True) if not kind]:
                told = f"{where} has no {lacking[0]}, only {', '.join(places)}"
                raise ValueError(f"{told}; expected {' or '.join(wanted[lacking[0]])}: say which by {lacking[0]}=")
            picture, label = (places[kind] for kind in kinds)
            yield picture, _label(where, kinds[1], os.pread(file.fileno(), label.size, label.start), target)
    if not keys:
        raise ValueError(f"shard {shard!r} is empty, expected samples, such as 0001.jpg and 0001.cls")


def _groups(shard: str, file: BinaryIO) -> Iterator[tuple[str, dict[str, _Place]]]:
    """Key, and files by extension, of neighbouring members of one key."""
    last, places = "", dict[str, _Place]()
    for member in _members(shard, file):
        key, extension = tariterators.base_plus_ext(member.name)
        if key is None or not member.isreg() or member.issparse() or _META.match(member.name):
            continue
        if key != last and places:
            yield last, places
            places = {}
        last, extension = key, extension.lower()
        if extension in places:
            raise ValueError(f"shard {shard!r}: sample {key!r} has two files .{extension}, expected one")
        places[extension] = _Place(member.name, member.offset_data, member.size)
    if places:
        yield last, places


def _members(shard: str, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """All members of a tar, up to the mark of its end; tarfile itself takes a damaged header for that."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                yield member
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            end = tar.offset
    except tarfile.TarError as error:
        raise ValueError(f"shard {shard!r} is truncated or no tar ({error}), {_CURE}") from error
    if os.pread(file.fileno(), tarfile.BLOCKSIZE, end) != bytes(tarfile.BLOCKSIZE):
        raise ValueError(f"shard {shard!r} is truncated or damaged at byte {end}, {_CURE}")


def _label(where: str, kind: str, text: bytes, target: Target) -> Label:
    """The label in the bytes of a file."""
    try:
        known = autodecode.basichandlers(kind, text)
        value = text if known is None else known
        return as_label(value if target is None else target(value))
    except Exception as error:
        cure = "mend it, or pass target=, a function of what the file holds that returns an integer or a vector"
        told = f"{where}: {type(error).__name__} for the label {text[:40]!r} in .{kind} ({error})"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{told}: {cure}") from error
