"""An epoch of the whole loader on a small set, plain and with each method, beside torchvision's; two workers each.

A quick look only: 256 pictures.  `must_show.py` takes turns and measures what is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

from benchmarks.baselines import TRAIN_CROP, Programmed, torch_loader
from benchmarks.own import METHODS, Turn, own_loader
from benchmarks.papers import Plain
from fastmix import ArrayDataset, PixMix
from fastmix.photos import cut_patches, cut_photos

COUNT, BATCH = 256, 64


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    cut_photos(folder, COUNT)
    return folder


@pytest.fixture(scope="module")
def loader(photos: Path) -> Iterator[Any]:
    yield own_loader(photos, batch_size=BATCH)


def time_epochs(benchmark: Any, loader: Iterable[Any], count: int) -> None:
    """Whole epochs, after one that is not timed."""

    def epoch() -> int:
        return sum(len(images) for images, _ in loader)

    benchmark.extra_info["images"] = count
    assert benchmark.pedantic(epoch, rounds=5, warmup_rounds=1) == count


@pytest.mark.benchmark(group="loader 224")
@pytest.mark.parametrize("name", METHODS)
def test_own(benchmark: Any, loader: Any, name: str) -> None:
    time_epochs(benchmark, Turn(loader, METHODS[name]), COUNT)


@pytest.mark.benchmark(group="loader 224")
def test_torchvision(benchmark: Any, photos: Path) -> None:
    time_epochs(benchmark, torch_loader(Programmed(ImageFolder(photos, TRAIN_CROP), Plain()), BATCH), COUNT)


@pytest.mark.benchmark(group="loader 32, in memory")
@pytest.mark.parametrize("name", ["plain", "pixmix"])
def test_own_in_memory(benchmark: Any, name: str) -> None:
    mix = PixMix.cifar() if name == "pixmix" else None
    data = ArrayDataset(*cut_patches(5120))
    time_epochs(benchmark, own_loader(data, batch_size=512, crop="pad4", size=32, mix=mix), 5120)
