"""Which samples make which batch: arrays of sample numbers, and the ids under which their draws are made."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..rng import Ids, Key, Stream, shuffle

_BLOCK = 4096  # positions that are put in order at a time: small calls cost as much as large ones


@dataclass(frozen=True)
class Order:
    """The batches of an epoch.

    length: samples in the source.  batch_size: samples of a full batch, None if batches come in any size.
    shuffled: by key, else the source's own order.  foreign: batches of sample numbers from somebody else, to be taken
    instead.
    """

    length: int
    batch_size: int | None
    drop_last: bool = False
    shuffled: bool = False
    foreign: Iterable[Iterable[int]] | None = None

    def batches(self, key: Key, start: int = 0) -> Iterator[tuple[Ids, Ids]]:
        """Samples and ids, (N,) int64 each, of the batches from `start` on; raises IndexError for wrong numbers.

        Starting late costs nothing but the drawing of foreign batches.
        """
        if self.foreign is not None:
            yield from numbered_batches(self.foreign, self.length, start)
            return
        assert self.batch_size is not None
        for samples in keyed_batches(
            self.length, self.batch_size, self.drop_last, key if self.shuffled else None, start
        ):
            yield samples, samples

    def batch_of(self, sample: int, key: Key) -> Ids:
        """The batch that a sample is in.  Raises ValueError if that is not known, or it is in none."""
        if self.foreign is not None:
            raise ValueError(f"the mates of sample {sample} are known to its sampler alone: use shuffle=True or False")
        for samples, _ in self.batches(key):
            if sample in samples:
                return samples
        raise ValueError(f"sample {sample} is in no batch of epoch {key.epoch}: drop_last dropped it")


def keyed_batches(length: int, batch_size: int, drop_last: bool, key: Key | None, start: int = 0) -> Iterator[Ids]:
    """Batches `start`, `start` + 1, ... of 0..length - 1, shuffled by `key` if there is one: (N,) int64 each."""
    stop = length // batch_size * batch_size if drop_last else length
    block = max(1, _BLOCK // batch_size) * batch_size
    for low in range(start * batch_size, stop, block):
        numbers = np.arange(low, min(low + block, stop))
        if key is not None:
            numbers = shuffle(numbers, length, key, Stream.SHUFFLE)
        yield from (numbers[at : at + batch_size] for at in range(0, len(numbers), batch_size))


def numbered_batches(batches: Iterable[Iterable[int]], length: int, start: int = 0) -> Iterator[tuple[Ids, Ids]]:
    """Foreign batches from `start` on, each with its ids.

    The k-th time a sample comes, its id is sample + k length, so that its draws are new each time.
    """
    times = array("L", bytes(array("L").itemsize * length))
    for number, batch in enumerate(batches):
        samples = np.array([int(sample) for sample in batch], np.int64)
        if samples.size and not 0 <= samples.min() <= samples.max() < length:
            low, high = samples.min(), samples.max()
            raise IndexError(f"batch {number} of the sampler has samples {low} to {high}, expected 0..{length - 1}")
        ids = samples.copy()
        for row, sample in enumerate(samples.tolist()):
            ids[row] += length * times[sample]
            times[sample] += 1
        if number >= start:
            yield samples, ids
