"""What a GradMix step costs: `python -m benchmarks.gradmix` (about 7 minutes on 2 idle cores).

ResNet-18 with CIFAR's stem, two views of 128 pictures of 32 px, on the CPU.  Four ways to train take turns: the clean
views alone, a step whose windows are placed at random, the same step with maps, and with cached maps: one forward and
backward of the views alone, whose gradients make maps for a bank, and windows found on what the bank holds.  Besides,
what is added is timed by itself, after a forward (and backward, for cached maps) that is not: the call that makes the
maps, and the calls that read, keep, take and use them.  These leave out what the hook adds to the passes, a copy of
each named layer's output.  A ratio is taken within a pass; its median is the figure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models import resnet18
from tqdm import tqdm

from benchmarks.report import FIGURE_HEAD, Figure, circumstances, table
from fastmix import Batch, Key
from fastmix.attribution import AttributionHook
from fastmix.learn import GradMixStep
from fastmix.maps import Geometry, MapBank
from fastmix.methods.gradmix import GradMix
from fastmix.types import Targets

CLEAN, RANDOM, FRESH, MAPS = "clean views alone", "random windows", "windows by maps", "maps alone"
CACHED, CALLS = "cached maps", "calls for cached maps alone"
MUST, MUST_CACHED = 0.25, 0.05
KEY = Key(0)

Seconds = tuple[float, float]  # by the wall's clock and by that of the processor


def cifar_resnet18() -> nn.Module:
    """A stride of 1 and no pooling in the stem, and a head of two layers, as contrastive training has it."""
    torch.manual_seed(0)
    model = resnet18()
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    model.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
    return model.train()


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    wall, cpu = now()
    return wall - start[0], cpu - start[1]


def cached_calls(rows: int) -> Callable[[AttributionHook], Seconds]:
    """What cached maps add to a step of that many samples; takes a hook after the backward."""
    ids, whole, bank = np.arange(rows), Geometry.whole(rows), MapBank(rows, shape=(8, 8))
    images, targets, method = np.zeros((rows, 32, 32, 3), np.uint8), Targets.of(ids, ids % 10), GradMix.paper()

    def calls(hook: AttributionHook) -> Seconds:
        start = now()
        maps = hook.maps(size=bank.shape)
        bank.put(ids, maps.numpy(), whole, KEY.epoch)
        known = bank.take(ids, whole, KEY.epoch + 1)
        method.draw(KEY, Batch(images, targets, known))
        return since(start)

    return calls


def contenders(batch: int, settings: GradMixStep) -> dict[str, Callable[[], Seconds]]:
    """What takes turns; each runs once and says how long it took."""
    model = cifar_resnet18()
    x, labels = torch.randn(2 * batch, 3, 32, 32), torch.arange(batch) % 10

    def whole(loss: Callable[[], Tensor]) -> Seconds:
        model.zero_grad()
        start = now()
        loss().backward()
        return since(start)

    def stepped(**changes: Any) -> Callable[[], Seconds]:
        step = GradMixStep.paper(layers=settings.layers, **changes)
        return lambda: whole(lambda: step.step(model, x, labels, key=KEY, index=0).loss)

    clean = stepped(lam=1.0, prob=0.0)
    calls = cached_calls(2 * batch)

    def cached(alone: bool) -> Seconds:
        with AttributionHook(model, settings.layers, keep_gradients=True) as hook:
            passes, added = clean(), calls(hook)
        return added if alone else (passes[0] + added[0], passes[1] + added[1])

    def maps_alone() -> Seconds:
        with settings.hook(model) as hook:
            z = model(x)
            start = now()
            settings.maps(hook, z, labels, size=(32, 32))
            return since(start)

    ways = {CLEAN: clean, RANDOM: stepped(locate="random"), FRESH: stepped(), MAPS: maps_alone}
    return {**ways, CACHED: partial(cached, alone=False), CALLS: partial(cached, alone=True)}


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128, help="samples; each has two views")
    parser.add_argument("--layers", nargs="+", default=["layer2", "layer3", "layer4"])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    around = {**circumstances(), "torch threads": torch.get_num_threads(), "layers": options.layers}
    ways = contenders(options.batch, GradMixStep.paper(layers=options.layers))
    for way in ways.values():
        way()
    times: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in tqdm(range(options.rounds)):
        for name, way in ways.items():
            times[name].append(way())

    def shares(clock: int) -> dict[str, list[float]]:
        wall = {name: [each[clock] for each in found] for name, found in times.items()}

        def share(part: str, without: str | None = None) -> list[float]:
            less = wall[without] if without else [0.0] * options.rounds
            return [(a - b) / clean for a, b, clean in zip(wall[part], less, wall[CLEAN], strict=True)]

        return {
            "step with maps, over the step with random windows": share(FRESH, RANDOM),
            "maps alone": share(MAPS),
            "step with cached maps, over the clean views alone": share(CACHED, CLEAN),
            "calls for cached maps alone": share(CALLS),
        }

    by_cpu = {name: median(values) for name, values in shares(1).items()}
    figures = [
        Figure(name, values, MUST_CACHED if "cached" in name else MUST, cpu=by_cpu[name], at_most=True)
        for name, values in shares(0).items()
    ]
    rows = [
        [name, *(f"{median(each[clock] for each in found):.3f}" for clock in (0, 1))] for name, found in times.items()
    ]
    print(table(["way", "s", "CPU s"], rows, options.markdown))
    print("\nAs a share of one forward and backward of the clean views:\n")
    print(table(FIGURE_HEAD, [figure.row() for figure in figures], options.markdown))
    if options.json:
        result = {"around": around, "seconds": times, "figures": [figure.as_json() for figure in figures]}
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
