"""What the tests of the loader share: small real data sets, methods with a small pool, and the digest of a stream."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fastmix import AugMix, CutMix, DataLoader, IPMix, LayerMix, MixUp, PixMix, Pool
from fastmix.photos import cut_photos

COUNT, BATCH, SIZE = 21, 8, 48
POOL = Pool(np.random.default_rng(5).integers(0, 256, (5, 60, 60, 3), dtype=np.uint8))
METHODS = {
    "plain": None,
    "mixup": MixUp(),
    "cutmix": CutMix(mode="elem"),
    "augmix": AugMix(),
    "pixmix": PixMix.imagenet(pool=POOL),
    "ipmix": IPMix.imagenet(pool=POOL),
    "layermix": LayerMix.imagenet(pool=POOL),
}


def make_photos(root: Path) -> Path:
    """COUNT JPEGs of real photographs, about 500 x 375 px, in a folder a class."""
    cut_photos(root, COUNT)
    return root


def make_arrays(count: int = 70, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Random pictures in memory and their labels."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8), rng.integers(0, 10, count)


def loader_of(dataset: Any, **options: Any) -> DataLoader:
    """A shuffling loader, one seed for all tests."""
    return DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 11, "size": SIZE, **options})


def tensors(batch: Any) -> list[Any]:
    """All tensors of a batch, labels of pairs included."""
    images, labels = batch
    return [images, *labels] if isinstance(labels, tuple) else [images, labels]


def digest(batches: Iterable[Any]) -> str:
    """One number for all bytes, shapes and dtypes of a stream."""
    made = hashlib.sha256()
    for batch in batches:
        for tensor in tensors(batch):
            made.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            made.update(tensor.contiguous().numpy().tobytes())
    return made.hexdigest()


def digests(loader: DataLoader, epochs: int = 1) -> list[str]:
    """The digest of each of the next epochs."""
    return [digest(loader) for _ in range(epochs)]


class Sleepy:
    """Samples that take no time, but for one."""

    def __init__(self, slow: int, seconds: float):
        self.slow, self.seconds, self.free = slow, seconds, threading.Event()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == self.slow:
            self.free.wait(self.seconds)
        return np.full((4, 4, 3), index, np.uint8), index


def threads() -> list[str]:
    """The loader's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastmix")]
