"""GradMix while training: the model's gradients choose which part of a view another picture covers.

Xu, Kao and Keuper, "GradMix" (arXiv 2505.12803, 2025).  A step runs the model on two clean views of each sample, reads
LayerCAM maps out of the gradient of their loss, covers the most active window of each view, and runs the model on these
mixed views.  The clean forward and its graph serve the maps and the training alike, so that a step costs two forwards,
one backward of both and the way back from the loss to the first named layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from .. import windows
from ..attribution import AttributionHook, Fuse, Norm, Sign
from ..rng import F64, Ids, Key, Stream
from .contrastive import Form, Weight, contrastive_objective, unit_rows

# Streams of its own: a loader with the same seed may mix, too.
_SIZE, _PLACE, _PARTNER, _NOISE, _COIN = range(Stream.METHOD + 16, Stream.METHOD + 21)


@dataclass(frozen=True)
class MixedViews:
    """What `GradMixStep.mix` made of x (2B, C, H, W).  Nothing in it carries gradients.

    images: (2B, C, H, W), x with its windows filled; same dtype and memory format.
    boxes: (2B, 4) int64 (y0, y1, x0, x1), ends exclusive; zeros in views that are left as they are.
    weight: (2B,) float32, of each mixed row in the loss.
    partner: (2B,) int64, the row of x that fills the window; its own number where no other picture does.
    maps: (2B, H, W) float32 that the windows were found on; None without attribution.
    random: (2B,) bool, True where the window was placed at random: the map had no contrast or was not finite, or
        locate is "random".  `random.sum()` counts them.
    """

    images: Tensor
    boxes: Tensor
    weight: Tensor
    partner: Tensor
    maps: Tensor | None
    random: Tensor


@dataclass(frozen=True)
class StepOutput:
    """The loss of a step, a scalar to call backward() on, and its mixed views; None in steps that do not mix."""

    loss: Tensor
    mixed: MixedViews | None


@dataclass(frozen=True)
class GradMixStep:
    """Every choice of a GradMix step; the defaults are `paper()`.  docs/gradmix.md tells why each of them is open.

    layers: Names of the layers whose maps are fused, as in `model.named_modules()`.
    size_range, size_mode, rounding: Sizes of windows, as in `fastmix.windows.window_sizes`.
    size_draw: One size for each view ("per_image"), or one a batch.
    locate: The window with the largest sum of the map ("boxsum") or around its "peak"; as controls, the one with the
        "least" sum, or one at "random", for which no maps are computed.
    border: Of "peak", as in `fastmix.windows.peak_windows`.
    fill: The other view of a batch mate, shrunk to the window ("paste_other") or the same place of it ("paste_crop");
        "noise", uniform in (0, 1) and equal in all channels; the view's own "mean" colour; or "zero".
    views: "both" are mixed, each by its own map, or the "first" only.
    norm, fuse, sign: As in `AttributionHook.maps`.
    attr_loss: What is differentiated: NT-Xent ("ssl"), theta SupCon + lam NT-Xent ("total"), "supcon", or the mean of
        z_i . z_j(i) ("positive_similarity"), a score, for which sign="loss" marks what raises it.
    weight_mode: Of a mixed row: the covered share of its area ("masked"), the rest of it ("kept"), that rest as it was
        drawn, before clipping, for both views even if one is left alone ("kept_nominal"), or 1 ("none").
    mix_loss (form), mix_combine (combine), theta, lam, temperature, base_temperature: Of `contrastive_objective`.
    start_epoch, prob, every: Steps are mixed from that epoch on, if their index is a multiple of `every`, and then by a
        coin that all ranks throw alike.  Others cost and train what they would without GradMix.
    group: Size of the mix groups in which partners are drawn.  A sample alone in one is covered by its mean colour.
    reshape: Of `AttributionHook`, for transformers.

    Raises:
        ValueError: A value is outside its range or unknown.
    """

    layers: Sequence[str] = ("layer2", "layer3", "layer4")
    size_range: tuple[float, float] = (0.1, 0.5)
    size_mode: windows.SizeMode = "side"
    rounding: windows.Rounding = "nearest"
    size_draw: Literal["per_image", "per_batch"] = "per_image"
    locate: Literal["boxsum", "peak", "least", "random"] = "boxsum"
    border: windows.Border = "shift"
    fill: Literal["paste_other", "paste_crop", "noise", "mean", "zero"] = "paste_other"
    views: Literal["both", "first"] = "both"
    norm: Norm = "image"
    fuse: Fuse = "sum"
    attr_loss: Literal["ssl", "total", "supcon", "positive_similarity"] = "ssl"
    sign: Sign = "loss"
    weight_mode: Literal["masked", "kept", "kept_nominal", "none"] = "masked"
    mix_loss: Form = "repo"
    mix_combine: Literal["add", "replace"] = "add"
    theta: float = 1.0
    lam: float = 1.0
    temperature: float = 0.05
    base_temperature: float | None = None
    start_epoch: int = 0
    prob: float = 1.0
    every: int = 1
    group: int = 16
    reshape: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, kind in get_type_hints(type(self)).items():
            choices, value = [each for each in get_args(kind) if isinstance(each, str)], getattr(self, name)
            if choices and value not in choices:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
        windows.window_sizes(np.zeros(1), (1, 1), self.size_range, self.size_mode, self.rounding)
        limits = {"theta": (0, math.inf), "lam": (0, math.inf), "prob": (0, 1)}
        limits |= {"start_epoch": (0, math.inf), "every": (1, math.inf), "group": (1, math.inf)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high or getattr(self, name) == math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a finite number from {low} to {high}")
        for name in ("temperature", "base_temperature"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a finite number above 0")
        if not self.layers and self.locate != "random":
            raise ValueError('layers are empty, expected names of layers, or locate="random"')

    @classmethod
    def paper(cls, **changes: Any) -> GradMixStep:
        """The paper's method, where it says what it does, and otherwise the choice that is easiest to defend."""
        return cls(**changes)

    @classmethod
    def repo(cls, **changes: Any) -> GradMixStep:
        """What the authors' program does, with its settings for CIFAR-10, but for its second clean forward."""
        kind: dict[str, Any] = {"size_mode": "area", "rounding": "floor", "size_draw": "per_batch", "locate": "peak"}
        kind |= {"border": "clip", "fill": "noise", "views": "first", "norm": "batch", "weight_mode": "kept_nominal"}
        return cls(**{**kind, "lam": 1.2, "base_temperature": 0.07, **changes})

    def step(
        self,
        model: nn.Module,
        x: Tensor,
        labels: Tensor | None = None,
        *,
        key: Key,
        ids: Any = None,
        index: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> StepOutput:
        """The loss of one training step: clean forward, maps, mixed views, mixed forward.

        Parameters' gradients are left alone, BatchNorm statistics and generators move as by the two forwards, and no
        hook stays.  Autocast is the caller's, around this call.  A DistributedDataParallel is called as it is; maps and
        negatives are those of the own rank.  A compiled model runs uncompiled where maps are read.

        Args:
            model: Returns features (2B, D), of any length.
            x: (2B, C, H, W) floating: the first views of B samples, then their second views in the same order.
            labels: (B,) or (2B,) integers; None if neither theta nor attr_loss needs them.
            key: Seed and epoch of all draws.
            ids: (B,) integers, the numbers of the samples.  Sizes are drawn by them, whatever the order and the rank.
                None draws by index and position in the batch.
            index: The number of the step in its epoch, the same on all ranks; for `every`, `prob`, and without ids.
            scaler: That of mixed precision in float16, so that the maps' gradients do not underflow.  The loss that is
                returned is not scaled.

        Returns:
            The loss, and the mixed views if the step mixes.

        Raises:
            TypeError: x is not floating, or a named layer does not return one floating tensor.
            ValueError: A shape does not fit, a layer is unknown or not spatial, or ids and index or labels are missing.
            RuntimeError: Gradients are off, or a layer ran twice.
        """
        _check_pictures(x)
        if not torch.is_grad_enabled():
            raise RuntimeError("gradients are off, but maps are made of them: call step outside no_grad")
        numbers = _numbers(ids, index, len(x) // 2)
        if not self.mixes(key, index):
            return StepOutput(self.objective(_features(model, x), labels), None)
        maps = None
        if self.locate == "random":
            z = _features(model, x)
        else:
            with self.hook(model) as hook:
                z = _features(getattr(model, "_orig_mod", model), x)
                maps = self.maps(hook, z, labels, size=(x.shape[2], x.shape[3]), scaler=scaler)
        mixed = self.mix(x, maps, key, numbers)
        return StepOutput(self.objective(z, labels, _features(model, mixed.images), mixed.weight), mixed)

    def mixes(self, key: Key, index: int | None = None) -> bool:
        """Whether step number `index` of the key's epoch mixes, by lam, start_epoch, every and prob."""
        if not self.lam or key.epoch < self.start_epoch:
            return False
        if self.every == 1 and self.prob == 1:
            return True
        if index is None:
            raise ValueError(f"index is None, but every is {self.every} and prob {self.prob}: give the step's number")
        return not index % self.every and bool(key.uniform(np.array([index]), _COIN, 1)[0, 0] < self.prob)

    def hook(self, model: nn.Module) -> AttributionHook:
        """Keeps the named layers' outputs of forwards inside its with-block.  Raises ValueError for unknown names."""
        return AttributionHook(model, self.layers, reshape=self.reshape)

    def maps(
        self,
        hook: AttributionHook,
        z: Tensor,
        labels: Tensor | None = None,
        *,
        size: tuple[int, int],
        scaler: torch.amp.GradScaler | None = None,
    ) -> Tensor:
        """LayerCAM maps of `attr_loss`: (2B, *size) float32, >= 0, without gradient; zeros where there is no evidence.

        hook: From `hook`, or any with layers.  z: (2B, D), what its last forward returned.  labels, scaler: As in
        `step`; the scaler's factor is taken out of the maps again.  Raises what `AttributionHook.maps` does.
        """
        loss = self._attributed(z, labels)
        target = loss if scaler is None else scaler.scale(loss)
        maps = hook.maps(target, size=size, norm=self.norm, fuse=self.fuse, sign=self.sign)
        if scaler is None or self.norm != "none":
            return maps
        return maps / scaler.scale(torch.ones((), device=maps.device))

    @torch.no_grad()
    def mix(self, x: Tensor, maps: Tensor | None, key: Key, ids: Any) -> MixedViews:
        """Cover a window of each view.

        Args:
            x: (2B, C, H, W) floating, both views.
            maps: (2B, H, W) floating, of whatever model and target; not looked at if locate is "random".
            key: Seed and epoch of all draws.
            ids: (B,) integers, the numbers of the samples.

        Raises:
            TypeError, ValueError: x, maps or ids do not fit.
        """
        _check_pictures(x)
        ids, shape = _numbers(ids, None, len(x) // 2), (x.shape[2], x.shape[3])
        rows = len(x) if self.views == "both" else len(x) // 2
        sizes = windows.window_sizes(self._sizes(key, ids), shape, self.size_range, self.size_mode, self.rounding)
        boxes = torch.from_numpy(windows.place_windows(_of_views(key, ids, _PLACE, 2), sizes, shape)).to(x.device)
        random = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if self.locate != "random":
            if maps is None or maps.shape != (len(x), *shape):
                what = "None" if maps is None else f"of shape {tuple(maps.shape)}"
                raise ValueError(f"maps are {what}, expected {(len(x), *shape)}: make them with size={shape}")
            low, high = maps.amin((1, 2)), maps.amax((1, 2))
            random = ~((low < high) & (high - low).isfinite())
            boxes = torch.where(random[:, None], boxes, self._found(maps, sizes))
        boxes[rows:], random[rows:] = 0, False
        partner = self._partners(key, ids, rows)
        cover = windows.paste_windows if self.fill == "paste_other" else windows.fill_windows
        images = cover(x, self._content(x, partner, key, ids), boxes)
        weight = self._weights(boxes, sizes, math.prod(shape))
        return MixedViews(images, boxes, weight, torch.from_numpy(partner).to(x.device), maps, random)

    def objective(
        self, z: Tensor, labels: Tensor | None = None, z_mixed: Tensor | None = None, weight: Weight = 1.0
    ) -> Tensor:
        """`contrastive_objective` with these settings; without z_mixed, its clean terms."""
        options: dict[str, Any] = {"theta": self.theta, "lam": self.lam, "temperature": self.temperature}
        options |= {"base_temperature": self.base_temperature, "form": self.mix_loss, "combine": self.mix_combine}
        return contrastive_objective(z, labels, z_mixed, mixed_weight=weight, **options)

    def _attributed(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """The scalar that the maps are made of."""
        if self.attr_loss == "positive_similarity":
            rows = unit_rows(z, "z")
            return (rows * rows.roll(len(rows) // 2, 0)).sum(1).mean()
        if self.attr_loss == "supcon" and labels is None:
            raise ValueError('attr_loss is "supcon", but labels are None: give the labels, or attr_loss="ssl"')
        theta, lam = {"ssl": (0.0, 1.0), "supcon": (1.0, 0.0)}.get(self.attr_loss, (self.theta, self.lam))
        tau, base = self.temperature, self.base_temperature
        return contrastive_objective(z, labels, theta=theta, lam=lam, temperature=tau, base_temperature=base)

    def _sizes(self, key: Key, ids: Ids) -> F64:
        """(2B,) draws; that of a whole batch belongs to its smallest id, so that the order changes nothing."""
        if self.size_draw == "per_batch":
            return np.full(2 * len(ids), key.uniform(ids.min(keepdims=True), _SIZE, 1)[0, 0])
        return _of_views(key, ids, _SIZE, 1)[:, 0]

    def _found(self, maps: Tensor, sizes: Ids) -> Tensor:
        if self.locate == "peak":
            return windows.peak_windows(maps, sizes, self.border)
        return windows.find_windows(-maps if self.locate == "least" else maps, sizes)

    def _partners(self, key: Key, ids: Ids, rows: int) -> Ids:
        """(2B,) rows that fill the windows of the first `rows`: mates' other views, or the own row for none."""
        n, own = len(ids), np.arange(2 * len(ids))
        if not self.fill.startswith("paste"):
            return own
        mate = key.partners(ids, _PARTNER, self.group)
        return np.where(np.tile(mate == own[:n], 2) | (own >= rows), own, np.concatenate([mate + n, mate]))

    def _content(self, x: Tensor, partner: Ids, key: Key, ids: Ids) -> Tensor:
        """What the windows show: the partner, and the mean colour where there is none."""
        if self.fill == "zero":
            return x.new_zeros(1)
        if self.fill == "noise":
            noise = _of_views(key, ids, _NOISE, x[0, 0].numel()).astype(np.float32)
            return torch.from_numpy(noise).to(x.device).reshape(len(x), 1, *x.shape[2:])
        alone = torch.from_numpy(partner == np.arange(len(x))).to(x.device)[:, None, None, None]
        return torch.where(alone, x.mean((2, 3), keepdim=True), x[torch.from_numpy(partner).to(x.device)])

    def _weights(self, boxes: Tensor, sizes: Ids, pixels: int) -> Tensor:
        if self.weight_mode == "none":
            return torch.ones(len(boxes), device=boxes.device)
        if self.weight_mode == "kept_nominal":
            return (1 - torch.from_numpy(sizes.prod(1) / pixels)).float().to(boxes.device)
        covered = windows.box_areas(boxes) / pixels
        return covered if self.weight_mode == "masked" else 1 - covered


def _of_views(key: Key, ids: Ids, stream: int, count: int) -> F64:
    """(2B, count) draws: those of the first views, then those of the second."""
    return np.concatenate([replace(key, view=view).uniform(ids, stream, count) for view in (0, 1)])


def _numbers(ids: Any, index: int | None, count: int) -> Ids:
    """(count,) numbers of the samples, or of their positions in this step."""
    if ids is None:
        if index is None:
            raise ValueError("ids and index are None: give ids, the samples' numbers, or index, the step's number")
        return (index << 24) + np.arange(count)  # batches of 16.8 million keep apart
    numbers = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise ValueError(f"ids are {numbers.dtype} {numbers.shape}, expected integers ({count},), one for two views")
    return numbers.astype(np.int64)


def _check_pictures(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}, expected floating pictures: normalise them first")
    if x.ndim != 4 or len(x) == 0 or len(x) % 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, expected (2B, C, H, W): B first views, then their second views"
        )


def _features(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x)
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x):
        what = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"the model returned {what}, expected features ({len(x)}, D), one row for each view")
    return z
