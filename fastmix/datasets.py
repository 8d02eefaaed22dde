"""What users have, made into one thing that a loader can read: a `Source`.

Folders and torchvision datasets of files are read as encoded bytes, arrays in memory as whole blocks, and any other
map-style dataset sample by sample.  torch is recognised by its methods and never imported.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .images import as_picture, is_tensor
from .kernels import U8
from .types import Batch

__all__ = ["IMAGE_EXTENSIONS", "ArrayDataset", "Item", "Source", "open_source"]

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
Label = int | NDArray[np.float32]

_ACCEPTED = (
    "a folder with one subfolder a class, an (images, labels) pair of arrays, or a map-style dataset (with __len__ and "
    "__getitem__) of (PIL image | HWC uint8 array | CHW uint8 tensor | encoded bytes, label)"
)


class Item(NamedTuple):
    """One sample: an encoded file or (H, W, 3) uint8; a class number or (C,) float32; the path of the file, if any."""

    data: bytes | U8
    label: Label
    path: str | None = None


@runtime_checkable
class Source(Protocol):
    """Random access to samples 0..len - 1, from any thread if the dataset behind it allows that."""

    @property
    def classes(self) -> list[str] | None:
        """Class names in the order of their numbers, if known."""

    def __len__(self) -> int:
        """How many samples there are."""

    def path(self, index: int, /) -> str | None:
        """The file of a sample, if it has one of its own."""

    def read(self, index: int, /) -> Item:
        """One sample.  Raises OSError for an unreadable file, TypeError or ValueError if it is no (picture, label)."""

    def read_many(self, indices: Sequence[int], /) -> list[Item] | None:
        """Samples in order, fetched at once; None unless the dataset has a way to do so (`__getitems__`)."""

    def read_block(self, indices: NDArray[np.int64], /) -> tuple[U8, NDArray[Any]] | None:
        """(N, H, W, 3) uint8 pictures and labels; None unless the pictures are one array."""


def open_source(dataset: Any) -> Source:
    """Make a `Source` of a folder path, a pair of arrays or a map-style dataset; a `Source` is returned as it is.

    torchvision datasets of files (`samples`) or arrays (`data`, `targets`) without a transform are read directly, also
    inside `torch.utils.data.Subset`; so files get the EXIF orientation that torchvision ignores.  Other datasets are
    asked for samples.

    Raises TypeError for anything else, and OSError for a folder that is missing, unreadable or without pictures.
    """
    if isinstance(dataset, (str, Path)):
        return _folder(str(dataset))
    if isinstance(dataset, Source):
        return dataset
    if isinstance(dataset, tuple) and len(dataset) == 2 and hasattr(dataset[0], "shape"):
        return ArrayDataset(*dataset)
    torch_data = sys.modules.get("torch.utils.data")
    by_index = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, dict)
    if not by_index or (torch_data is not None and isinstance(dataset, torch_data.IterableDataset)):
        raise TypeError(f"dataset is a {type(dataset).__name__}, expected {_ACCEPTED}")
    if torch_data is not None and type(dataset) is torch_data.Subset:
        source = open_source(dataset.dataset)
        return _Subset(source, _sample_numbers(dataset.indices, len(source)))
    if _is_plain_torchvision(dataset):
        if hasattr(dataset, "samples") and _has_own_loader(dataset):
            labels = np.array([label for _, label in dataset.samples], np.int64)
            paths = _Paths.of(path for path, _ in dataset.samples)
            return _Files(paths, labels, _classes(dataset), dataset.target_transform)
        pictures = getattr(dataset, "data", None)
        if _is_block(pictures) and hasattr(dataset, "targets") and dataset.target_transform is None:
            return ArrayDataset(pictures, dataset.targets, _classes(dataset))
    return _Map(dataset, _classes(dataset))


class ArrayDataset:
    """Pictures in memory (or memory-mapped), also usable as a map-style dataset of (picture, label).

    images: (N, H, W, 3) uint8.  labels: (N,) integers or (N, C) in [0, 1].

    Raises TypeError or ValueError that names the array.
    """

    def __init__(self, images: Any, labels: Any, classes: list[str] | None = None):
        if hasattr(images, "__cuda_array_interface__"):
            raise TypeError(f"images are a {type(images).__name__} on a GPU, expected a NumPy array: CPUs cut crops")
        batch = Batch.of(images, labels)
        self.images, self.targets, self.classes = batch.images, batch.targets.a, classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[U8, Any]:
        return self.images[index], self.targets[index]

    def path(self, _index: int) -> None:
        """See `Source`."""

    def read(self, index: int) -> Item:
        """See `Source`."""
        return Item(self.images[index], as_label(self.targets[index]))

    def read_many(self, _indices: Sequence[int]) -> None:
        """See `Source`."""

    def read_block(self, indices: NDArray[np.int64]) -> tuple[U8, NDArray[Any]]:
        """See `Source`.  Raises IndexError for an index outside 0..len - 1."""
        if len(indices) and not 0 <= np.min(indices) <= np.max(indices) < len(self):
            raise IndexError(f"indices run from {np.min(indices)} to {np.max(indices)}, expected 0..{len(self) - 1}")
        return self.images[indices], self.targets[indices]


@dataclass(frozen=True)
class _Paths:
    """Many paths in two buffers: a Python object a sample would be copied page by page into every forked process."""

    text: bytes
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, paths: Iterable[Any]) -> _Paths:
        text, ends = bytearray(), array("q", [0])
        for path in paths:
            text += os.fsencode(path)
            ends.append(len(text))
        return cls(bytes(text), np.frombuffer(ends, np.int64))

    def __getitem__(self, index: int) -> str:
        start, end = self.ends[index : index + 2].tolist()
        return os.fsdecode(self.text[start:end])


@dataclass(frozen=True)
class _Files:
    """Encoded files with class numbers; `target` is the dataset's target_transform."""

    paths: _Paths
    targets: NDArray[np.int64]
    classes: list[str] | None
    target: Callable[[int], Any] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def _label(self, index: int) -> Label:
        number = int(self.targets[index])
        return number if self.target is None else as_label(self.target(number))

    def path(self, index: int) -> str:
        return self.paths[range(len(self))[index]]

    def read(self, index: int) -> Item:
        path = self.path(index)
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a Path for each sample would cost as much again)
            return Item(file.read(), self._label(index), path)

    def read_many(self, _indices: Sequence[int]) -> None:
        return None

    def read_block(self, _indices: NDArray[np.int64]) -> None:
        return None


