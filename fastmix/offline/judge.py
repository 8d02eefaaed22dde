"""The classifier of the label check: a given one, or a small network trained on a part of the sources.

Clean, mixed and refined pictures reach it in one way, by the usual centre crop.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from ..datasets import Source
from ..demo import network
from ..engine import IMAGENET_MEAN, IMAGENET_STD
from ..images import center_box
from ..kernels import U8, backend_for
from ..learn.filling import evaluating, logits_of
from ..learn.prototypes import Normalised, random_weights
from ..rng import Ids, Key, integers, shuffle
from .composing import picture_of
from .folder import check_room, write

__all__ = ["Judge", "Training", "cut", "judge_of", "load_judge", "split", "train"]

_SPLIT, _ORDER, _WINDOW = range(1020, 1023)  # streams of their own: nothing else draws from them
_VERSION = 1  # of the training: another one does not take a saved network


@dataclass(frozen=True)
class Training:
    """How a judge is trained: plain crops and flips, and no other augmentation.

    size: of the crops, px.  epochs: passes over its part of the sources.  held_out: the share of each class's sources
    that it never sees, and whose records it judges.  seed: names the parts, the first weights, the order and the crops.
    """

    size: int = 64
    epochs: int = 40
    held_out: float = 0.5
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out}, expected a share between 0 and 1, such as 0.5")
        for name, value in (("size", self.size), ("epochs", self.epochs), ("batch_size", self.batch_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")


@dataclass(frozen=True)
class Judge:
    """A classifier of pictures in [0, 1] that are `size` px square, and its device."""

    model: nn.Module
    size: int
    device: str = "cpu"

    def probabilities(self, pictures: Sequence[U8]) -> NDArray[np.float32]:
        """(N, C) of whole pictures of any shapes.  Raises ValueError where they are not finite."""
        images = torch.from_numpy(cut(pictures, self.size)).to(self.device)
        with evaluating(self.model), torch.no_grad():
            found = _logits(self.model, _floats(images)).float().softmax(1)
        if not found.isfinite().all():
            raise ValueError("the classifier gives values that are not finite, expected logits: look at its weights")
        shares: NDArray[np.float32] = found.cpu().numpy()
        return shares


def judge_of(model: nn.Module, classes: int, size: int, mean: Any, std: Any, device: str) -> Judge:
    """A judge of a model of normalised pictures.  Raises ValueError unless it gives logits of the classes."""
    try:
        wrapped = Normalised(model, mean, std).to(device)
        with evaluating(wrapped), torch.no_grad():
            outputs = _logits(wrapped, torch.zeros((2, 3, size, size), device=device)).shape[1]
    except ValueError:
        raise
    except Exception as error:  # of any kind: the model is the user's
        kind = type(error).__name__
        raise ValueError(f"the classifier cannot be run on {device!r} at {size} px: {kind}: {error}") from error
    if outputs != classes:
        raise ValueError(f"the classifier has {outputs} outputs, expected the {classes} classes of the data in order")
    return Judge(wrapped, size, device)


def cut(pictures: Sequence[U8], size: int) -> U8:
    """(N, size, size, 3), the usual centre crops."""
    boxes = np.array([center_box(picture.shape[0], picture.shape[1], (size, size)) for picture in pictures])
    return _resized(pictures, boxes, size)


def split(labels: Ids, held_out: float, seed: int) -> NDArray[np.bool_]:
    """Which of (n,) sources are held out: so large a share of each class, drawn by their numbers, rounded down.

    A class of one source is trained on.
    """
    draws, held = Key(seed).uniform(np.arange(len(labels)), _SPLIT, 1)[:, 0], np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[members[draws[members].argsort(kind="stable")][: int(held_out * len(members))]] = True
    return held


def load_judge(
    file: Path, source: Source, numbers: Ids, labels: Ids, classes: int, how: Training, device: str, quiet: bool
) -> Judge:
    """A judge trained on some samples, or taken from `file` if it was trained on the same ones in the same way.

    numbers: (m,) of the samples.  labels: (n,) class numbers of all.
    """
    about = json.dumps({"version": _VERSION, **asdict(how), "data": _digest(source, numbers, labels)}, sort_keys=True)
    model = network(classes)
    if not _take(file, about, model):
        check_room(file.parent)
        pictures = _squares(source, numbers, how.size * 8 // 7, quiet)
        model = train(pictures, labels[numbers], model, how, device, quiet).cpu()
        _keep(file, about, model)
    return judge_of(model, classes, how.size, IMAGENET_MEAN, IMAGENET_STD, device)


def train(pictures: U8, labels: Ids, model: nn.Module, how: Training, device: str, quiet: bool) -> nn.Module:
    """A copy of `model`, trained from random weights on (m, side, side, 3) pictures and their (m,) class numbers."""
    trained = random_weights(model, how.seed).to(device).train()
    ready = Normalised(trained, IMAGENET_MEAN, IMAGENET_STD)
    optimizer = torch.optim.AdamW(trained.parameters(), weight_decay=0.05)
    steps = -(-len(pictures) // how.batch_size) * how.epochs
    with tqdm(total=steps, desc="training the judge", unit="step", disable=quiet) as bar:
        for step, (images, wanted) in enumerate(_batches(pictures, labels, how)):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 + math.cos(math.pi * step / steps)) / 2
            loss = F.cross_entropy(ready(_floats(images.to(device))), wanted.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            bar.update()
    return trained


def _batches(pictures: U8, labels: Ids, how: Training) -> Iterator[tuple[Tensor, Tensor]]:
    """Crops and flips drawn by epoch and number, in an order drawn by the epoch."""
    count, room = len(pictures), pictures.shape[1] - how.size
    for epoch in range(how.epochs):
        key, everyone = Key(how.seed, epoch), np.arange(count)
        order = np.argsort(shuffle(everyone, count, key, _ORDER))
        draws = key.uniform(everyone, _WINDOW, 3)
        corners, flips = integers(draws[:, :2], 0, room + 1), draws[:, 2] < 0.5
        for start in range(0, count, how.batch_size):
            rows = order[start : start + how.batch_size]
            windows = [
                pictures[i, top : top + how.size, left : left + how.size][:, :: -1 if flips[i] else 1]
                for i, (top, left) in zip(rows, corners[rows].tolist(), strict=True)
            ]
            yield torch.from_numpy(np.stack(windows)), torch.from_numpy(labels[rows])


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    """(N, K) of N pictures.  Raises ValueError for other answers."""
    logits = logits_of(model, images)
    if len(logits) != len(images):
        raise ValueError(f"the classifier gives {len(logits)} rows for {len(images)} pictures, expected one each")
    return logits


def _floats(images: Tensor) -> Tensor:
    """(N, H, W, 3) uint8 as (N, 3, H, W) in [0, 1]."""
    return images.permute(0, 3, 1, 2).float() / 255


def _squares(source: Source, numbers: Ids, side: int, quiet: bool) -> U8:
    """The largest centred square of each picture; its middle 7/8 are what `cut` gives."""
    squares = np.empty((len(numbers), side, side, 3), np.uint8)
    for row, number in enumerate(tqdm(numbers.tolist(), "reading", unit="picture", disable=quiet)):
        picture = picture_of(source, number)
        height, width = picture.shape[:2]
        edge = min(height, width)
        squares[row] = _resized([picture], np.array([[(width - edge) / 2, (height - edge) / 2, edge, edge]]), side)[0]
    return squares


def _resized(pictures: Sequence[U8], boxes: NDArray[np.float64], size: int) -> U8:
    images = np.empty((len(pictures), size, size, 3), np.uint8)
    whole = [np.ascontiguousarray(picture) for picture in pictures]
    backend_for(images).crop_resize(whole, boxes, np.zeros(len(whole), np.bool_), images, 0, len(whole))
    return images


def _digest(source: Source, numbers: Ids, labels: Ids) -> str:
    """SHA-256 of the samples that a judge is trained on, as they are stored."""
    found = hashlib.sha256()
    for number in numbers.tolist():
        data = source.read(number).data
        content = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes() + repr(data.shape).encode()
        found.update(f"{number} {labels[number]} {len(content)} ".encode() + content)
    return found.hexdigest()


def _take(file: Path, about: str, model: nn.Module) -> bool:
    """Load a kept network; False where there is none of this kind, or it cannot be read."""
    try:
        kept = torch.load(file, map_location="cpu", weights_only=True)
        if kept["about"] != about:
            return False
        model.load_state_dict(kept["model"])
    except Exception:  # missing or damaged in any way: it is made again
        return False
    return True


def _keep(file: Path, about: str, model: nn.Module) -> None:
    data = io.BytesIO()
    torch.save({"about": about, "model": model.state_dict()}, data)
    write(file, data.getvalue())
