"""Fill in the blanks: hide a part of a picture, and paint there what raises a classifier's probability of a class.

One gradient step fills in.  Deelaka et al., "Fill in the blanks: Rethinking interpretability in vision" (arXiv
2411.10273, 2024).  A gradient with respect to the picture that is being masked, as their equations 2 and 4 take it, is
0 at every hidden pixel and fills nothing; here it is taken with respect to the masked picture.

Models are called with pictures (N, C, H, W) in [0, 1]; `Normalised` is put around one that wants them normalised.  They
are run in evaluation mode and get back the modes they had; parameters, their `.grad`, buffers and the generators of
torch stay as they are.  Draws are keyed by a picture's id, so they do not depend on the batch it is in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..rng import Ids, Key

FillMode = Literal["random", "progressive", "independent", "blank"]
Threshold = Literal["relative", "quantile", "signed", "raw"]

_ORDER, _NOISE, _LEVELS, _SHUFFLE = range(1010, 1014)  # streams of their own: nothing else draws from them


@dataclass(frozen=True)
class Filling:
    """How pictures are masked and filled.  Raises ValueError for a setting out of its range.

    The paper says the ratio, and that updates are binarised; cells, threshold and the order of filling are choices made
    here, so compare several.

    mode: "random" hides round(ratio cells) cells of a grid, at least one.  "progressive" cuts the grid at random into
    round(1 / ratio) sets of equal size (the last one has the remainder) and hides them in turn, each beside what was
    filled in before it, until nothing is left of the picture.  "independent" fills each of these sets beside the rest
    of the picture.  "blank" is "progressive" without the picture: it starts with `base` everywhere.
    ratio: in (0, 1].
    patch: side of a cell, px; cells at the right and lower border may be cut off.
    threshold: which hidden values are set to 1.  Let D be minus the gradient of the cross-entropy.  "relative": where
    D > level max D.  "quantile": the share `level` that has the largest D.  In both, only where D > 0.  "signed": where
    |D| > level max |D|, and where D < 0 the value is set to 0, which shows if base > 0.  "raw" sets nothing but adds
    level D, so that `level` is the step.  Shares and maxima are those of one picture's hidden values.
    level: in [0, 1); of "quantile" in (0, 1]; of "raw" above 0.
    base: of hidden pixels, in [0, 1] before normalising: 0 is black, whatever the mean.
    """

    mode: FillMode = "random"
    ratio: float = 0.25
    patch: int = 4
    threshold: Threshold = "relative"
    level: float = 0.25
    base: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (("mode", FillMode), ("threshold", Threshold)):
            if getattr(self, name) not in get_args(kind):
                names = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {names}")
        level, expected = self.level, f"{{}} for threshold={self.threshold!r}"
        fits, span = 0 <= level < 1, "0 <= level < 1"
        if self.threshold == "quantile":
            fits, span = 0 < level <= 1, "0 < level <= 1"
        elif self.threshold == "raw":
            fits, span = 0 < level < math.inf, "a number above 0"
        for name, good, wanted in (
            ("ratio", 0 < self.ratio <= 1, "0 < ratio <= 1"),
            ("patch", self.patch >= 1, "at least 1 pixel"),
            ("level", fits, expected.format(span)),
            ("base", 0 <= self.base <= 1, "0 <= base <= 1: it is a value before normalising"),
        ):
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {wanted}")


@dataclass(frozen=True)
class Filled:
    """Pictures filled in.

    images: (N, C, H, W) in [0, 1].  masked: the same with `base` wherever something was hidden.  hidden: (N, 1, H, W)
    bool; all of it, unless the mode is "random".
    """

    images: Tensor
    masked: Tensor
    hidden: Tensor


class Normalised(nn.Module):
    """A model of normalised pictures as one of pictures in [0, 1]: model((x - mean) / std).

    mean, std: a number for each channel, as `fastmix.DataLoader` takes them.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.model, self.mean, self.std = model, tuple(mean), tuple(std)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of pictures (N, C, H, W)."""
        mean, std = (images.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        logits: Tensor = self.model((images - mean) / std)
        return logits


def draw_turns(how: Filling, shape: tuple[int, int], key: Key, ids: Ids) -> Tensor:
    """(N, H, W) int64: in which turn, 0, 1, ..., each pixel is hidden; -1 for never, which only "random" has.

    shape: (H, W).  ids: (N,) integers that name the pictures.
    """
    rows, columns = (-(-side // how.patch) for side in shape)
    place, cells = key.uniform(ids, _ORDER, rows * columns).argsort(1), rows * columns
    if how.mode == "random":
        turns = np.where(place < max(1, math.floor(how.ratio * cells + 0.5)), 0, -1)
    else:
        sets = min(math.floor(1 / how.ratio + 0.5), cells)
        turns = np.minimum(place // (cells // sets), sets - 1)
    y, x = (np.arange(side) // how.patch for side in shape)
    return torch.from_numpy(turns.reshape(-1, rows, columns)[:, y][:, :, x])


@torch.no_grad()
def fill_in(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    how: Filling | None = None,
    key: Key | None = None,
    ids: Ids | None = None,
) -> Filled:
    """Hide a part of each picture and fill it in with what raises the model's probability of a label.

    Args:
        model: Gives logits (N, K) of pictures in [0, 1].
        images: (N, C, H, W) floating in [0, 1], on the model's device.
        labels: (N,) integers, the classes to fill towards: those of the pictures, or others.
        how: By default `Filling()`.
        key: Names the masks; by default `Key(0)`.  With `Key(seed, epoch=m)` it is mask number m of each picture.
        ids: (N,) integers that name the pictures; by default 0..N-1.

    Returns:
        The filled pictures.  Where a picture's gradient is 0 or not finite, nothing is filled in.

    Raises:
        ValueError: Pictures, labels or logits are not as above.
    """
    how, key = how or Filling(), key or Key(0)
    labels, images = check_pictures(images, labels), images.detach()
    shape, ids = (images.shape[2], images.shape[3]), np.arange(len(images)) if ids is None else ids
    turns = draw_turns(how, shape, key, ids)[:, None].to(images.device)
    blank = torch.full_like(images, how.base)
    start = done = blank if how.mode == "blank" else images
    with evaluating(model):
        for turn in range(int(turns.max()) + 1):
            hidden = turns == turn
            masked = torch.where(hidden, blank, start if how.mode == "independent" else done)
            update = torch.where(hidden, _update(model, masked, labels), 0)
            done = torch.where(hidden, (masked + threshold(update, hidden, how)).clamp(0, 1), done)
    return Filled(done, torch.where(turns >= 0, blank, images), turns >= 0)


def threshold(update: Tensor, hidden: Tensor, how: Filling) -> Tensor:
    """What is added to the hidden values, (N, C, H, W), before the sum is clamped to [0, 1]; see `Filling.threshold`.

    update: (N, C, H, W), minus the gradient, 0 where nothing is hidden.  hidden: (N, 1, H, W) bool.
    """
    update = torch.where(update.isfinite().flatten(1).all(1)[:, None, None, None], update, 0)
    if how.threshold == "raw":
        return how.level * update
    size = update.abs() if how.threshold == "signed" else update.clamp(min=0)
    if how.threshold == "quantile":
        rank = size.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(1).view_as(size)
        count = (how.level * update.shape[1] * hidden.sum((1, 2, 3), keepdim=True) + 0.5).floor().clamp(min=1)
        chosen = (rank < count) & (size > 0)
    else:
        chosen = size > how.level * size.amax((1, 2, 3), keepdim=True)
    return torch.where(chosen, update.sign(), 0)


def noise_fill(filled: Filled, key: Key, ids: Ids) -> Tensor:
    """`filled.masked` with as many hidden pixels set as in `filled`, anywhere, to uniform levels: (N, C, H, W)."""
    n, channels, height, width = filled.images.shape
    count = (filled.images != filled.masked).any(1).sum((1, 2))
    rank = _shuffled(filled.hidden, key, ids, _NOISE).argsort(1)
    chosen = (rank < count[:, None]).view(n, 1, height, width)
    levels = torch.from_numpy(key.uniform(ids, _LEVELS, channels * height * width)).view(filled.images.shape)
    return torch.where(chosen, levels.to(filled.images), filled.masked)


def shuffled_fill(filled: Filled, key: Key, ids: Ids) -> Tensor:
    """`filled` with its hidden pixels, all their channels together, moved about among themselves: (N, C, H, W)."""
    pixels = filled.images.flatten(2)
    before = (~filled.hidden).byte().flatten(1).argsort(dim=1, stable=True)
    after = _shuffled(filled.hidden, key, ids, _SHUFFLE)
    source, target = (each[:, None].expand_as(pixels) for each in (before, after))
    return torch.empty_like(pixels).scatter_(2, target, pixels.gather(2, source)).view_as(filled.images)


def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    """The model's output.  Raises ValueError unless it is (N, K) floating."""
    logits = model(images)
    if isinstance(logits, Tensor) and logits.ndim == 2 and logits.is_floating_point():
        return logits
    shown = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
    raise ValueError(f"the model gives {shown} for {len(images)} pictures, expected floating logits (N, K)")