@dataclass(frozen=True)
class _Map:
    """Any map-style dataset."""

    dataset: Any
    classes: list[str] | None

    def __len__(self) -> int:
        return len(self.dataset)

    def path(self, _index: int) -> None:
        return None

    def read(self, index: int) -> Item:
        return _item(self.dataset[int(index)], int(index))

    def read_many(self, indices: Sequence[int]) -> list[Item] | None:
        if not hasattr(self.dataset, "__getitems__"):
            return None
        wanted = [int(i) for i in indices]
        samples = self.dataset.__getitems__(wanted)
        if len(samples) != len(wanted):
            raise ValueError(f"__getitems__ gave {len(samples)} samples for {len(wanted)} indices, expected one each")
        return [_item(sample, i) for sample, i in zip(samples, wanted, strict=True)]

    def read_block(self, _indices: NDArray[np.int64]) -> None:
        return None


@dataclass(frozen=True)
class _Subset:
    """Some samples of another source."""

    source: Source
    indices: NDArray[np.int64]

    @property
    def classes(self) -> list[str] | None:
        return self.source.classes

    def __len__(self) -> int:
        return len(self.indices)

    def path(self, index: int) -> str | None:
        return self.source.path(int(self.indices[index]))

    def read(self, index: int) -> Item:
        return self.source.read(int(self.indices[index]))

    def read_many(self, indices: Sequence[int]) -> list[Item] | None:
        return self.source.read_many([int(self.indices[i]) for i in indices])

    def read_block(self, indices: NDArray[np.int64]) -> tuple[U8, NDArray[Any]] | None:
        return self.source.read_block(self.indices[indices])


def _sample_numbers(indices: Any, length: int) -> NDArray[np.int64]:
    """The indices of a Subset, counted from the front."""
    numbers = np.asarray(indices)
    if numbers.size and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
        raise TypeError(
            f"the indices of a Subset are {numbers.dtype} {numbers.shape}, expected a list of sample numbers: "
            "make them from a mask with np.flatnonzero(mask)"
        )
    if numbers.size and not -length <= numbers.min() <= numbers.max() < length:
        raise IndexError(
            f"the indices of a Subset run from {numbers.min()} to {numbers.max()}, expected 0..{length - 1}"
        )
    return np.where(numbers < 0, numbers + length, numbers).astype(np.int64)


