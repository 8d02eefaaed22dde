"""Each method's two halves, at 32 x 32 and 224 x 224, one thread: drawing a batch, and mixing 16 real photo crops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.own import METHODS, PLAIN
from fastmix import AugMix, Batch, CutMix, IPMix, Key, LayerMix, Method, MixUp, PixMix, Pool, make_pool
from fastmix.kernels import backend_for
from fastmix.photos import cut_patches
from fastmix.pools import fit_pool

N = 16
KEY = Key(2)  # one in which MixUp's only weight is neither next to 0 nor to 1
SMALL: dict[str, Method] = {
    "mixup": MixUp.cifar(),
    "cutmix": CutMix.cifar(),
    "augmix": AugMix.cifar(),
    "pixmix": PixMix.cifar(),
    "ipmix": IPMix.cifar(),
    "layermix": LayerMix.cifar(),
}
LARGE = {name: method for name, method in METHODS.items() if name != PLAIN}
CASES = [
    pytest.param(method, side, id=f"{name}-{side}")
    for side, methods in ((32, SMALL), (224, LARGE))
    for name, method in methods.items()
]


@pytest.fixture(scope="module")
def fractals(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return make_pool(tmp_path_factory.mktemp("pool") / "pool.npy", 16)


def prepared(method: Any, fractals: Pool, side: int) -> Any:
    """The method with pool pictures of the right size, if it wants any."""
    return replace(method, pool=fit_pool(fractals, (side, side))) if hasattr(method, "pool") else method


@pytest.mark.parametrize(("method", "side"), CASES)
def test_draw(benchmark: Any, fractals: Pool, method: Method, side: int) -> None:
    """A batch of 512 small ones or 128 large ones; a draw looks at the shape of the pictures alone."""
    method, rows = prepared(method, fractals, side), 512 if side == 32 else 128
    batch = Batch.of(np.zeros((rows, side, side, 3), np.uint8), np.zeros(rows, np.int64))
    benchmark.extra_info["images"] = rows
    params = benchmark(method.draw, KEY, batch)
    assert len(params.program.steps) == rows


@pytest.mark.parametrize(("method", "side"), CASES)
def test_mix(benchmark: Any, fractals: Pool, method: Method, side: int) -> None:
    """The programs of N samples; one seed, so that a method always does the same work."""
    method = prepared(method, fractals, side)
    batch = Batch.of(*cut_patches(N, side=side))
    program, pool = method.draw(KEY, batch).program, getattr(method, "pool", None)
    pictures = batch.images[:0] if pool is None else np.asarray(pool.images)
    out = np.empty_like(batch.images)
    mix = backend_for(out).mix
    mix(batch.images, pictures, program, out, 0, N)
    benchmark.extra_info["images"] = N
    benchmark(mix, batch.images, pictures, program, out, 0, N)
    assert (out != batch.images).any()
