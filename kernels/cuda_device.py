"""A GPU as the kernels see it: memory, copies and launches, by CuPy and Numba-CUDA, and torch's memory for tensors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import gather

Array = Any  # on the device: of one dtype, C-contiguous; what comes from a user has `__cuda_array_interface__`

_SOURCES = ("common.cu", "fold.cu", "ops.cu", "resize.cu", "masks.cu")
OPTIONS = ("-std=c++17", "-fmad=false")  # a product is rounded before it is added to, as on a CPU
_THREADS, _FEWEST, _BLOCKS = 256, 128, 1 << 16  # of a gather; Numba warns of less than 128 blocks
_PART = 1 << 26  # bytes of a pool that are copied at a time
_ALIGNED = 16  # bytes
_INTERFACE = "__cuda_array_interface__"


def source() -> str:
    """The CUDA C++ of all kernels, one translation unit."""
    folder = Path(__file__).with_name("cuda")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in _SOURCES)


class Device(Protocol):
    """Memory and launches of one device; its work is done in order."""

    def array(self, given: Any) -> Array:
        """An array on the device, as it is or (NumPy) copied there."""

    def clear(self, array: Array) -> None:
        """Make it all zeros."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """New memory, with anything in it."""

    def upload(self, *arrays: NDArray[Any]) -> list[Array]:
        """Copies of NumPy arrays of any dtype as flat bytes, at multiples of 16."""

    def keep(self, pool: Any) -> Array:
        """A large array on the device; NumPy's is copied there once, for as long as it lives here."""

    def address(self, array: Array) -> int:
        """Where the array starts."""

    def launch(self, name: str, grid: tuple[int, int], threads: int, *args: Any) -> None:
        """Start a kernel of `source()` on a grid of pictures by parts of one.

        Numbers are NumPy scalars of the types that it declares.
        """

    def gather(self, body: Callable[..., None], count: int, *args: Any) -> None:
        """Start a body of `gather.py`, which has `count` turns to take."""


