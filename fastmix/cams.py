"""Class activation maps as arithmetic: activations and gradients to maps, maps of several layers to one.  Needs torch.

`fastmix.attribution` gets both out of a training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('fastmix.cams needs torch: pip install "fastmix[torch]"') from missing
import torch.nn.functional as F
from torch import Tensor

Norm = Literal["image", "batch", "none"]
Fuse = Literal["sum", "mean", "max"]
Scale = Literal["none", "tanh"]

_FLAT = 1e-6  # a map whose range is this share of its peak is constant but for rounding
_TANH = 2.0


def layer_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_c relu(G_c) A_c); Jiang et al., "LayerCAM" (IEEE TIP 2021).

    Args:
        activations: (N, C, h, w), A.
        gradients: (N, C, h, w), G, the derivative of a scalar by A.

    Returns:
        (N, h, w) float32, >= 0.
    """
    return (_wide(gradients).relu() * _wide(activations)).sum(1).relu().float()


def grad_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_c mean(G_c) A_c); Selvaraju et al., "Grad-CAM" (ICCV 2017), equations 1-2.  Shapes as in `layer_cam`."""
    weights = _wide(gradients).mean((2, 3), keepdim=True)
    return (weights * _wide(activations)).sum(1).relu().float()


def hires_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_c G_c A_c); HiResCAM (arXiv 2011.08891) and a final relu.  Shapes as in `layer_cam`."""
    return (_wide(gradients) * _wide(activations)).sum(1).relu().float()


def input_gradient(_inputs: Tensor, gradients: Tensor) -> Tensor:
    """max_c |G_c|; Simonyan et al., "Deep inside convolutional networks" (2014), section 3.  Shapes: `layer_cam`."""
    return _wide(gradients).abs().amax(1).float()


def normalise_maps(maps: Tensor, norm: Norm = "image", scale: Scale = "none") -> tuple[Tensor, Tensor, Tensor]:
    """Bring the maps of one layer to [0, 1]; maps that say nothing become zeros, never NaN.

    Args:
        maps: (N, h, w) floating, >= 0.
        norm: (M - min) / (max - min), with both taken over each "image" or over the "batch"; or "none".
        scale: "tanh" first replaces M by tanh(2 M / max M) of each image (with norm="none" that is all, as the LayerCAM
            paper does with shallow layers); or "none".

    Returns:
        maps: (N, h, w), in [0, 1] unless both are "none".
        flat: (N,) bool, maps without contrast (all zero, or constant within 1e-6 of their peak): zeros in the result.
        nonfinite: (N,) bool, maps with NaN or infinity: zeros in the result, and not counted in a batch's range.
    """
    finite = maps.isfinite().flatten(1).all(1)[:, None, None]
    maps = torch.where(finite, maps, 0)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    flat = finite & (high - low <= _FLAT * high.abs())
    told = finite & ~flat
    if scale == "tanh":
        maps, low, high = (torch.tanh(_TANH * each / high) for each in (maps, low, high))
    if norm == "batch":
        low, high = torch.where(told, low, torch.inf).amin(), torch.where(told, high, -torch.inf).amax()
    if norm != "none":
        maps = (maps - low) / (high - low)
    return torch.where(told, maps, 0), flat.flatten(), ~finite.flatten()


def fuse_maps(maps: Sequence[Tensor], size: tuple[int, int] | None = None, fuse: Fuse = "sum") -> Tensor:
    """One map from those of several layers, resized bilinearly (corners not aligned) before they are fused.

    Args:
        maps: (N, h, w) each, with sizes of their own.
        size: (height, width) of the result; None takes the largest map's.
        fuse: "sum", "mean" or "max" over the layers.

    Returns:
        (N, height, width).

    Raises:
        ValueError: size is no pair of integers >= 1.
    """
    if size is not None and not (len(size) == 2 and all(isinstance(side, int) and side >= 1 for side in size)):
        raise ValueError(f"size is {size!r}, expected a pair (height, width) of integers >= 1")
    shape = size or max((each.shape[1:] for each in maps), key=math.prod)
    same = torch.cat([F.interpolate(each[:, None], shape, mode="bilinear", align_corners=False) for each in maps], 1)
    return same.amax(1) if fuse == "max" else same.sum(1) if fuse == "sum" else same.mean(1)


def token_grid(height: int, width: int) -> Callable[[Tensor], Tensor]:
    """For `AttributionHook(reshape=...)`: tokens (N, T, C) as (N, C, height, width).

    The last height * width tokens are the patches, in row-major order; class, distillation and register tokens before
    them are dropped.
    """

    def arrange(tokens: Tensor) -> Tensor:
        if tokens.ndim != 3 or tokens.shape[1] < height * width:
            raise ValueError(
                f"a layer gives shape {tuple(tokens.shape)}, expected tokens (N, T, C) with T >= {height} * {width}, "
                "the patches down and across"
            )
        return tokens[:, -height * width :].transpose(1, 2).reshape(len(tokens), -1, height, width)

    return arrange


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