def known_labels(source: Source) -> NDArray[Any] | None:
    """(N,) or (N, C) labels that are known without reading samples: of arrays, and of files if nothing changes them."""
    if isinstance(source, ArrayDataset) or (isinstance(source, _Files) and source.target is None):
        return source.targets
    return None


def _folder(root: str) -> _Files:
    if not os.path.exists(root):  # noqa: PTH110 (Path.exists raises for what may not be looked at)
        raise FileNotFoundError(f"dataset folder {root!r} does not exist: expected a folder with one subfolder a class")
    if not Path(root).is_dir():
        raise NotADirectoryError(f"dataset {root!r} is a file, expected a folder with one subfolder a class")
    try:
        classes = sorted(child.name for child in Path(root).iterdir() if child.is_dir())
        files = [_pictures(str(Path(root, name))) for name in classes]
    except PermissionError as error:
        raise PermissionError(
            f"{error.filename!r} in the dataset folder {root!r} cannot be listed: allow reading it (chmod u+rx)"
        ) from error
    if not classes:
        raise FileNotFoundError(f"dataset folder {root!r} has no subfolders, expected one a class with pictures in it")
    counts = [len(names) for names in files]
    if not all(counts):
        empty = ", ".join(name for name, count in zip(classes, counts, strict=True) if not count)
        kinds = " ".join(IMAGE_EXTENSIONS)
        raise FileNotFoundError(
            f"class folders without pictures in {root!r}: {empty}; add files ({kinds}) or remove them"
        )
    return _Files(_Paths.of(chain.from_iterable(files)), np.repeat(np.arange(len(classes)), counts), classes)


def _pictures(root: str) -> list[str]:
    """Picture files below `root`, in torchvision's order; links are followed, except back to a folder they lie in."""
    found = []
    for folder, children, names in os.walk(root, followlinks=True, onerror=_raise):
        children[:] = [name for name in children if not _is_loop(Path(folder, name))]
        found.append((folder, sorted(name for name in names if name.lower().endswith(IMAGE_EXTENSIONS))))
    return [f"{folder}{os.sep}{name}" for folder, names in sorted(found) for name in names]


def _is_loop(child: Path) -> bool:
    return child.is_symlink() and child.parent.resolve().is_relative_to(child.resolve())


def _raise(error: OSError) -> None:
    raise error


def _is_plain_torchvision(dataset: Any) -> bool:
    """Whether `dataset[i]` is torchvision's own code with no transform, so that it may be read behind its back."""
    module = getattr(type(dataset).__getitem__, "__module__", "") or ""
    return module.startswith("torchvision.datasets.") and getattr(dataset, "transform", None) is None


def _has_own_loader(dataset: Any) -> bool:
    return getattr(getattr(dataset, "loader", None), "__module__", "") == "torchvision.datasets.folder"


def _is_block(images: Any) -> bool:
    return isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] == 3


def _classes(dataset: Any) -> list[str] | None:
    names = getattr(dataset, "classes", None)
    return [str(name) for name in names] if isinstance(names, (list, tuple)) else None


def _item(sample: Any, index: int) -> Item:
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise TypeError(f"sample {index} of the dataset is a {type(sample).__name__}, expected a pair (picture, label)")
    try:
        return Item(as_picture(sample[0]), as_label(sample[1]))
    except TypeError as error:
        raise TypeError(f"sample {index} of the dataset: {error}") from None
    except ValueError as error:
        raise ValueError(f"sample {index} of the dataset: {error}") from None


def as_label(value: Any) -> Label:
    """A class number as int, or a soft or multi-hot label as (C,) float32; from Python, NumPy and torch values.

    Raises TypeError for anything else, such as a single float or a string.
    """
    label = np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)
    if label.ndim == 0 and label.dtype.kind in "iub":
        return int(label)
    if label.ndim == 1 and label.size and label.dtype.kind in "iubf":
        return label.astype(np.float32)
    shown = f"of shape {label.shape}" if label.ndim else repr(value)
    raise TypeError(f"the label is {shown}, expected an integer or a (C,) vector")
