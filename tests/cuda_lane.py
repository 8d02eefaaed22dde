"""A GPU for the loader that is the CPU in disguise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from cuda_host import HostDevice

from fastmix.kernels.cuda import Cuda


class HostLane:
    """What `CudaLane` does, in NumPy's memory; it tells what was asked for, and done only when it is told so."""

    def __init__(self, finished: bool = True) -> None:
        self.calls: list[str] = []
        self.device, self.finished, self.where = HostDevice(), finished, threading.local()

    @contextmanager
    def working(self) -> Iterator[None]:
        self.where.inside = True
        yield
        self.where.inside = False

    def memory(self, count: int) -> Any:
        self.calls.append("memory")
        return np.full(count, 77, np.uint8)

    def upload(self, array: Any) -> Any:
        assert self.where.inside
        self.calls.append("upload")
        return array.copy()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        assert self.where.inside
        return torch.full(shape, 77, dtype=dtype).numpy()

    def backend(self, array: Any) -> Any:
        assert self.where.inside and isinstance(array, np.ndarray)
        return Cuda(self.device)

    def mark(self) -> HostLane:
        self.calls.append("mark")
        return self

    def query(self) -> bool:
        return self.finished

    def hand_over(self, tensor: Any, done: Any) -> Any:
        assert done is self
        self.calls.append("hand over")
        return tensor
