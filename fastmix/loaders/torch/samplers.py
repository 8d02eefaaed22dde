"""The order of samples, drawn by key, as a sampler of torch's kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from ...engine import keyed_batches
from ...rng import Key


class KeyedSampler(Sampler[int]):
    """A new random permutation of 0..len(data_source) - 1 for each epoch, a pure function of (seed, epoch).

    seed: None takes `torch.initial_seed()`, which moves no generator.
    """

    def __init__(self, data_source: Any, seed: int | None = None):
        self.data_source, self.seed, self.epoch = data_source, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        key = Key(torch.initial_seed() if self.seed is None else self.seed, self.epoch)
        for block in keyed_batches(len(self), 4096, False, key):
            yield from block.tolist()


def own_sampler(dataset: Any, shuffle: bool, seed: int | None, generator: torch.Generator | None) -> Sampler[int]:
    """The sampler that is meant when none is given."""
    if not shuffle:
        return SequentialSampler(dataset)
    return KeyedSampler(dataset, seed) if generator is None else RandomSampler(dataset, generator=generator)


def samplers_of(loader: Any) -> list[Any]:
    """Whatever may know of the epoch besides the loader."""
    return [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]


def tell_epoch(parts: list[Any], epoch: int) -> None:
    """Call `set_epoch` of all parts that have it, once each."""
    for part in {id(part): part for part in parts}.values():
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def other_epoch(samplers: list[Any], told: int) -> int | None:
    """The epoch of the first sampler whose epoch is not the one it was told."""
    epochs = (getattr(part, "epoch", None) for part in samplers)
    return next((epoch for epoch in epochs if isinstance(epoch, int) and epoch != told), None)
