"""CUDA C++ is compiled for every kind of GPU it is meant for, by the compiler that CuPy will use, without a GPU."""

from __future__ import annotations

import re
import sys

import pytest
from cuda_host import signatures
from cupy.cuda import nvrtc

from fastmix.kernels.cuda_device import OPTIONS, source


def compiled(arch: int) -> str:
    """What ptxas says of all kernels; raises if it does not compile."""
    program = nvrtc.createProgram(source(), "fastmix.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch=sm_{arch}", "-Xptxas=-v", *OPTIONS))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    return str(nvrtc.getProgramLog(program)).replace("\0", "")


@pytest.mark.parametrize("arch", [80, 90, None], ids=["sm_80", "sm_90", "newest"])
def test_all_kernels_compile_without_a_warning(arch: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    arch = max(nvrtc.getSupportedArchs()) if arch is None else arch
    said = compiled(arch)
    assert "warning" not in said
    used = dict(re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", said, re.DOTALL))
    assert set(used) == set(signatures(source()))
    spilled = {name: sum(map(int, re.findall(r"(\d+) bytes spill", part))) for name, part in _parts(said).items()}
    shared = {name: sum(map(int, re.findall(r"(\d+) bytes smem", part))) for name, part in _parts(said).items()}
    rows = [f"  {name:20} {count:>4} {shared[name]:>6} {spilled[name]:>5}" for name, count in used.items()]
    with capsys.disabled():
        sys.stdout.write("\n".join([f"\nsm_{arch}: registers, bytes of shared memory, bytes spilled", *rows, ""]))
    # A few registers of the fold may spill, whole arrays may not: then a loop over them was not unrolled.
    assert max(spilled.values()) < 192 and max(shared.values()) <= 48 * 1024
    assert not re.search(r"[1-9]\d{3,} bytes stack frame", said)


def _parts(said: str) -> dict[str, str]:
    """What is said of each kernel."""
    pieces = re.split(r"Compiling entry function '(\w+)'", said)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))
