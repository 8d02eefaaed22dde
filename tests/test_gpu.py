"""On a GPU: every kernel against the reference, every method against the CPU, streams, races and memory.

The same checks run without a GPU on the kernels' code (the `cuda` backend, `test_loader_device.py`); these are about
the device, and need nothing but torch, CuPy and Numba-CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cuda_real import backend, has_gpu

import fastmix
from fastmix.kernels import OP, Mode, Op, Program, Source, Where, reference

if not has_gpu():
    pytest.skip("no NVIDIA GPU here, or CuPy or Numba-CUDA are not installed", allow_module_level=True)
pytestmark = pytest.mark.gpu

SIZES = [(1, 1), (5, 3), (37, 29), (64, 48), (224, 224)]
N = 6
RNG = np.random.default_rng(0)


def smooth(shape: tuple[int, ...]) -> Any:
    """Pictures without noise: 4 x 4 levels, enlarged."""
    count, height, width = shape[:3]
    levels = torch.from_numpy(RNG.integers(0, 256, (count, 3, 4, 4)).astype(np.float32))
    large = torch.nn.functional.interpolate(levels, (height, width), mode="bicubic").clamp(0, 255)
    return large.permute(0, 2, 3, 1).to(torch.uint8).numpy().copy()


def both(kernel: str, *args: Any, outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """What the GPU and the reference write."""
    made, expected = [each.copy() for each in outs], [each.copy() for each in outs]
    getattr(backend(), kernel)(*args, *made, 0, N)
    getattr(reference, kernel)(*args, *expected, 0, N)
    return made, expected


def assert_levels(made: Any, expected: Any, share: float) -> None:
    """No level further apart than one, and few of these."""
    apart = np.abs(made.astype(int) - expected)
    assert apart.max() <= 1 and (apart > 0).mean() <= share


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("code", list(Op))
def test_ops(code: Op, size: tuple[int, int]) -> None:
    images, ops = smooth((N, *size, 3)), np.zeros(N, OP)
    ops["code"], ops["p"][:, 0] = code, RNG.integers(0, 9, N) if code in (Op.POSTERIZE, Op.FLOAT_POSTERIZE) else 0.7
    if code in (Op.WARP, Op.FLOAT_WARP):
        ops["p"] = [1.1, 0.2, -3.3, -0.1, 0.9, 1.7]
    if code is Op.SHRINK:
        ops["p"][:, :4] = [0, 0, max(size[0] // 2, 1), max(size[1] // 2, 1)]
    (made,), (expected,) = both("op", images, ops, outs=[np.zeros_like(images)])
    if code in (Op.WARP, Op.FLOAT_WARP, Op.SHRINK):
        assert_levels(made, expected, 0.01)
    else:
        np.testing.assert_array_equal(made, expected)


def programs(size: tuple[int, int], mode: Mode, where: Where) -> Program:
    """A mate, turned round, is mixed in by `mode`, then a window of a pool in a box."""
    made = Program.empty(np.arange(N) + 7, np.array([1, 2, 3], np.uint32), size, layers=2, chain=1, steps=4)
    made.layers["source"], made.layers["index"][:, 0] = [Source.MATE, Source.POOL], np.arange(N)[::-1]
    made.layers["index"][:, 1], made.layers["left"][:, 1], made.ops["code"][:, 0, 0] = 1, 1, Op.MIRROR
    made.steps["mode"][:, 0], made.steps["a"], made.steps["b"] = mode, 0.6, 0.4
    made.steps["where"][:, 0], made.steps["rate"], made.steps["clip"][:, 0] = where, 0.5, 1
    made.steps["mode"][:, 1:] = [Mode.SUM, Mode.TOTAL, Mode.SET]
    made.steps["a"][:, 1], made.steps["layer"][:, 3] = 1, 1
    made.steps["right"][:, 3], made.steps["bottom"][:, 3] = size[1] // 2, size[0] // 2
    masks = RNG.integers(0, 256, (1, *size, 1), dtype=np.uint8)
    return Program(**{**vars(made), "masks": masks})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", [Mode.SET, Mode.LINEAR, Mode.ARITHMETIC, Mode.GEOMETRIC])
@pytest.mark.parametrize("where", list(Where))
def test_fold(size: tuple[int, int], mode: Mode, where: Where) -> None:
    images, pool = smooth((N, *size, 3)), smooth((2, size[0] + 1, size[1] + 3, 3))
    (made,), (expected,) = both("mix", images, pool, programs(size, mode, where), outs=[np.zeros_like(images)])
    if mode is Mode.GEOMETRIC:
        assert_levels(made, expected, 1e-2)
    else:
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_to_float(size: tuple[int, int], last: bool, kind: Any) -> None:
    images, table = smooth((N, *size, 3)), RNG.integers(0, 255, (3, 256)).astype(kind)
    out = np.zeros((N, *size, 3) if last else (N, 3, *size), kind)
    made, expected = out.copy(), out.copy()
    backend().to_float(images, table, made, last, 0, N)
    reference.to_float(images, table, expected, last, 0, N)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("size", SIZES)
def test_maps(size: tuple[int, int]) -> None:
    maps, partner = RNG.random((N, 9, 7)).astype(np.float32), (np.arange(N) + 1) % N
    large, masks = np.zeros((N, *size), np.float32), np.zeros((N, *size), np.uint8)
    for kernel, args, outs in [
        ("enlarge", (maps,), [large]),
        ("share_masks", (maps, partner), [masks, np.zeros(N, np.int64)]),
        ("quantise_otsu", (RNG.random((N, *size)).astype(np.float32), False), [masks, np.zeros(N, np.int32)]),
    ]:
        for made, expected in zip(*both(kernel, *args, outs=outs), strict=True):
            np.testing.assert_array_equal(made, expected, err_msg=kernel)
    levels, thresholds = RNG.integers(0, 256, (N, *size), dtype=np.uint8), np.full(N, 99, np.int32)
    sides = RNG.integers(1, np.array(size) + 1, (N, 2))
    for kernel, args, outs in [
        ("otsu", (levels, True), [np.zeros(N, np.int32)]),
        ("join_masks", (levels, thresholds, partner, True), [masks, np.zeros((N, 3), np.int64)]),
        ("best_windows", (levels, sides), [np.zeros((N, 2), np.int64)]),
    ]:
        for made, expected in zip(*both(kernel, *args, outs=outs), strict=True):
            np.testing.assert_array_equal(made, expected, err_msg=kernel)


@pytest.mark.parametrize("size", SIZES)
def test_pictures(size: tuple[int, int]) -> None:
    images, boxes = smooth((N, *size, 3)), np.tile(np.array([0, 0, size[1], size[0]], np.float64), (N, 1))
    places = np.tile(np.array([0, 0, max(size[0] // 2, 1), max(size[1] // 2, 1)]), (N, 1))
    (made,), (expected,) = both("paste", images, np.arange(N)[::-1].copy(), boxes, places, outs=[np.zeros_like(images)])
    assert_levels(made, expected, 0.01)
    flips, out = np.arange(N) % 2 == 0, np.zeros((N, 20, 30, 3), np.uint8)
    (made,), (expected,) = both("crop_resize", list(images), boxes, flips, outs=[out])
    assert_levels(made, expected, 0.01)
    for kernel, args, out in [
        ("filter3x3", (np.full((3, 3), 1 / 9, np.float32),), np.zeros_like(images)),
        ("histogram", (), np.zeros((N, 3, 256), np.int32)),
        ("table", (RNG.integers(0, 256, (N, 3, 256), dtype=np.uint8),), np.zeros_like(images)),
    ]:
        (made,), (expected,) = both(kernel, images, *args, outs=[out])
        np.testing.assert_array_equal(made, expected, err_msg=kernel)
    others = RNG.random((4, 50)).astype(np.float32)
    (made,), (expected,) = both("distances", RNG.random((N, 50)).astype(np.float32), others, outs=[np.zeros((N, 4))])
    np.testing.assert_allclose(made, expected, rtol=1e-12)


POOL = fastmix.Pool(smooth((3, 240, 250, 3)))
METHODS: dict[str, Callable[[], Any]] = {
    "mixup": fastmix.MixUp,
    "cutmix": fastmix.CutMix,
    "augmix": fastmix.AugMix,
    "pixmix": lambda: fastmix.PixMix(pool=POOL),
    "ipmix": lambda: fastmix.IPMix(pool=POOL),
    "layermix": lambda: fastmix.LayerMix(pool=POOL),
}


def host_batch(count: int = 16, size: int = 224) -> fastmix.Batch:
    return fastmix.Batch.of(smooth((count, size, size, 3)), np.arange(count) % 5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_methods_make_the_same_pictures(name: str, kind: str) -> None:
    import cupy

    batch, key, method = host_batch(), fastmix.Key(3, 1), METHODS[name]()
    expected = fastmix.mix(method, batch, key)
    there = torch.from_numpy(batch.images).cuda() if kind == "torch" else cupy.asarray(batch.images)
    made = fastmix.mix(method, fastmix.Batch.of(there, batch.targets.a), key)
    assert type(made.images) is type(there)
    assert_levels(made.images.cpu().numpy() if kind == "torch" else cupy.asnumpy(made.images), expected.images, 1e-3)
    np.testing.assert_array_equal(made.targets.w, expected.targets.w)
    np.testing.assert_array_equal(made.targets.b, expected.targets.b)


@pytest.mark.parametrize("name", METHODS)
def test_the_loader_hands_out_the_batches_of_cpus(name: str) -> None:
    pictures = smooth((20, 70, 90, 3)), np.arange(20) % 5
    settings = {"batch_size": 8, "size": 64, "seed": 4, "shuffle": True, "mix": METHODS[name](), "output": "uint8"}
    here, there = (
        list(fastmix.DataLoader(pictures, num_workers=2, num_classes=5, device=d, **settings)) for d in (None, "cuda")
    )
    for (images, labels), (made, soft) in zip(here, there, strict=True):
        assert made.is_cuda and soft.is_cuda
        assert_levels(made.cpu().numpy(), images.numpy(), 1e-3)
        assert torch.equal(soft.cpu(), labels)


def test_mixing_is_ordered_on_the_callers_stream() -> None:
    """The pictures arrive late, on a stream of the caller's own; what is read before them is poison."""
    batch, key, method = host_batch(), fastmix.Key(0), fastmix.MixUp()
    expected = torch.from_numpy(fastmix.mix(method, batch, key).images)
    images, late = torch.full(batch.images.shape, 99, dtype=torch.uint8).cuda(), torch.from_numpy(batch.images).cuda()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        images.copy_(late)
        made = fastmix.mix(method, fastmix.Batch.of(images, batch.targets.a), key).images
    stream.synchronize()
    assert torch.equal(made.cpu(), expected)


