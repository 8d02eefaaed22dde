"""The GPU's kernels on a GPU, for checks that know NumPy alone: arrays go there, and come back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

# Parameters that are arrays on the device; the others are NumPy's, see `fastmix.kernels.cuda.Cuda`.
_THERE = {"images", "pool", "sources", "out", "maps", "others", "levels", "thresholds", "areas", "sums", "tables"}


@cache
def has_gpu() -> bool:
    """Whether CUDA tests can run: a GPU, with CuPy and Numba-CUDA."""
    if find_spec("cupy") is None or find_spec("numba_cuda") is None:
        return False
    import cupy

    try:
        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


class There:
    """Every kernel of `Cuda`, called with NumPy arrays."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., None]:
        kernel = getattr(self._kernels, name)
        names = kernel.__code__.co_varnames[1 : kernel.__code__.co_argcount]

        @functools.wraps(kernel)
        def call(*args: Any) -> None:
            import cupy

            sent = {n: _sent(a) if n in _THERE else a for n, a in zip(names, args, strict=True)}
            kernel(**sent)
            for name, given in zip(names, args, strict=True):
                if name in _THERE and isinstance(given, np.ndarray):
                    back = cupy.asnumpy(sent[name])
                    if given.flags.writeable:
                        given[...] = back
                    else:
                        np.testing.assert_array_equal(given, back)

        return call


def _sent(given: Any) -> Any:
    import cupy

    return [cupy.asarray(each) for each in given] if isinstance(given, list) else cupy.asarray(given)


@cache
def backend() -> Any:
    """The GPU's kernels, on it."""
    from fastmix.kernels.cuda import backend as kernels

    return There(kernels())
