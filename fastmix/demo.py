"""The main job, from nothing: real photographs, a small network trained on mixed pictures, speed, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from .datasets import Source
from .mixing import mix
from .photos import cut_photos
from .rng import Key
from .show import Cell, Row, batch_of, grid
from .types import Method

if TYPE_CHECKING:
    from PIL import Image
    from torch import nn

SIDE = 176  # px, of the pictures in the gallery
_SHOWN, _SEED = ("cat", "coffee", "flower", "astronaut"), 10

__all__ = ["SIDE", "Settings", "cut", "gallery", "train"]


@dataclass(frozen=True)
class Settings:
    """photos: how many to cut.  size: side of the training crops, px.  batch_size: pictures a step.  epochs: passes."""

    photos: int = 640
    size: int = 64
    batch_size: int = 64
    epochs: int = 6


def cut(folder: Path, settings: Settings, quiet: bool) -> None:
    """Cut the photographs into `folder`, a subfolder a class.  Raises ModuleNotFoundError without the demo extra."""
    cut_photos(folder, settings.photos, progress=lambda items: tqdm(items, "photos", unit="photo", disable=quiet))


def train(source: Source, method: Method, settings: Settings, quiet: bool) -> list[float]:
    """Train a small network on clean and mixed views of the pictures; returns the loss of each step.

    The loss is the cross-entropy of the clean view plus the disagreement of all three, as in the papers of AugMix,
    IPMix and LayerMix.
    """
    import torch

    from .learn import jensen_shannon
    from .loaders.torch import DataLoader

    batch_size, size = settings.batch_size, settings.size
    loader = DataLoader(
        source, batch_size, shuffle=True, num_workers=2, drop_last=True, mix=method, size=size, views=3, seed=0
    )
    model = network(len(source.classes or []))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with tqdm(total=settings.epochs * len(loader), desc="training", unit="step", disable=quiet) as bar:
        for _ in range(settings.epochs):
            for images, labels in loader:
                loss = jensen_shannon(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                bar.set_postfix(loss=f"{losses[-1]:.2f}")
                bar.update()
    return losses


def network(classes: int) -> nn.Module:
    """Four convolutions and a linear layer, about 0.1 million weights."""
    from torch import nn

    widths = (3, 24, 48, 72, 96)
    blocks: list[nn.Module] = []
    for before, after in pairwise(widths):
        blocks += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def gallery(folder: Path, methods: Sequence[Method]) -> Image.Image:
    """Four photographs, a row each: as they are, and as every method mixes them."""
    batch = batch_of([min((folder / name).iterdir()) for name in _SHOWN], SIDE)
    mixed = [mix(method, batch, Key(_SEED)).images for method in methods]
    rows = [Row("", [Cell(images[i]) for images in (batch.images, *mixed)]) for i in range(len(_SHOWN))]
    return grid("What the methods make of four photographs", rows, ["original", *(type(m).__name__ for m in methods)])
