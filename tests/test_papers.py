"""The baseline programs give the published pictures: the same seeds in, the same pictures out."""

from __future__ import annotations

import json
import pickle
import random  # noqa: TID251 - the published programs draw from it
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import baselines, papers

# What all generators were seeded with before each run of data/golden_methods.npz, in its order.
SEEDS = {
    ("pixmix", 32): "17 32 19 40 53 16 0 10 20 1 17 6 0 1 7 13 2 3 4 5",
    ("pixmix", 224): "17 32 50 1 9 13 33 17 6 19 44 0 7 1 17 11 13 30 9 7",
    ("ipmix", 32): "133 7 37 74 21 162 35 0 1 2 3 4 5 6 8 9 10 11 12 13 14 15 16 17",
    ("ipmix", 224): "9 5 6 18 40 41 57 15 4 33 9 23 14 18 20 41",
    ("layermix", 32): "91 5 20 375 24 22 6 25 78 103 51 106 147 278 1 148 2 7 13 14 8 46 36 27 171 9 65 225 10 11 "
    "17 31 32 64 72 122",
    ("layermix", 224): "91 5 20 22 24 77 59 25 7 9 10 31 5 20 5 20 22 22 24 51",
    ("augmix", 32): "2 4 41 1 0 3 5 6 7 8 23 0 1 2 3 4 5 6 7 8",
    ("augmix", 224): "2 4 30 33 0 23 0 1 2 3",
}

with np.load(Path(__file__).parent / "data" / "golden_methods.npz") as _file:
    GOLDEN = dict(_file)


def unfinished(x: torch.Tensor) -> torch.Tensor:
    """The recorded pictures are not normalised."""
    return x


def program(method: str, side: int, run: dict[str, Any]) -> Callable[..., torch.Tensor]:
    extended = run.get("op_list") == "extended"
    if method == "layermix":
        return papers.LayerMix(run["magnitude"], run["beta"], finish=unfinished)
    if method == "ipmix":
        patches = (4, 8, 16, 32) if side == 32 else (4, 8, 16, 32, 64, 224)
        ops = papers.IPMIX_ALL_OPS if extended else papers.IPMIX_OPS
        return papers.IPMix(run["k"], run["t"], run["beta"], run["severity"], patches, side == 224, ops, unfinished)
    ops = papers.ALL_OPS if extended else papers.BASE_OPS
    if method == "pixmix":
        return papers.PixMix(run["k"], run["beta"], run["severity"], ops, unfinished)
    return papers.AugMix(run["width"], run["severity"], ops, unfinished)


def seeded(seed: int, made: Callable[..., torch.Tensor], *pictures: Image.Image) -> Any:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    return made(*pictures).permute(1, 2, 0).numpy()


def differences(method: str, side: int) -> list[float]:
    """The largest difference of every recorded run, in [0, 1] units."""
    logs = [json.loads(line) for line in GOLDEN[f"{method}_log_{side}"].tobytes().decode().splitlines()]
    seeds = [int(seed) for seed in SEEDS[method, side].split()]
    found = []
    for run, seed, expected in zip(logs, seeds, GOLDEN[f"{method}_output_{side}"], strict=True):
        pictures = [Image.fromarray(GOLDEN[f"{method}_image_{side}"][run["image"]])]
        if "mixing_picture" in run:
            pictures.append(Image.fromarray(GOLDEN[f"{method}_mixing_picture_{side}"][run["mixing_picture"]]))
        every = 7 if side == 224 else 1
        made = seeded(seed, program(method, side, run), *pictures)[::every, ::every]
        found.append(float(np.abs(made - expected).max()))
    return found


@pytest.mark.parametrize(("method", "side"), SEEDS)
def test_gives_the_published_pictures(method: str, side: int) -> None:
    # LayerMix's float warps: torchvision releases compute the coordinates in different orders.
    np.testing.assert_array_less(differences(method, side), 1e-4 if method == "layermix" else 1e-6)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "_signed", lambda value: value)
    assert max(differences("augmix", 32)) > 0.1


def test_imagenet_normalisation() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8))
    expected = (np.asarray(picture) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(seeded(0, papers.Plain(), picture), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["Plain", "PixMix", "IPMix", "LayerMix", "AugMix"])
def test_programs_travel_to_worker_processes(name: str) -> None:
    made = getattr(papers, name)()
    noise = np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3), np.uint8)
    pictures = [Image.fromarray(p) for p in noise[: 1 if name in ("Plain", "AugMix") else 2]]
    copy = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(seeded(3, copy, *pictures), seeded(3, made, *pictures))


class Epochs:
    """A loader of three batches an epoch that notes how often it was started and finished."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        for size in (4, 4, 2):
            yield np.empty(size), 0
        self.log.append(self.name)


def test_rounds_alternate_over_whole_epochs() -> None:
    log: list[str] = []
    loaders = {name: partial(Epochs, name, log) for name in "ab"}
    timed = baselines.measure_rounds(loaders, rounds=2, batches=4)
    assert log == ["a", "b", *["a", "a", "b", "b"] * 2], "one epoch to warm up, then as many as hold 4 batches"
    assert [r.images for r in timed["a"]] == [20, 20]
    rates = baselines.measure(loaders, rounds=2, batches=1)
    assert [len(rates[name]) for name in "ab"] == [2, 2] and min(rates["a"]) > 0


def test_ratios_compare_within_a_round() -> None:
    rates = {"a": [100.0, 10.0, 50.0], "b": [200.0, 30.0, 50.0]}
    assert baselines.ratios(rates, "a") == {"a": 1, "b": 2}


def test_an_empty_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="gave no batch"):
        baselines.run_round([], 1)


def test_cifar_baseline_gives_normalised_batches() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 36, 36, 3), np.uint8)
    factories = baselines.cifar_loaders(noise[:, :32, :32], np.arange(8), noise, batch_size=4, workers=0)
    for make in factories.values():
        batches = list(make())
        assert [tuple(images.shape) for images, _ in batches] == [(4, 3, 32, 32)] * 2
        assert all(images.dtype == torch.float32 and images.min() >= -1 and images.max() <= 1 for images, _ in batches)
        assert sorted(int(label) for _, labels in batches for label in labels) == list(range(8))


def test_imagenet_baselines_read_folders(tmp_path: Path) -> None:
    fractals = baselines.julia(2, 300, seed=1)
    assert fractals.std(axis=(1, 2, 3)).min() > 10
    folder = baselines.write_jpegs(fractals, tmp_path / "fractals")
    for make in baselines.imagenet_loaders(folder, folder, batch_size=2, workers=0).values():
        ((images, labels),) = make()
        assert tuple(images.shape) == (2, 3, 224, 224) and bool(torch.isfinite(images).all())
        assert labels.tolist() == [0, 0]
