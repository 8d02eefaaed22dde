"""What fastmix promises beside speed: the same bytes however they are made, and bounded memory."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from benchmarks.own import METHODS, own_loader

# (threads, prefetch); without threads nothing is made ahead, and torch refuses a prefetch_factor.
SETTINGS = [(0, None), *((threads, prefetch) for threads in (1, 2, 4) for prefetch in (1, 2, 4))]


def digest(batches: Iterable[Any]) -> str:
    """SHA-256 of all pixels, labels and label weights of an epoch, in order; batches are [images, (a, b, w)]."""
    made = hashlib.sha256()
    for images, labels in batches:
        for tensor in (images, *labels):
            made.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            made.update(tensor.contiguous().numpy())
    return made.hexdigest()


def digests(folder: Path, name: str, images: int = 256) -> set[str]:
    """The different digests of one shuffled epoch, made with each of SETTINGS: one, if the promise holds."""
    data = Subset(ImageFolder(folder), range(images))
    options = {"batch_size": 32, "mix": METHODS[name], "labels": "pair"}
    return {digest(own_loader(data, num_workers=n, prefetch_factor=ahead, **options)) for n, ahead in SETTINGS}


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process.  before: with everything imported and compiled; peaks: highest so far, by epoch."""

    before: int
    peaks: list[int]
    bound: int

    @property
    def of_bound(self) -> float:
        """What the loader took at most, as a share of what `memory_bound()` says."""
        return (self.peaks[-1] - self.before) / self.bound

    @property
    def after_first(self) -> float:
        """The peak of all epochs, as a share of the first one's."""
        return self.peaks[-1] / self.peaks[0]


def memory(folder: Path, name: str, epochs: int = 3) -> Memory:
    """Run `epochs` in a new process and watch its memory.

    A loader of its own, with batches of one picture, first compiles the kernels and is thrown away, so that no buffer
    of the measured one is in `before`.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_watch, folder, name, epochs).result()


def _watch(folder: Path, name: str, epochs: int) -> Memory:
    _compile(folder, name)
    before, peaks = _resident("VmRSS"), []
    loader = own_loader(folder, mix=METHODS[name])
    for _ in range(epochs):
        for _batch in loader:  # held for one step, as in training
            pass
        peaks.append(_resident("VmHWM"))
    return Memory(before, peaks, loader.memory_bound())


def _compile(folder: Path, name: str) -> None:
    data = Subset(ImageFolder(folder), range(32))
    for _ in own_loader(data, batch_size=1, mix=METHODS[name]):
        pass
    gc.collect()


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak so far) of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
