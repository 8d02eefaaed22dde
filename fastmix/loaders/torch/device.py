"""Crops that are sent to a GPU, and mixed there while the model is at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ...engine import Job, Kept
from ...kernels import U8, backend_for


class Sent(NamedTuple):
    """A batch on its way: the pictures as they are handed out, and what tells that they are done."""

    images: Any
    done: Any


class CudaLane:
    """A stream beside the user's, on one device; nothing happens before the first call."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream: Any = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do what follows on the stream."""
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self._stream):
                yield

    def memory(self, count: int) -> U8:
        """Page-locked bytes, from which copies do not wait."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()

    def upload(self, array: Any) -> Any:
        """A copy on the device, made while others work."""
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """New memory on the device."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def backend(self, array: Any) -> Any:
        """The kernels for an array of the device."""
        return backend_for(array)

    def mark(self) -> Any:
        """An event: `query()` says whether all that was begun so far is done."""
        return torch.cuda.current_stream().record_event()

    def hand_over(self, tensor: torch.Tensor, done: Any) -> torch.Tensor:
        """Let the user's current stream wait for it, and the memory wait for that stream when it is freed."""
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().wait_event(done)
            tensor.record_stream(torch.cuda.current_stream())
        return tensor


class Sender:
    """Takes the crops of finished jobs to a device, and mixes and writes them there.

    lane: a `CudaLane`.  dtype: of the batch.  Threads may send at the same time.
    """

    def __init__(self, lane: Any, dtype: torch.dtype):
        self._lane, self._dtype = lane, dtype
        self._flying: list[tuple[Any, U8]] = []
        self._lock = threading.Lock()

    def memory(self, count: int) -> U8:
        """Bytes for the crops of a batch."""
        return self._lane.memory(count)  # type: ignore[no-any-return]

    def __call__(self, job: Job) -> Sent:
        """Begin to copy and to mix; nothing waits."""
        output, size, n = job.recipe.output, job.recipe.crop.size, len(job.samples)
        with self._lane.working():
            crops = self._lane.upload(job.out)
            made = self._lane.empty(output.shape(len(job.views) * n, size), _STORED.get(self._dtype, self._dtype))
            kernels = self._lane.backend(crops)
            for view, (crop, params) in enumerate(job.views):
                seen, out = crops[crop * n : (crop + 1) * n], made[view * n : (view + 1) * n]
                if params is None:
                    kernels.to_float(seen, output.table, out, output.channels_last, 0, n)
                else:
                    pool = job.recipe.pool
                    kernels.mix_float(seen, pool, params.program, output.table, out, output.channels_last, 0, n)
            done = self._lane.mark()
        with self._lock:  # crops must not be lent again before they are copied
            self._flying = [*((event, held) for event, held in self._flying if not event.query()), (done, job.out)]
        images = torch.as_tensor(made).view(self._dtype)
        return Sent(images.permute(0, 3, 1, 2) if output.channels_last else images, done)

    def hand_over(self, sent: Sent, labels: list[torch.Tensor]) -> list[torch.Tensor]:
        """[images, *labels], ordered against the user's current stream."""
        images = self._lane.hand_over(sent.images, sent.done)
        return [images, *(label.to(images.device, non_blocking=True) for label in labels)]


_STORED = {torch.bfloat16: torch.int16}  # no array interface knows it; its bits are written


def check_device(device: Any) -> torch.device | None:
    """The GPU that is meant; None for None and "cpu".

    Raises ValueError for another kind of device, or where torch has no CUDA.
    """
    try:
        meant = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        meant = torch.device("meta")  # which is none either
    if meant.type == "cpu":
        return None
    if meant.type != "cuda":
        raise ValueError(f"device is {device!r}, expected None, 'cpu' or 'cuda': move the batches with .to(device)")
    if torch.version.cuda is None:
        raise ValueError(f"device is {device!r}, but this torch is built without CUDA: install another, or pass None")
    return meant


def sender(device: Any, output: str, kept: Kept) -> Sender | None:
    """What takes batches to a device, kept for the next epoch; None if they stay.

    Raises RuntimeError where there is no GPU.
    """
    meant = check_device(device)
    if meant is None:
        return None
    if not torch.cuda.is_available():
        raise RuntimeError(f"device is {device!r}, but torch finds no GPU here: pass device=None")
    # Other threads have a current device of their own.
    index = torch.cuda.current_device() if meant.index is None else meant.index
    here = torch.device("cuda", index)
    made: Sender = kept.once((here, output), lambda: Sender(CudaLane(here), getattr(torch, output)))
    return made