def test_batches_are_ordered_against_a_side_stream() -> None:
    """A consumer on a stream of its own, and memory that is freed while it is read."""
    pictures, settings = (smooth((64, 64, 64, 3)), np.arange(64) % 5), {"batch_size": 8, "size": 64, "output": "uint8"}
    here = [
        images for images, _ in fastmix.DataLoader(pictures, seed=1, mix=fastmix.MixUp(), num_classes=5, **settings)
    ]
    loader = fastmix.DataLoader(
        pictures, seed=1, mix=fastmix.MixUp(), num_classes=5, num_workers=2, device="cuda", **settings
    )
    stream, kept = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for images, _ in loader:
            torch.cuda._sleep(20_000_000)
            kept.append(images.clone())
            del images
    stream.synchronize()
    for made, expected in zip(kept, here, strict=True):
        assert_levels(made.cpu().numpy(), expected.numpy(), 1e-3)


def test_nothing_waits_for_the_device() -> None:
    batch = host_batch()
    there = fastmix.Batch.of(torch.from_numpy(batch.images).cuda(), batch.targets.a)
    method = METHODS["layermix"]()
    fastmix.mix(method, there, fastmix.Key(0))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    event = torch.cuda.Event()
    event.record()
    fastmix.mix(method, there, fastmix.Key(1))
    assert not event.query()
    torch.cuda.synchronize()


def test_memory_is_flat() -> None:
    pictures = smooth((64, 64, 64, 3)), np.arange(64) % 5
    loader = fastmix.DataLoader(
        pictures, batch_size=16, size=64, seed=1, mix=METHODS["layermix"](), num_workers=2, device="cuda", num_classes=5
    )
    taken = []
    for _ in range(50):
        for _batch in loader:
            pass
        torch.cuda.synchronize()
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] == taken[10]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_tensors_are_mixed_on_their_own_device() -> None:
    batch = host_batch()
    expected = fastmix.mix(fastmix.MixUp(), batch, fastmix.Key(0)).images
    there = fastmix.Batch.of(torch.from_numpy(batch.images).to("cuda:1"), batch.targets.a)
    made = fastmix.mix(fastmix.MixUp(), there, fastmix.Key(0)).images
    assert made.device == torch.device("cuda:1")
    np.testing.assert_array_equal(made.cpu().numpy(), expected)
