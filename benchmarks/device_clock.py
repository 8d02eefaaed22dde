"""Where `benchmarks.device` measures, a GPU or the CPU in disguise, and its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure, or in words why there is none.

    values: one a turn; the median is the figure.  must, aim: see `report.Figure`.  more: what belongs to it.
    """

    name: str
    values: list[float] = field(default_factory=list)
    said: str = ""
    must: float | None = None
    aim: float | None = None
    at_most: bool = False
    more: dict[str, Any] = field(default_factory=dict)


Said = Iterator[Row | str]


@dataclass(frozen=True)
class Scale:
    """How much is measured, and whether on the CPU in disguise."""

    batch: int = 256
    side: int = 224
    pool: int = 64
    sets: int = 4  # of pictures, in rotation, so that no cache of a GPU has them
    turns: int = 24
    epochs: int = 50
    lead: int = 4  # steps that do not count
    steps: int = 20
    rounds: int = 6
    workers: int = 14
    seconds: float = 60  # that a part has
    dry: bool = False


FULL = Scale()
TINY = Scale(batch=4, side=16, pool=3, sets=2, turns=2, epochs=2, lead=1, steps=1, rounds=1, workers=2, dry=True)


class Recorder:
    """A device of the kernels that keeps what is launched, so that it can be launched again without what is around."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.launches: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def launch(self, *call: Any) -> None:
        self._do(lambda: self.device.launch(*call))

    def gather(self, *call: Any) -> None:
        self._do(lambda: self.device.gather(*call))

    def _do(self, launch: Callable[[], None]) -> None:
        self.launches.append(launch)
        launch()


class Gpu:
    """The GPU, with events for a clock."""

    kind = "cuda"

    def __init__(self) -> None:
        from fastmix.kernels.cuda import Cuda
        from fastmix.kernels.cuda_device import CupyDevice

        self.recorder = Recorder(CupyDevice(0, torch))
        self.kernels = Cuda(self.recorder)  # type: ignore[arg-type]
        self._cycles, self.late, self.host = 1 << 22, 0, 0.0

    def place(self, array: NDArray[Any]) -> Any:
        """As the kernels take it."""
        return import_module("cupy").asarray(array)

    def tensor(self, array: NDArray[Any]) -> Any:
        """As a user has it."""
        return torch.from_numpy(array).cuda()

    def seconds(self, work: Callable[[], Any], tries: int = 5) -> float:
        """What `work` takes on the GPU.

        It sleeps until all is launched, for else it would wait for the host, and so would the clock; `late` counts in
        vain.  `host`: how long the launching took.
        """
        for _ in range(tries):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._cycles)
            start.record()
            began = time.perf_counter()
            work()
            self.host = time.perf_counter() - began
            end.record()
            begun = start.query()
            end.synchronize()
            if not begun:
                break
            self._cycles = min(2 * self._cycles, 1 << 26)
        else:
            self.late += 1
        return float(start.elapsed_time(end)) / 1000

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def memory(self) -> tuple[int, int]:
        """Bytes that torch has handed out, and holds."""
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def standing_in(self) -> Any:
        """Nothing has to."""
        return ExitStack()


class Host:
    """The CPU in disguise, by the wall's clock."""

    kind = "cpu"

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.recorder = Recorder(import_module("cuda_host").HostDevice())
        self.kernels = import_module("cuda_host").Cuda(self.recorder)
        self.late, self.host = 0, 0.0

    def place(self, array: NDArray[Any]) -> Any:
        return array.copy()

    tensor = place

    def seconds(self, work: Callable[[], Any], _tries: int = 5) -> float:
        began = time.perf_counter()
        work()
        self.host = time.perf_counter() - began
        return self.host

    def synchronize(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def standing_in(self) -> Any:
        """`mix` and loaders take this for a GPU."""
        device = import_module("fastmix.loaders.torch.device")
        lane = import_module("cuda_lane").HostLane()
        stack = ExitStack()
        stack.enter_context(patch("fastmix.mixing.backend_for", lambda _: self.kernels))
        sender = patch(
            "fastmix.loaders.torch.loader.sender", lambda _, output, *__: device.Sender(lane, getattr(torch, output))
        )
        stack.enter_context(sender)
        return stack


def machine(scale: Scale) -> Any:
    return Host() if scale.dry else Gpu()


def guarded(names: list[str], make: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """The rows of `make`; if it fails, that is said of those of `names` that are not there yet."""
    done = []
    try:
        for row in make():
            done.append(row.name)
            yield row
    except Exception as error:
        said = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield from (Row(name, said=said) for name in names if name not in done)


def pictures(count: int, side: int, seed: int = 0) -> NDArray[np.uint8]:
    """Blurred levels and a little noise, so that neighbours are alike as in photographs."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.integers(0, 248, (min(count, 256), 3, 8, 8)).astype(np.float32))
    large = torch.nn.functional.interpolate(coarse, (side, side), mode="bilinear").to(torch.uint8)
    made = np.resize(large.permute(0, 2, 3, 1).numpy(), (count, side, side, 3))
    made += rng.integers(0, 8, made.shape[1:], dtype=np.uint8)
    return made
