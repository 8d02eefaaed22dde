"""Which samples make which batch, how far an epoch has come, and both as a state that can be saved."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import index

import numpy as np

from ..rng import Ids, Key, Stream, shuffle

STREAM_VERSION = 1  # raise it whenever the same seed gives other batches
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
        samples = np.array([index(sample) for sample in batch], np.int64)
        if samples.size and not 0 <= samples.min() <= samples.max() < length:
            low, high = samples.min(), samples.max()
            raise IndexError(f"batch {number} of the sampler has samples {low} to {high}, expected 0..{length - 1}")
        ids = samples.copy()
        for row, sample in enumerate(samples.tolist()):
            ids[row] += length * times[sample]
            times[sample] += 1
        if number >= start:
            yield samples, ids


@dataclass
class Run:
    """An epoch under way.

    batch: how many have been handed out.  last: fingerprint of the samples of the last of them.
    """

    seed: int
    epoch: int
    batch: int = 0
    last: int = 0

    def handed_out(self, samples: Ids) -> None:
        """Count a batch."""
        self.batch, self.last = self.batch + 1, fingerprint(samples)


def fingerprint(samples: Ids) -> int:
    """A number that tells batches apart."""
    return zlib.crc32(np.ascontiguousarray(samples, np.int64).tobytes())


class Progress:
    """The epochs of one loader."""

    def __init__(self) -> None:
        self.epoch = 0  # the next one
        self.seed: int | None = None  # of a state that was loaded
        self._run: Run | None = None
        self._resumed: Run | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch; a state that was loaded in the middle of another one no longer counts."""
        Key(0, epoch)
        epoch = int(epoch)
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        self.epoch, self._run = epoch, None

    def begin(self, seed: int) -> Run:
        """Start the next epoch."""
        self._run = self._resumed or Run(seed, self.epoch)
        self._resumed, self.epoch = None, self._run.epoch + 1
        return self._run

    def end(self, run: Run) -> None:
        """All batches of `run` were handed out."""
        if self._run is run:
            self._run = None

    def state(self, seed: int, facts: Mapping[str, int]) -> dict[str, int]:
        """What is to be saved.  facts: what must be the same when it is loaded."""
        run = self._resumed or self._run or Run(seed, self.epoch)
        return {"stream_version": STREAM_VERSION, **asdict(run), **facts}

    def load(self, state: Mapping[str, int], seed: int | None, facts: Mapping[str, int]) -> Progress:
        """Go on from a state at the next `begin`; returns itself.  Raises ValueError if it does not fit."""
        facts = {"stream_version": STREAM_VERSION, **({} if seed is None else {"seed": seed}), **facts}
        expected = {"stream_version", "seed", "epoch", "batch", "last", *facts}
        if not isinstance(state, Mapping) or set(state) != expected:
            have = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"the state has {have}, expected {sorted(expected)}: pass what state_dict() returned")
        for name, value in state.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r} in the state, expected an integer >= 0")
        for name, value in facts.items():
            if state[name] != value:
                raise ValueError(
                    f"the state has {name}={state[name]}, this loader {value}: the batches would not be those that are "
                    "still due; make the loader as it was"
                )
        if state["batch"] > state["batches"]:
            raise ValueError(f"the state is at batch {state['batch']} of {state['batches']}: it is damaged")
        Key(state["seed"], state["epoch"])
        self.seed, self.epoch, self._run = state["seed"], state["epoch"], None
        self._resumed = Run(state["seed"], state["epoch"], state["batch"], state["last"])
        return self
