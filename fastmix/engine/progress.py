"""Which epoch is next, how far the present one has come, and both as a state that can be saved."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ..rng import Ids, Key

STREAM_VERSION = 1  # raise it whenever the same seed gives other batches


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
        epoch = int(epoch)
        Key(0, epoch)
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

    def load(self, state: Mapping[str, int], seed: int | None, facts: Mapping[str, int]) -> None:
        """Go on from a state at the next `begin`.  Raises ValueError if it does not fit."""
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