class CupyDevice:
    """A GPU by its number, and its current stream: torch's for tensors, else CuPy's.

    torch: the module, if what is worked on are tensors; memory then comes from its allocator, for one pool is enough.
    Launches and copies do not wait for the device.  Nothing here touches CUDA before the first call.
    """

    def __init__(self, number: int, torch: Any = None):
        self._number, self._torch = number, torch
        self._kept: dict[tuple[Any, ...], Array] = {}

    def array(self, given: Any) -> Array:
        """See `Device.array`."""
        if isinstance(given, np.ndarray):
            return self.upload(given)[0].view(given.dtype).reshape(given.shape)
        with self._stream():
            return _cupy().asarray(given)

    def clear(self, array: Array) -> None:
        """See `Device.clear`."""
        with self._stream():
            array = _cupy().asarray(array)
            array.data.memset_async(0, array.nbytes)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Device.empty`."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self._stream():
            if self._torch is None:
                return _cupy().empty(shape, dtype)
            memory = self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{self._number}")
            return _cupy().asarray(memory).view(dtype).reshape(shape)

    def upload(self, *arrays: NDArray[Any]) -> list[Array]:
        """See `Device.upload`."""
        starts = np.cumsum([0, *[-(-each.nbytes // _ALIGNED) * _ALIGNED for each in arrays]])
        size = max(int(starts[-1]), 1)
        with self._stream():
            if self._torch is None:
                joined = np.empty(size, np.uint8)
            else:  # page-locked, or the copy would wait for all work before it; torch keeps it until that is done
                locked = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
                joined = locked.numpy()
            for start, each in zip(starts, arrays, strict=False):
                joined[start : start + each.nbytes] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)
            # CuPy copies by page-locked memory of its own.
            sent = joined if self._torch is None else locked.to(f"cuda:{self._number}", non_blocking=True)
            flat = _cupy().asarray(sent)
        return [flat[start : start + each.nbytes] for start, each in zip(starts, arrays, strict=False)]

    def keep(self, pool: Any) -> Array:
        """See `Device.keep`."""
        if not isinstance(pool, np.ndarray):
            return self.array(pool)
        if not len(pool):
            return self.empty(pool.shape, pool.dtype)
        with self._stream():
            key = pool.ctypes.data, pool.shape
            if key not in self._kept:
                made, rows = self.empty(pool.shape, pool.dtype), max(1, _PART // max(pool[:1].nbytes, 1))
                for low in range(0, len(pool), rows):
                    made[low : low + rows] = self.array(pool[low : low + rows])
                _cupy().cuda.get_current_stream().synchronize()  # once: whoever takes it later may use another stream
                self._kept[key] = made
                weakref.finalize(_owner(pool), self._forget, key).atexit = False
            return self._kept[key]

    def address(self, array: Array) -> int:
        """See `Device.address`."""
        return int(array.__cuda_array_interface__["data"][0])

    def launch(self, name: str, grid: tuple[int, int], threads: int, *args: Any) -> None:
        """See `Device.launch`."""
        with self._stream():
            _module().get_function(name)(grid, (threads,), tuple(map(self._plain, args)))

    def gather(self, body: Callable[..., None], count: int, *args: Any) -> None:
        """See `Device.gather`."""
        cuda = numba_cuda()
        with self._stream() as stream:
            # Numba would wait for the stream that an array comes from; it is this one.
            given = [cuda.as_cuda_array(a, sync=False) if hasattr(a, _INTERFACE) else a for a in map(self._plain, args)]
            blocks = min(max(-(-count // _THREADS), _FEWEST), _BLOCKS)
            if count:
                getattr(_gathers(), body.__name__)[blocks, _THREADS, cuda.external_stream(stream)](tuple(given))

    def _forget(self, key: tuple[Any, ...]) -> None:
        """Let a pool go, when nobody can be at work on it."""
        _cupy().cuda.Device(self._number).synchronize()
        self._kept.pop(key, None)

    def _plain(self, value: Any) -> Any:
        """Tensors as CuPy's arrays, which launches take."""
        return _cupy().asarray(value) if hasattr(value, _INTERFACE) else value

    @contextmanager
    def _stream(self) -> Iterator[int]:
        """Work on this device, and on torch's stream there if it is torch's; yields the stream's address."""
        cupy, torch = _cupy(), self._torch
        with cupy.cuda.Device(self._number):
            if torch is None:
                yield cupy.cuda.get_current_stream().ptr
                return
            stream = torch.cuda.current_stream(self._number)
            with torch.cuda.device(self._number), cupy.cuda.Stream.from_external(stream):
                yield stream.cuda_stream


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory this is, or a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@cache
def _cupy() -> Any:
    try:
        return import_module("cupy")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError('mixing on a GPU needs CuPy and Numba-CUDA: pip install "fastmix[gpu]"') from missing


@cache
def numba_cuda() -> Any:
    """The module `numba.cuda`; release 0.30 asks NumPy, as it is loaded, for a name that 2.5 has no longer."""
    cuda, lacking = import_module("numba.cuda"), "row_stack" not in vars(np)
    if lacking:
        vars(np)["row_stack"] = np.vstack
    try:
        import_module("numba.cuda.np.arrayobj")
    finally:
        if lacking:
            del vars(np)["row_stack"]
    return cuda


@cache
def _module() -> Any:
    """The CUDA C++, which CuPy compiles for each device at its first launch, and keeps on disk."""
    return _cupy().RawModule(code=source(), options=OPTIONS)


@cache
def _gathers() -> Any:
    """The bodies of `gather.py` as kernels."""
    cuda = numba_cuda()

    def shell(body: Any) -> Any:
        run = cuda.jit(device=True)(body)

        def kernel(values):  # type: ignore[no-untyped-def]
            run(cuda.grid(1), cuda.gridsize(1), *values)

        return cuda.jit(kernel)

    return gather.compiled(shell, cuda.jit(device=True), cuda.libdevice.dmul_rn)
