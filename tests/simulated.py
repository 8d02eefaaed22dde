"""The kernels of gather.py as real kernels of Numba's CUDA simulator, each against the reference.

A program of its own, for the simulator is chosen when Numba is imported: NUMBA_ENABLE_CUDASIM=1 python simulated.py.
Prints a line a kernel; the first wrong value ends it.  Its cases and shells are also those of the other tests.
"""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import config, cuda

from fastmix.kernels import OP, Op, gather, reference

SMALL = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 3)]
GUARD = 77  # a value of outputs that nobody writes

Case = tuple[tuple[Any, ...], Any, Any]  # what a body takes after start and step; its output; what that becomes


def matrices(rng: np.random.Generator, count: int, size: tuple[int, int]) -> Any:
    """(count, 6) maps of every sort: turns, shears, shifts by whole pixels, edges that are met just so, far away."""
    height, width = size
    made = np.tile([1.0, 0, 0, 0, 1, 0], (count, 1))
    for row in range(count):
        kind = row % 8
        if kind == 0:
            made[row] += rng.integers(-64, 65, 6) / [64, 64, 16, 64, 64, 16]
        elif kind == 1:
            made[row, [2, 5]] = rng.integers(-3, 4, 2)
        elif kind == 2:  # a quarter, a half, three quarters: cosines that are nearly 0
            angle = rng.integers(1, 4) * np.pi / 2
            cos, sin = np.cos(angle), np.sin(angle)
            x, y = width / 2, height / 2
            made[row] = cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
        elif kind == 3:
            made[row] = -1, 0, width, 0, 1, rng.integers(-1, 2)
        elif kind == 4:
            made[row, [2, 5]] = rng.choice([-1e12, 1e12, 0, 1e300], 2)
        elif kind == 5:
            made[row] *= rng.uniform(0.1, 9)
        elif kind == 6:  # round shears about the centre
            shear = rng.integers(-9, 10) / 10
            made[row, [1, 2]] = shear, -shear * height / 2
        else:
            made[row] += rng.normal(0, 0.3, 6) * [1, 1, width, 1, 1, height]
    return made


def warp_case(rng: np.random.Generator, size: tuple[int, int], count: int) -> Case:
    """`count` jobs that read all three memories and write, in any order, pictures of the one that some read."""
    height, width = size
    images = rng.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    pool = rng.integers(0, 256, (2, height + 3, width + 5, 3), dtype=np.uint8)
    shared = rng.integers(0, 256, (count + 4, height, width, 3), dtype=np.uint8)
    places = rng.permutation(count + 4)
    buffer, soft = rng.integers(0, 3, count).astype(np.int32), rng.integers(0, 2, count).astype(np.int32)
    offset, pitch, p = np.zeros(count, np.int64), np.full(count, 3 * width), matrices(rng, count, size)
    slot, expected = places[:count].astype(np.int64), shared.copy()
    for j in range(count):
        if buffer[j] == 1:
            which, top, left = rng.integers(0, 2), rng.integers(0, 4), rng.integers(0, 6)
            pitch[j] = 3 * (width + 5)
            offset[j] = which * pool[0].size + top * pitch[j] + 3 * left
            source = pool[which, top : top + height, left : left + width]
        else:
            which = rng.integers(0, 3) if buffer[j] == 0 else places[count + rng.integers(0, 4)]
            offset[j] = which * images[0].size
            source = (images if buffer[j] == 0 else shared)[which]
        op = np.zeros(1, OP)
        op["code"], op["p"] = Op.FLOAT_WARP if soft[j] else Op.WARP, p[j]
        reference.op(source[None], op, expected[slot[j]][None], 0, 1)
    flat = shared.reshape(-1)
    jobs = (buffer, offset, pitch, slot, soft, p)
    return (images.reshape(-1), pool.reshape(-1), flat, *jobs, height, width, flat), flat, expected.reshape(-1)


def bits_case(rng: np.random.Generator, size: tuple[int, int], count: int) -> Case:
    """Numbers that end within a block, of samples whose numbers need more than 32 bits."""
    ids, words = rng.integers(0, 2**47, count), rng.integers(0, 2**32, 3, dtype=np.uint32)
    ids[0], words[2], stream = 0, 2**32 - 1, int(rng.integers(0, 2**16))
    out = np.full((count, size[0] * size[1]), GUARD, np.uint32)
    expected = out.copy()
    reference.bits(ids, words, stream, expected)
    return (ids, *(np.uint64(word) for word in words), np.uint64(stream), out), out, expected


def table_case(rng: np.random.Generator, size: tuple[int, int], count: int) -> Case:
    images = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    tables = rng.integers(0, 256, (count, 3, 256), dtype=np.uint8)
    out, expected = np.full(images.size, GUARD, np.uint8), np.empty_like(images)
    reference.table(images, tables, expected, 0, count)
    return (images.reshape(-1), tables.reshape(-1), images[0].size, out), out, expected.reshape(-1)


def distances_case(rng: np.random.Generator, size: tuple[int, int], count: int) -> Case:
    """Some rows are equal, whose distance is 0."""
    maps = rng.random((count, size[0] * size[1])).astype(np.float32)
    others = rng.random((count + 2, maps.shape[1])).astype(np.float32)
    others[:2] = maps[0]
    out, expected = np.full((count, count + 2), GUARD, np.float64), np.empty((count, count + 2))
    reference.distances(maps, others, expected, 0, count)
    return (maps, others, out), out, expected


CASES: dict[str, Callable[[np.random.Generator, tuple[int, int], int], Case]] = {
    "warp": warp_case,
    "bits": bits_case,
    "table": table_case,
    "distances": distances_case,
}


def check(name: str, size: tuple[int, int], count: int, seed: int, run: Callable[..., None]) -> int:
    """One case: `run` takes what the body does after start and step.  Returns the number of values compared."""
    arguments, out, expected = CASES[name](np.random.default_rng(seed), size, count)
    run(*arguments)
    if name == "distances":
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=0, err_msg=f"{name} {size}")
        np.testing.assert_array_equal(out[0, :2], 0)
    else:
        np.testing.assert_array_equal(out, expected, err_msg=f"{name} {size}")
    return int(out.size)


def shells(unfused: Callable[..., Any] | None = None) -> SimpleNamespace:
    """What a GPU starts: a function for each body, which takes its turns from its place in the grid.

    It takes a tuple, whose parts become the parameters of the kernel; Numba-CUDA cannot compile a kernel of `*values`.
    """

    def shell(body: Any) -> Any:
        run = cuda.jit(device=True)(body)

        def kernel(values):  # type: ignore[no-untyped-def]
            run(cuda.grid(1), cuda.gridsize(1), *values)

        return kernel

    return gather.compiled(shell, cuda.jit(device=True), unfused)


def started(kernel: Any) -> Callable[..., None]:
    """A kernel on a grid of six threads: fewer than most cases have turns, more than the smallest have."""
    return lambda *values: kernel[2, 3](values)


def lines() -> Iterator[str]:
    """Every kernel on small pictures."""
    for name, shell in vars(shells()).items():
        run = started(cuda.jit(shell))
        values = sum(
            check(name, size, count, seed, run)
            for seed, (size, count) in enumerate([(size, count) for size in SMALL for count in (1, 9)])
        )
        yield f"{name}: {values} values"


if __name__ == "__main__":
    if not config.ENABLE_CUDASIM:
        sys.exit("NUMBA_ENABLE_CUDASIM is not set: set it to 1")
    for line in lines():
        sys.stdout.write(line + "\n")