def check_pictures(images: Tensor, labels: Tensor) -> Tensor:
    """The labels as int64 on the images' device.  Raises ValueError unless pictures in [0, 1] have one label each."""
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ValueError(f"images are {images.dtype} {tuple(images.shape)}, expected floating (N, C, H, W), N >= 1")
    low, high = images.aminmax()
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"images run from {low.item():.3g} to {high.item():.3g}, expected [0, 1]: give pictures that are not "
            "normalised, and put Normalised(model, mean, std) around the model"
        )
    if labels.shape != images.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels are {labels.dtype} {tuple(labels.shape)}, expected integers ({len(images)},)")
    return labels.to(images.device, torch.int64)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode; each module gets back the mode it had."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _update(model: nn.Module, masked: Tensor, labels: Tensor) -> Tensor:
    """Minus the gradient of each picture's own cross-entropy with respect to the masked picture."""
    masked.requires_grad_()
    with torch.enable_grad():
        logits = logits_of(model, masked)
        if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
            ends = f"{labels.min()} to {labels.max()}"
            raise ValueError(f"labels run from {ends}, but the model has {logits.shape[1]} outputs")
        # in float64 the gradient is still there when the class is as good as certain
        loss = F.cross_entropy(logits.double(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, masked)
    return -gradient


def _shuffled(hidden: Tensor, key: Key, ids: Ids, stream: int) -> Tensor:
    """(N, H W) numbers of pixels: the hidden ones first, in random order, then the others in their own."""
    draws = torch.from_numpy(key.uniform(ids, stream, hidden[0].numel())).to(hidden.device)
    return torch.where(hidden.flatten(1), draws, 2).argsort(dim=1, stable=True)
