"""What is measured on a GPU: kernels, methods, peers, a training step and memory; `benchmarks.device` runs the parts.

A part yields what it is about to do, as text, and its rows.  In a dry run everything is tiny, and the GPU is the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.device_clock import Row, Said, Scale, guarded, machine, pictures
from fastmix.kernels import OP, Op, Program

KERNELS: dict[str, float | None] = {  # name: the share of a copy's speed that is promised
    "fold, MixUp to uint8": 0.7,
    "fold, MixUp to bfloat16 NCHW": 0.7,
    "to_float, float16 NCHW": 0.7,
    "to_float, float32 NCHW": 0.7,
    "to_float, float16 channels_last": 0.7,
    "paste": 0.7,
    "join_masks": None,
    "quantise_otsu": None,
    "apply_ops, solarize": None,
    "apply_ops, sharpness": None,
    "warp": None,
    "histogram": None,
}
PROMISED = {"PixMix": (200_000.0, 1_000_000.0), "LayerMix": (200_000.0, 1_000_000.0)}
METHODS = ("PixMix", "LayerMix", "AugMix", "IPMix", "MixUp", "CutMix")
PEERS = (
    "torchvision MixUp",
    "torchvision CutMix",
    "torchvision AugMix",
    "kornia RandomMixUpV2",
    "kornia RandomCutMixV2",
)
MEMORY = "memory handed out, growth in bytes", "memory held, growth in bytes"
COPY = "device-to-device copy, GB/s"
ALONE, PLAIN, MIXED = "step alone", "with a loader", "with a loader and LayerMix"
TRAINING = [f"{name}, steps/s" for name in (PLAIN, MIXED, ALONE)] + [f"{PLAIN} ÷ {ALONE}", f"{MIXED} ÷ without"]


def cases(scale: Scale, there: Any) -> dict[str, tuple[float, Callable[[int], None]]]:
    """Of each of KERNELS the bytes that it must read and write, each once, and a call on set i."""
    from fastmix import Batch, Key, MixUp

    n, side, kernels = scale.batch, scale.side, there.kernels
    rng, whole, rows = np.random.default_rng(1), n * scale.side**2, np.arange(n)
    first = pictures(n, side)
    images = [there.place(np.roll(first, i, 0)) for i in range(scale.sets)]
    out = [there.place(np.zeros_like(first)) for _ in images]
    narrow = [there.place(np.zeros(first.shape, np.uint16)) for _ in images]
    wide = [there.place(np.zeros((n, 3, side, side), np.float32)) for _ in images]
    maps = [there.place(rng.random((n, side, side), np.float32)) for _ in images]
    levels = [there.place(rng.integers(0, 256, (n, side, side), dtype=np.uint8)) for _ in images]
    masks = [there.place(np.zeros((n, side, side), np.uint8)) for _ in images]
    thresholds, areas = there.place(np.full(n, 128, np.int32)), there.place(np.zeros((n, 3), np.int64))
    counts, none, mates = there.place(np.zeros((n, 3, 256), np.int32)), images[0][:0], np.roll(rows, 1)
    program: Program = MixUp().draw(Key(0), Batch.of(first, rows)).program
    half, full = (rng.random((3, 256)).astype(kind) for kind in (np.float16, np.float32))
    half, matrices = half.view(np.uint16), np.tile([0.97, 0.2, -3.0, -0.2, 0.97, 4.0], (n, 1))
    boxes = np.tile([4, 4, 4 + side // 2, 4 + side // 2], (n, 1))
    sources = np.tile([2.0, 2.0, side // 2, side // 2], (n, 1))

    def planar(i: int) -> Any:
        return narrow[i].reshape(n, 3, side, side)

    def op(code: Op, p: float) -> Callable[[int], None]:
        ops = np.zeros(n, OP)
        ops["code"], ops["p"][:, 0] = code, p
        return lambda i: kernels.op(images[i], ops, out[i], 0, n)

    calls: list[tuple[int, Callable[[int], None]]] = [
        (9, lambda i: kernels.mix(images[i], none, program, out[i], 0, n)),
        (12, lambda i: kernels.mix_float(images[i], none, program, half, planar(i), False, 0, n)),
        (9, lambda i: kernels.to_float(images[i], half, planar(i), False, 0, n)),
        (15, lambda i: kernels.to_float(images[i], full, wide[i], False, 0, n)),
        (9, lambda i: kernels.to_float(images[i], half, narrow[i], True, 0, n)),
        (6, lambda i: kernels.paste(images[i], mates, sources, boxes, out[i], 0, n)),
        (3, lambda i: kernels.join_masks(levels[i], thresholds, mates, True, masks[i], areas, 0, n)),
        (5, lambda i: kernels.quantise_otsu(maps[i], False, masks[i], thresholds, 0, n)),
        (6, op(Op.SOLARIZE, 128)),
        (6, op(Op.SHARPNESS, 1.7)),
        (6, lambda i: kernels.warp(images[i], matrices, out[i], 0, n)),
        (3, lambda i: kernels.histogram(images[i], counts, 0, n)),
    ]
    return {name: (each * whole, call) for name, (each, call) in zip(KERNELS, calls, strict=True)}


def waited(there: Any, late: int) -> dict[str, Any]:
    """How often the device has waited for the host since it had done so `late` times: its clock ran on."""
    return {"waited for the host, times": there.late - late} if there.late > late else {}


def kernels(scale: Scale) -> Said:
    """Each kernel in turns with a device-to-device copy: its launches alone, and all that a call puts on the device."""
    there, sets = machine(scale), range(scale.sets)
    made = cases(scale, there)
    pairs = [[there.tensor(pictures(scale.batch, scale.side, i)) for i in (0, 1)] for _ in sets]
    moved = 6.0 * scale.batch * scale.side**2

    def copy() -> None:
        for source, target in pairs:
            target[...] = source

    copies: list[float] = []

    def measured(name: str, count: float, call: Callable[[int], None]) -> Iterator[Row]:
        call(0)
        there.recorder.launches = []
        for i in sets:
            call(i)
        launches, late = there.recorder.launches, there.late
        turns = []
        for turn in range(scale.turns + 2):
            there.recorder.launches = []
            ways = copy, lambda: [launch() for launch in launches], lambda: [call(i) for i in sets]
            speeds = [b * len(sets) / there.seconds(w) / 1e9 for b, w in zip((moved, count, count), ways, strict=True)]
            turns += [speeds] if turn >= 2 else []
        copies.extend(speed for speed, _, _ in turns)
        more = {
            "GB/s": median(turn[1] for turn in turns),
            "whole call, GB/s": median(turn[2] for turn in turns),
            "host, ms a call": 1000 * there.host / len(sets),
            "launches a call": len(launches) // len(sets),
        }
        more |= waited(there, late)
        yield Row(f"{name} ÷ copy", [b / a for a, b, _ in turns], must=KERNELS[name], more=more)

    for name, (count, call) in made.items():
        yield name
        yield from guarded([f"{name} ÷ copy"], partial(measured, name, count, call))
    if copies:
        yield Row(COPY, copies)


def method(name: str, scale: Scale) -> Any:
    import fastmix

    if name in ("MixUp", "CutMix"):
        return getattr(fastmix, name).imagenet()
    pool = np.random.default_rng(2).integers(0, 256, (scale.pool, *[8 * scale.side // 7] * 2, 3), dtype=np.uint8)
    return getattr(fastmix, name).imagenet(**({} if name == "AugMix" else {"pool": fastmix.Pool(pool)}))


def methods(scale: Scale) -> Said:
    """Draws on the CPU, `apply` of what was drawn on the device, and `fastmix.mix` by the wall's clock."""
    from fastmix import Batch, Key
    from fastmix.mixing import apply, mix

    there, n = machine(scale), scale.batch
    first = pictures(n, scale.side)
    batches = [Batch.of(there.tensor(np.roll(first, i, 0)), np.arange(n) % 10) for i in range(min(scale.sets, 3))]
    out = there.tensor(first)

    def measured(name: str) -> Iterator[Row]:
        mixed, drawn, speeds, host, late = method(name, scale), [], [], [], there.late
        pool = getattr(mixed, "pool", None)
        for turn in range(scale.turns + 2):
            batch = batches[turn % len(batches)]
            start = time.perf_counter()
            params = mixed.draw(Key(0, turn), batch)
            drawn.append(1000 * (time.perf_counter() - start))
            there.recorder.launches = []
            speeds.append(n / there.seconds(partial(apply, batch, params, pool, out)))
            host.append(1000 * there.host)
        must, aim = PROMISED.get(name, (None, None))
        more = {"host, ms": median(host[2:]), **waited(there, late)}
        yield Row(f"{name}: draw, ms", drawn[2:])
        yield Row(f"{name}: apply, images/s", speeds[2:], must=must, aim=aim, more=more)
        there.synchronize()
        clock = []
        for turn in range(scale.rounds):
            start = time.perf_counter()
            for step in range(scale.turns // 2):
                mix(mixed, batches[step % len(batches)], Key(1, turn * scale.turns + step))
            there.synchronize()
            clock.append(n * (scale.turns // 2) / (time.perf_counter() - start))
        yield Row(f"{name}: mix by the wall's clock, images/s", clock)

    with there.standing_in():
        for name in METHODS:
            yield name
            yield from guarded(method_rows(name), partial(measured, name))


def method_rows(name: str) -> list[str]:
    return [f"{name}: {each}" for each in ("draw, ms", "apply, images/s", "mix by the wall's clock, images/s")]


def peers(scale: Scale) -> Said:
    """What others make of the same batch, as they want it: float32 NCHW with labels, AugMix uint8, one draw a batch."""
    there = machine(scale)
    levels = torch.as_tensor(there.tensor(pictures(scale.batch, scale.side))).permute(0, 3, 1, 2).contiguous()
    images, labels = levels.float() / 255, (torch.arange(scale.batch) % 10).to(levels.device)

    def measured(name: str) -> Iterator[Row]:
        package, kind = name.split()
        home = {"torchvision": "torchvision.transforms.v2", "kornia": "kornia.augmentation"}[package]
        if find_spec(package) is None:
            yield Row(f"{name}, images/s", said="not there")
            return
        settings = {"torchvision": {"num_classes": 10}, "kornia": {"data_keys": ["input", "class"], "p": 1.0}}[package]
        made = getattr(import_module(home), kind)(**({} if kind == "AugMix" else settings))
        given = (levels,) if kind == "AugMix" else (images, labels)
        late = there.late
        speeds = [scale.batch / there.seconds(partial(made, *given), 1) for _ in range(scale.turns + 2)]
        yield Row(f"{name}, images/s", speeds[2:], more=waited(there, late))

    for name in PEERS:
        yield name
        yield from guarded([f"{name}, images/s"], partial(measured, name))


class Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        sides = (inner, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)
        parts = [part for side in sides for part in (*convolved(*side), nn.ReLU(True))]
        self.way = nn.Sequential(*parts[:-1])
        same = stride == 1 and inner == 4 * width
        self.past = nn.Identity() if same else nn.Sequential(*convolved(inner, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.way(x) + self.past(x))


def convolved(inner: int, outer: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inner, outer, side, stride, side // 2, bias=False), nn.BatchNorm2d(outer)


def plain_resnet50() -> nn.Module:
    """For machines without torchvision and timm."""
    layers, inner = [*convolved(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(depth):
            layers.append(Bottleneck(inner, width, 1 if place else stride))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


def resnet50() -> nn.Module:
    if find_spec("torchvision") is not None:
        return import_module("torchvision.models").resnet50()
    if find_spec("timm") is not None:
        return import_module("timm").create_model("resnet50")
    return plain_resnet50()


def stepper(there: Any) -> Callable[[Tensor, Tensor], None]:
    """One step of training, bfloat16 where autocast wants it."""
    torch.backends.cudnn.benchmark = True
    model = resnet50().to(there.kind, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast(there.kind, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def training(scale: Scale) -> Said:
    """ResNet-50 on pictures in memory, in turns: with a loader, with LayerMix as well, and the same step by itself."""
    from fastmix import DataLoader

    there, lead, began = machine(scale), scale.lead, time.monotonic()
    yield "pictures"
    count = scale.batch * (scale.steps + lead)
    data = pictures(count, 8 * scale.side // 7), np.arange(count) % 1000
    settings = {"shuffle": True, "seed": 0, "num_workers": scale.workers, "drop_last": True, "num_classes": 1000}
    settings |= {"output": "bfloat16", "memory_format": torch.channels_last, "device": "cuda", "size": scale.side}

    def speed(batches: Any) -> float:
        """Steps/s after the first few, in which loaders and clocks get going."""
        start = 0.0
        for number, (images, labels) in enumerate(batches):
            if number == lead:
                there.synchronize()
                start = time.perf_counter()
            step(images, labels)
        there.synchronize()
        return scale.steps / (time.perf_counter() - start)

    with there.standing_in():
        ways: dict[str, Any] = {
            PLAIN: DataLoader(data, scale.batch, **settings),
            MIXED: DataLoader(data, scale.batch, mix=method("LayerMix", scale), **settings),
        }
        ways[ALONE] = [next(iter(ways[PLAIN]))] * (lead + scale.steps)
        step = stepper(there)
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(scale.rounds + 1):
            if number > 1 and time.monotonic() - began > scale.seconds - 25:  # what a round may take
                break
            for name, batches in ways.items():
                yield f"{name}, round {number}"
                found = speed(batches)
                speeds[name] += [found] if number else []
    yield from (Row(f"{name}, steps/s", found) for name, found in speeds.items())
    alone, plain, mixed = (median(speeds[name]) for name in (ALONE, PLAIN, MIXED))
    yield Row(f"{PLAIN} ÷ {ALONE}", [plain / alone])
    spread = [b / a for a, b in zip(speeds[PLAIN], speeds[MIXED], strict=True)]
    yield Row(f"{MIXED} ÷ without", [mixed / plain], must=0.98, more={"lowest": min(spread), "highest": max(spread)})


def memory(scale: Scale) -> Said:
    """What a loader's epochs add to torch's memory after the first five."""
    from fastmix import DataLoader

    there, side, count = machine(scale), 4 * scale.side // 7, scale.batch
    data = pictures(count, 8 * side // 7), np.arange(count) % 10
    settings = {"size": side, "seed": 0, "shuffle": True, "num_workers": 2, "device": "cuda", "num_classes": 10}
    taken = []
    with there.standing_in():
        loader = DataLoader(data, max(count // 8, 2), mix=method("LayerMix", scale), **settings)
        for epoch in range(5 + scale.epochs):
            yield f"epoch {epoch}"
            for _ in loader:
                pass
            taken.append(there.memory())
    for name, values in zip(MEMORY, zip(*taken, strict=True), strict=True):
        late = max(values[5:]) - max(values[: 5 + scale.epochs // 2])
        more = {"of which in the second half": late, "bytes at the end": values[-1]}
        yield Row(name, [float(max(values[5:]) - values[4])], must=0, at_most=True, more=more)
