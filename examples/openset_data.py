"""The pictures of `gradmix_openset.py`: Fashion-MNIST's IDX files, or any folder with one subfolder a class."""

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.utils.data import Subset

from fastmix import ArrayDataset
from fastmix.datasets import Source, known_labels, open_source
from fastmix.learn.protocols import Split

SIZE = 32  # px, of all pictures that the network sees
DEFAULT = Path("/usr/share/datasets/fashion-mnist")
_IDX = "{part}-{kind}-ubyte.gz"
_PARTS = [_IDX.format(part=part, kind=kind) for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
_UINT8 = 8  # the type code of IDX files


@dataclass(frozen=True)
class Pictures:
    """A data set with all its classes.

    labels: (N,) class numbers.  test: (N,) bool, not to train on; None where nobody has divided the data set.
    whole: pictures have SIZE already and are tested as they are, not cut.
    """

    name: str
    source: Source
    labels: np.ndarray
    test: np.ndarray | None
    whole: bool

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class OpenSet:
    """What one run trains and tests on; labels are those of the data set."""

    split: Split
    train: Subset
    known: Subset
    unknown: Subset
    whole: bool


def open_pictures(folder: Path) -> Pictures:
    """Read the IDX files of a folder, or list its subfolders.  Raises OSError or ValueError with the fix."""
    if all((folder / name).exists() for name in _PARTS):
        return _idx(folder)
    if folder.is_dir() and any(child.is_dir() for child in folder.iterdir()):
        source = open_source(folder)
        labels = known_labels(source)
        assert labels is not None
        return Pictures(folder.name, source, labels, None, whole=False)
    raise FileNotFoundError(
        f"{folder} has neither Fashion-MNIST's files ({', '.join(_PARTS)}) nor one subfolder a class: "
        "sudo apt-get install dataset-fashion-mnist puts them into " + str(DEFAULT)
    )


def divide(pictures: Pictures, seed: int, known: int, train: int | None, test: int | None) -> OpenSet:
    """Draw the known classes by the seed, and at most `train` and `test` pictures of each class.

    Where the data set has no test part, half of each class is drawn for it.  Raises ValueError for a number of known
    classes that leaves nothing to tell apart.
    """
    if not 2 <= known < pictures.num_classes:
        raise ValueError(f"known is {known}, expected 2..{pictures.num_classes - 1}: the other classes are the unknown")
    draws = np.random.default_rng(seed)
    chosen = np.sort(draws.permutation(pictures.num_classes)[:known]).tolist()
    split = Split.of(pictures.name, chosen, pictures.num_classes)
    trained: list[np.ndarray] = []
    tested: list[np.ndarray] = []
    for label in range(pictures.num_classes):
        rows = draws.permutation(np.flatnonzero(pictures.labels == label))
        if pictures.test is None:
            halves = rows[len(rows) // 2 :], rows[: len(rows) // 2]
        else:
            halves = rows[~pictures.test[rows]], rows[pictures.test[rows]]
        trained.append(halves[0][:train])
        tested.append(halves[1][:test])

    def of(parts: list[np.ndarray], classes: tuple[int, ...]) -> Subset:
        return Subset(pictures.source, np.sort(np.concatenate([parts[c] for c in classes])))

    return OpenSet(
        split, of(trained, split.known), of(tested, split.known), of(tested, split.unknown), whole=pictures.whole
    )


def _idx(folder: Path) -> Pictures:
    train, train_labels, test, test_labels = (_read(folder / name) for name in _PARTS)
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    grey = np.concatenate([train, test])
    height, width = grey.shape[1:]
    if max(height, width) > SIZE:
        raise ValueError(f"the pictures of {folder} have {height} x {width} pixels, expected at most {SIZE} x {SIZE}")
    top, left = (SIZE - height) // 2, (SIZE - width) // 2
    images = np.zeros((len(grey), SIZE, SIZE, 3), np.uint8)  # a black border, for halvings without a rest
    images[:, top : top + height, left : left + width] = grey[..., None]
    held_out = np.arange(len(labels)) >= len(train)
    return Pictures(folder.name, ArrayDataset(images, labels), labels, held_out, whole=True)


def _read(path: Path) -> np.ndarray:
    """An IDX file of bytes: two zeros, type, number of axes, the axes as big-endian numbers, and the values."""
    data = gzip.decompress(path.read_bytes())
    axes = data[3] if data[:3] == bytes([0, 0, _UINT8]) else 0
    shape = tuple(np.frombuffer(data, ">u4", axes, 4).tolist()) if len(data) >= 4 + 4 * axes else ()
    if not axes or len(data) != 4 + 4 * axes + math.prod(shape):
        raise ValueError(f"{path} is no IDX file of bytes, or not a whole one: get it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
