"""How the CPU kernels are compiled: serial, without the GIL, IEEE arithmetic, cached on disk where that is possible."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import platformdirs
from llvmlite import ir
from numba import types as nb
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering, NativeLowering
from numba.extending import intrinsic

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_KEPT_S = 30 * 24 * 3600


def _cache_folder() -> str | None:
    """A writable folder that is new whenever a kernel source changes: Numba itself watches only one file a function."""
    if numba.config.CACHE_DIR:
        return str(numba.config.CACHE_DIR)
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = Path(platformdirs.user_cache_dir("fastmix")) / f"kernels-{digest.hexdigest()[:16]}"
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(folder)  # in use
    except OSError:
        return None
    if new:
        _remove_unused(folder.parent)
    return str(folder) if os.access(folder, os.W_OK) else None


def _remove_unused(caches: Path) -> None:
    """Remove the kernels of former sources that no process has used for long."""
    for old in caches.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - _KEPT_S:
                shutil.rmtree(old)


_FOLDER = _cache_folder()
if _FOLDER is None:
    warnings.warn(
        "no writable cache folder: fastmix compiles its kernels in every process (set NUMBA_CACHE_DIR)", stacklevel=2
    )


class _WideLower(Lower):  # type: ignore[misc]
    """Asks for the widest vectors: LLVM takes half of them on all processors, for the first ones slowed down."""

    def setup_function(self, fndesc: Any) -> None:
        super().setup_function(fndesc)
        set.add(self.function.attributes, '"prefer-vector-width"="512"')  # llvmlite's own `add` knows only some names


@register_pass(mutates_CFG=True, analysis_only=False)
class _WideLowering(BaseNativeLowering):  # type: ignore[misc]
    _name = "fastmix_wide_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return _WideLower


class _WideCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [
            (_WideLowering, why) if step is NativeLowering else (step, why) for step, why in manager.passes
        ]
        manager.finalize()
        return [manager]


if llvm.get_host_cpu_features().get("avx512bf16"):  # where 512 bits cost no clock rate: not on the first that had them
    _OPTIONS["pipeline_class"] = _WideCompiler


def jit(function: Callable[..., Any]) -> Any:
    """Compile an entry point or a helper; never decorate one function twice."""
    saved, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _FOLDER or ""
    try:
        return numba.njit(cache=_FOLDER is not None, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_DIR = saved


@intrinsic  # type: ignore[untyped-decorator]
def fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """The fused multiply-add of float32: one rounding, so the bits are the same on every processor."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return nb.float32(nb.float32, nb.float32, nb.float32), emit


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, _address: Any) -> Any:
    """Ask for the memory at an address, uint64, which need not be one; LLVM: to read, for the second cache, data."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word, place = ir.IntType(32), builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(ask, [place, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return nb.none(nb.uint64), emit


def compile_module(module: types.ModuleType) -> types.SimpleNamespace:
    """The plain functions of `module`, compiled, in their order: each sees the compiled form of those before it."""
    # LLVM leaves calls of long functions alone, and loops with such calls do not vectorise.
    compiler = numba.njit(inline="always", **_OPTIONS)
    names = {**vars(module), "fma": fma}
    made = types.SimpleNamespace()
    for name, function in vars(module).items():
        if isinstance(function, types.FunctionType) and name != "fma":
            copy = types.FunctionType(function.__code__, names, name, function.__defaults__)
            names[name] = compiler(copy)
            setattr(made, name, names[name])
    return made
