"""A device that is none: CUDA C++ compiled by g++, gathers by Numba for the CPU, and memory that is NumPy's."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np

from fastmix.kernels import cuda_device, gather
from fastmix.kernels.cuda import Cuda

SHIM = Path(__file__).with_name("cuda_host.h")
FLAGS = ["-O2", "-std=c++17", "-ffp-contract=off", "-fPIC", "-shared"]
FLAGS += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"]
_KERNEL = re.compile(r'extern "C" __global__ (COOPERATIVE )?void\s+(?:__launch_bounds__\(\d+\)\s+)?(\w+)\(([^)]*)\)')
# What a parameter of the C++ says of the argument that is passed.
_TYPES = {
    "int": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
_TYPES |= {"u8": np.uint8, "u16": np.uint16}


def signatures(source: str) -> dict[str, tuple[bool, list[tuple[str, bool]]]]:
    """Of each kernel: whether it works in phases, and each parameter's type and whether it is a pointer."""
    found = {}
    for phases, name, parameters in _KERNEL.findall(source):
        kinds = [re.sub(r"const|__restrict__", "", part).split() for part in " ".join(parameters.split()).split(",")]
        found[name] = bool(phases), [(words[0].rstrip("*"), "*" in "".join(words)) for words in kinds]
    return found


@cache
def library() -> tuple[ctypes.PyDLL, dict[str, tuple[bool, list[tuple[str, bool]]]]]:
    """All kernels, compiled once."""
    source = cuda_device.source()
    kernels = signatures(source)
    launchers = "".join(
        f'extern "C" void launch_{name}(unsigned w, unsigned h, unsigned t, void** a) '
        f"{{ run({name}, {str(phases).lower()}, w, h, t, a); }}\n"
        for name, (phases, _) in kernels.items()
    )
    text = f'#include "{SHIM}"\n{source}\n{launchers}'
    digest = hashlib.sha256((SHIM.read_text() + text).encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"fastmix-host-{os.getuid()}-{digest}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory() as folder:
            code, built = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            code.write_text(text)
            subprocess.run(["g++", *FLAGS, str(code), "-o", str(built)], check=True)
            part = made.with_suffix(f".{os.getpid()}")
            part.write_bytes(built.read_bytes())
            part.replace(made)
    return ctypes.PyDLL(str(made)), kernels  # with the GIL: the shim knows one thread


class HostDevice:
    """What `fastmix.kernels.cuda` asks of a device, on the CPU; every argument is checked against the C++ signature."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, int, int]] = []

    def array(self, given: Any) -> Any:
        return np.asarray(given)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.full(shape, 77, dtype)

    def clear(self, array: Any) -> None:
        array[...] = 0

    def upload(self, *arrays: Any) -> list[Any]:
        return [np.ascontiguousarray(each).view(np.uint8).reshape(-1).copy() for each in arrays]

    def keep(self, pool: Any) -> Any:
        return np.asarray(pool)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def launch(self, name: str, grid: tuple[int, int], threads: int, *args: Any) -> None:
        compiled, kernels = library()
        _, parameters = kernels[name]
        assert len(args) == len(parameters), f"{name} takes {len(parameters)} arguments, got {len(args)}"
        values: list[Any] = []
        for (kind, pointer), value in zip(parameters, args, strict=True):
            if pointer:
                assert isinstance(value, np.ndarray) and value.flags.c_contiguous, f"{name}: {kind}* from {type(value)}"
                assert kind not in _TYPES or value.dtype in (_TYPES[kind], np.uint8), (
                    f"{name}: {kind}* from {value.dtype}"
                )
                values.append(ctypes.c_void_p(value.ctypes.data))
            else:
                assert isinstance(value, _TYPES[kind]), f"{name}: {kind} from {type(value)}"
                values.append(np.ctypeslib.as_ctypes(np.array(value)))
        assert 0 < grid[0] < 2**31 and 0 < grid[1] < 2**16 and 0 < threads <= 1024
        self.launched.append((name, *grid))
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
        getattr(compiled, f"launch_{name}")(*grid, threads, pointers)

    def gather(self, body: Callable[..., None], count: int, *args: Any) -> None:
        self.launched.append((body.__name__, count, 1))
        getattr(gathers(), body.__name__)(np.int64(0), np.int64(1), *args)


@cache
def gathers() -> Any:
    """The bodies of gather.py for the CPU."""
    return gather.compiled(numba.njit(error_model="numpy"), numba.njit(inline="always", error_model="numpy"))


@cache
def backend() -> Cuda:
    """The GPU's kernels on the CPU."""
    return Cuda(HostDevice())
