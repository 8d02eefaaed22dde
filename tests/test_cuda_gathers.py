"""The bodies of kernels/gather.py: compiled for the CPU, under the CUDA simulator, and by the compiler for GPUs."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from checks import picture
from PIL import Image
from simulated import CASES, SMALL, check, table_case, warp_case

from fastmix.kernels import gather
from fastmix.kernels.cuda_device import _gathers, numba_cuda
from fastmix.rng import Key

ROOT = Path(__file__).parents[1]
SIZES = [*SMALL, (37, 29), (64, 48)]


@pytest.fixture(scope="module")
def bodies() -> SimpleNamespace:
    """Compiled as a backend does it on a CPU."""
    return gather.compiled(numba.njit(nogil=True), numba.njit(inline="always"))


def in_one(body: Any) -> Any:
    """All turns, by one thread."""
    return lambda *arguments: body(0, 1, *arguments)


# -- on the CPU -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_the_bodies_are_the_reference(bodies: SimpleNamespace, name: str, size: tuple[int, int]) -> None:
    for seed in range(6):
        check(name, size, 1 + 4 * seed, seed, in_one(getattr(bodies, name)))


@pytest.mark.parametrize("name", CASES)
def test_large_pictures(bodies: SimpleNamespace, name: str) -> None:
    check(name, (224, 224), 8, 1, in_one(getattr(bodies, name)))


@pytest.mark.parametrize("name", CASES)
def test_turns_do_not_depend_on_each_other(bodies: SimpleNamespace, name: str) -> None:
    def last_thread_first(*arguments: Any) -> None:
        for start in range(6, -1, -1):
            getattr(bodies, name)(start, 7, *arguments)

    check(name, (13, 9), 5, 2, last_thread_first)


def test_a_thread_does_its_own_turns_only(bodies: SimpleNamespace) -> None:
    arguments, out, expected = table_case(np.random.default_rng(0), (5, 7), 3)
    before = out.copy()
    bodies.table(2, 5, *arguments)
    np.testing.assert_array_equal(out, np.where(np.arange(out.size) % 5 == 2, expected, before))
    arguments, out, expected = warp_case(np.random.default_rng(0), (5, 7), 1)
    before = out.copy()
    bodies.warp(2, 5, *arguments)
    pixel = np.arange(out.size) // 3 % 35
    np.testing.assert_array_equal(out, np.where(pixel % 5 == 2, expected, before))


@pytest.mark.parametrize("kind", ["noise", "smooth", "two", "constant"])
def test_warp_is_pillows(bodies: SimpleNamespace, kind: str) -> None:
    """Coefficients are multiples of 1/64 or 1/16, so that every order of the sums gives the same coordinate."""
    rng = np.random.default_rng(5)
    for height, width in SIZES:
        image = picture(int(rng.integers(0, 99)), (height, width), kind)
        p = np.array([[1.0, 0, 0, 0, 1, 0]]) + rng.integers(-64, 65, (1, 6)) / [64, 64, 16, 64, 64, 16]
        out = np.empty(image.size, np.uint8)
        none, zero = np.zeros(1, np.int32), np.zeros(1, np.int64)
        flat, pitch = image.reshape(-1), np.array([3 * width])
        bodies.warp(0, 1, flat, flat, flat, none, zero, pitch, zero, none, p, height, width, out)
        pillow = Image.fromarray(image).transform(
            (width, height), Image.Transform.AFFINE, p[0].tolist(), Image.Resampling.BILINEAR
        )
        np.testing.assert_array_equal(out.reshape(image.shape), np.asarray(pillow))


def test_bits_are_those_of_the_host(bodies: SimpleNamespace) -> None:
    key, ids = Key(seed=0x0123456789ABCDEF, epoch=7), np.array([0, 5, 0xABCD12345678])
    out = np.empty((3, 10), np.uint32)
    bodies.bits(0, 1, ids, *(np.uint64(word) for word in key.words[:3]), np.uint64(9), out)
    np.testing.assert_array_equal(out, key.bits(ids, 9, 10))


def test_places_beyond_2_gib(bodies: SimpleNamespace) -> None:
    """Memory that nobody touches costs nothing: the pictures are at its end."""
    far, image = 2**31 // 12 + 1, picture(3, (2, 2))  # pictures of 12 values
    memory = np.zeros(12 * (far + 2), np.uint8)
    memory[12 * far : 12 * far + 12] = image.reshape(-1)
    none, p = np.zeros(1, np.int32), np.array([[-1.0, 0, 2, 0, 1, 0]])
    places = np.array([12 * far]), np.array([6]), np.array([far + 1])
    small = memory[:12]
    bodies.warp(0, 1, small, small, memory, none + 2, *places, none, p, 2, 2, memory)
    np.testing.assert_array_equal(memory[-12:].reshape(2, 2, 3), image[:, ::-1])
    size, start = 3 << 24, len(memory) - 12  # now pictures of 48 MiB, of which the last one is reversed
    tables = np.zeros((start // size + 1, 3, 256), np.uint8)
    tables[-1] = np.arange(256)[::-1]
    expected = 255 - memory[start:]
    bodies.table(start, 1, memory, tables.reshape(-1), size, memory)
    np.testing.assert_array_equal(memory[start:], expected)


def test_distances_of_equal_squares_do_not_drift(bodies: SimpleNamespace) -> None:
    """A single long sum rounds the same way again and again: 1e-11 after a million squares."""
    maps, out = np.full((1, 10**6), 0.1, np.float32), np.empty((1, 1))
    bodies.distances(0, 1, maps, np.zeros_like(maps), out)
    np.testing.assert_allclose(out[0, 0], 1e6 * float(np.float32(0.1)) ** 2, rtol=1e-12)


# -- on a simulated GPU ---------------------------------------------------------------------------------------------


def simulate(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | variables
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    program = [sys.executable, str(ROOT / "tests" / "simulated.py")]
    return subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_simulator_agrees() -> None:
    done = simulate(NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [*CASES]
    assert all(int(line.split()[1]) > 100 for line in done.stdout.splitlines())


def test_the_simulator_is_asked_for() -> None:
    done = simulate()
    assert done.returncode != 0 and "set it to 1" in done.stderr


# -- for a GPU ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[(8, 0), (9, 0)], ids=["sm_80", "sm_90"])
def ptx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The code of every kernel.  No GPU is needed, but device functions ask which one there is."""
    cuda = numba_cuda()
    from numba import types as nb
    from numba.cuda import dispatcher

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=request.param))
    u8, i32, i64, u64 = nb.uint8[::1], nb.int32[::1], nb.int64[::1], nb.uint64
    f32, f64 = nb.float32[:, ::1], nb.float64[:, ::1]
    signatures = {
        "warp": (u8, u8, u8, i32, i64, i64, i64, i32, f64, nb.int64, nb.int64, u8),
        "bits": (i64, u64, u64, u64, u64, nb.uint32[:, ::1]),
        "table": (u8, u8, nb.int64, u8),
        "distances": (f32, f32, f64),
    }
    made = {name: kernel.py_func for name, kernel in vars(_gathers()).items()}
    taken = {name: nb.void(nb.Tuple(values)) for name, values in signatures.items()}
    return {name: cuda.compile_ptx(made[name], taken[name], cc=request.param)[0] for name in CASES} | {
        "target": "sm_{}{}".format(*request.param)
    }


def test_gpus_get_code(ptx: dict[str, str]) -> None:
    target = ptx.pop("target")
    for code in ptx.values():
        assert f".target {target}" in code and ".visible .entry" in code
        assert "call" not in code  # all that the bodies call is part of them
    # Mixed integers would have become float64, and a fused a b + c moves the edge of a warp.
    assert "f64" not in ptx["bits"] + ptx["table"]
    assert "fma" not in ptx["warp"] and "mul.rn.f64" in ptx["warp"]
