"""What a loader keeps for its next epoch: memory for batches, and a pool of the right size."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..pools import fit_pool, open_pool
from ..types import Pool


def _references(arrays: list[NDArray[Any]], i: int) -> int:
    return sys.getrefcount(arrays[i])


_UNUSED = _references([np.empty(0)], 0)


class Buffers:
    """Memory that is lent, and lent again once nobody refers to it any more.

    Whoever uses a part of an array, be it a view or a tensor made of it, refers to the array; so its reference count
    tells whether it is free.  At most `keep` arrays are remembered; one that is in use when it is forgotten belongs to
    its user alone.  new: makes a flat array of so many items, if it is no ordinary one.
    """

    def __init__(self, keep: int, dtype: DTypeLike, new: Callable[[int], NDArray[Any]] | None = None):
        self._keep, self._dtype, self._new = keep, dtype, new or partial(np.empty, dtype=dtype)
        self._arrays: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def lend(self, count: int) -> NDArray[Any]:
        """A flat array of at least `count` items, with anything in it."""
        with self._lock:
            free = [i for i in range(len(self._arrays)) if _references(self._arrays, i) == _UNUSED]
            for i in free:
                if self._arrays[i].size >= count:
                    return self._arrays[i]
            if free or len(self._arrays) == self._keep:
                del self._arrays[free[0] if free else 0]
            self._arrays.append(self._new(count))
            return self._arrays[-1]

    def __len__(self) -> int:
        """How many arrays are remembered."""
        return len(self._arrays)


class Kept:
    """Buffers and the fitted pool of a loader.  A copy or a pickle of it is a new, empty one."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Buffers] = {}
        self._fitted: tuple[object, tuple[int, int], Pool] | None = None
        self._made: tuple[Any, Any] | None = None

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def buffers(
        self, name: str, keep: int, dtype: DTypeLike, new: Callable[[int], NDArray[Any]] | None = None
    ) -> Buffers:
        """Memory for one purpose; what was kept for the same purpose in another number or dtype is let go."""
        have = self._buffers.get(name)
        if have is None or (have._keep, have._dtype) != (keep, dtype):
            have = self._buffers[name] = Buffers(keep, dtype, new)
        return have

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """What was made by that name last time, else a new one."""
        if self._made is None or self._made[0] != name:
            self._made = name, make()
        return self._made[1]

    def pool(self, given: Pool | str | Path | None, size: tuple[int, int]) -> Pool:
        """A pool, or the file of one, or the default one, fitted to pictures of `size` (H, W)."""
        if self._fitted is None or self._fitted[0] is not given or self._fitted[1] != size:
            self._fitted = given, size, fit_pool(open_pool(given), size)
        return self._fitted[2]
