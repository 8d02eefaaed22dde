"""Maps of what the model looks at, read out of the training step that is made anyway.  Needs torch.

`AttributionHook` keeps the outputs of named layers during the forward pass; `AttributionHook.maps` differentiates a
target (the loss, say) with respect to them and makes class activation maps.  There is no second forward, and parameter
gradients, modes, buffers, generators and hooks are afterwards what they would have been without it.

- Several forwards: maps are those of the last one with gradients; those under `no_grad` leave no trace.  With gradient
  accumulation, read the maps of each micro-batch before its `backward()`.
- Mixed precision: maps are computed in float32.  With a GradScaler give the scaled loss, whose gradients do not
  underflow; its factor cancels unless norm="none".
- torch.compile: the gradient of an inner tensor cannot be had from a compiled graph, so nothing is kept of a compiled
  forward.  Run `hook.model`, the same module uncompiled, where maps are read, and the compiled one elsewhere.
- DistributedDataParallel: names are those of the wrapped module, maps those of the own rank; nothing is communicated.
- Activation checkpoints need use_reentrant=False.  Sharded parameters (FSDP) have not been tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, get_args

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('fastmix.attribution needs torch: pip install "fastmix[torch]"') from missing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

MapMethod = Literal["layer_cam", "grad_cam", "hires_cam", "input_gradient"]
Norm = Literal["image", "batch", "none"]
Fuse = Literal["sum", "mean", "max"]
Scale = Literal["none", "tanh"]
Sign = Literal["loss", "neg_loss"]

_FLAT = 1e-6  # a map whose range is this share of its peak is constant but for rounding
_TANH = 2.0
_INPUT = "input"


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
    """
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


@dataclass(frozen=True)
class Fallbacks:
    """Counts since a hook was made, one map a sample and layer.

    maps: all.  flat: without contrast or positive evidence.  nonfinite: with NaN or infinity.  Flat and nonfinite maps
    were replaced by zeros.
    """

    maps: int
    flat: int
    nonfinite: int


class AttributionHook:
    """Keeps layer outputs during forward passes inside its with-block, and makes maps of them.

    Name the last layer of a block: what is kept is the layer's output before anything changes it in place.  In a
    vision transformer whose head reads the class token, the patch tokens of the last block have no gradient: name an
    earlier block, or the first norm of the last one (`fallbacks.flat` tells).  Kept tensors are dropped at the next
    forward and when the block ends; copy and pickle models outside of it.  Backward passes run down to the first named
    layer even if all before it is frozen, and without layers to the pictures.

    Args:
        model: Called with pictures, (N, C, H, W) floating, as its first argument.  Wrappers of
            DistributedDataParallel and torch.compile are taken off (see the module's text on the latter).
        layers: Names as in `model.named_modules()`.  None named: the input itself, for method="input_gradient".
        reshape: Turns a layer's output into (N, C, h, w): `token_grid(h, w)` for a vision transformer, or
            `lambda y: y.movedim(-1, 1)` where channels come last.

    Raises:
        ValueError: A name is unknown; close ones are listed.
        TypeError: The model is a DataParallel; or, in the forward, a named layer does not return one floating tensor.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[str] = (), *, reshape: Callable[[Tensor], Tensor] | None = None
    ):
        self.model = _unwrapped(model)
        self._layers = _find(self.model, (layers,) if isinstance(layers, str) else layers)
        self._reshape = reshape
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, Tensor] = {}
        self._repeated: set[str] = set()
        self._inside = False
        self._made = 0
        self._failed: Tensor | None = None

    def __enter__(self) -> AttributionHook:
        if self._handles:
            raise RuntimeError("this AttributionHook is open already: leave its with-block before the next one")
        self._handles = [
            self.model.register_forward_pre_hook(self._begin),
            self.model.register_forward_hook(self._end, always_call=True),
            *(layer.register_forward_hook(partial(self._keep, name)) for name, layer in self._layers.items()),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._forget()

    @property
    def fallbacks(self) -> Fallbacks:
        """How many maps were replaced by zeros so far.  Reading it waits for the device."""
        flat, nonfinite = (0, 0) if self._failed is None else self._failed.tolist()
        return Fallbacks(self._made, flat, nonfinite)

    def maps(
        self,
        target: Tensor,
        *,
        method: MapMethod = "layer_cam",
        size: tuple[int, int] | None = None,
        norm: Norm = "image",
        fuse: Fuse = "sum",
        scale: Scale = "none",
        sign: Sign = "loss",
    ) -> Tensor:
        """Maps of the last forward, to be read before `target.backward()`, several times if need be.

        Args:
            target: A scalar, or (N,) one score a sample, computed from the last forward.
            method: What to make of activations and gradients; "input_gradient" wants a hook without layers.
            size: (height, width) of the maps; None takes the largest named layer's.
            norm: Of each layer's maps, as in `normalise_maps`.
            fuse: Of the layers, after normalising, as in `fuse_maps`.
            scale: As in `normalise_maps`.
            sign: "loss" differentiates `target`, "neg_loss" -target.  Of a loss, "loss" marks where more activation
                raises it, "neg_loss" the evidence that lowers it.  For a score take "loss".

        Returns:
            (N, h, w) float32 on the model's device, without gradient: in [0, 1] after "mean", "max" or for one layer,
            in [0, number of layers] after "sum", >= 0 if norm is "none".  Maps without evidence are zeros.

        Raises:
            ValueError: An option, the target or a layer's shape does not fit, or the target does not depend on a layer.
            RuntimeError: There is no forward to read from, a layer ran twice in it, or its graph is gone.
        """
        _check(
            method=(method, MapMethod), norm=(norm, Norm), fuse=(fuse, Fuse), scale=(scale, Scale), sign=(sign, Sign)
        )
        if (method == "input_gradient") == bool(self._layers):
            fix = "AttributionHook(model) without layers" if self._layers else "AttributionHook(model, layers)"
            raise ValueError(f"method is {method!r}, which needs a hook of its own: {fix}")
        make = {"layer_cam": layer_cam, "grad_cam": grad_cam, "hires_cam": hires_cam, "input_gradient": input_gradient}
        raw = (make[method](*pair) for pair in self._pairs(target, sign))
        maps, flat, nonfinite = zip(*(normalise_maps(each, norm, scale) for each in raw), strict=True)
        failed = torch.stack([torch.cat(flat).sum(), torch.cat(nonfinite).sum()])
        self._failed = failed if self._failed is None else self._failed.to(failed.device) + failed
        self._made += sum(map(len, maps))
        return fuse_maps(maps, size, fuse)

    def _pairs(self, target: Tensor, sign: Sign) -> list[tuple[Tensor, Tensor]]:
        """Activations and gradients (N, C, h, w) of each layer."""
        _check_target(target)
        names = list(self._layers) or [_INPUT]
        kept = [self._output(name) for name in names]
        seen = dict(self._seen)
        try:
            start = torch.full_like(target, 1 if sign == "loss" else -1)
            gradients = torch.autograd.grad(target, kept, start, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise RuntimeError("the graph of target is gone: read maps() before target.backward()") from error
        finally:
            self._seen = seen  # activation checkpoints have run layers once more
        lost = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
        if lost:
            raise ValueError(f"target does not depend on {lost[0]!r} in the last forward: compute it from that one")
        found = zip(names, kept, gradients, strict=True)
        return [(self._spatial(name, each.detach()), self._spatial(name, gradient)) for name, each, gradient in found]

    def _output(self, name: str) -> Tensor:
        if name in self._repeated:
            raise RuntimeError(f"layer {name!r} ran more than once in the last forward: name layers that run once")
        if name not in self._seen:
            raise RuntimeError(
                f"no output of {name!r} was kept: run hook.model inside the with-block before maps(), uncompiled, with "
                "gradients (not under no_grad or inference_mode, nor in a reentrant checkpoint)"
            )
        return self._seen[name]

    def _spatial(self, name: str, value: Tensor) -> Tensor:
        value = self._reshape(value) if self._reshape and self._layers else value
        if value.ndim != 4:
            raise ValueError(
                f"{name!r} has shape {tuple(value.shape)}, expected (N, C, h, w): name a layer before the pooling, or "
                "turn tokens into a picture with reshape=token_grid(h, w)"
            )
        return value

    def _begin(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        self._forget()
        self._inside = True
        return None if self._layers else (self._tap(_INPUT, args[0] if args else None), *args[1:])

    def _keep(self, name: str, _module: nn.Module, _args: Any, output: Any) -> Tensor | None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        if self._inside and name in self._seen:
            self._repeated.add(name)
        return self._tap(name, output)

    def _end(self, *_: object) -> None:
        self._inside = False

    def _tap(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            what = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name!r} is a {what}, expected one floating tensor: name another layer, or convert")
        kept = self._seen[name] = value if value.requires_grad else value.detach().requires_grad_()
        return kept.clone()  # so that an in-place operation that follows, such as ReLU, leaves the kept one as it is

    def _forget(self) -> None:
        self._seen, self._repeated, self._inside = {}, set(), False


def _check(**options: tuple[object, Any]) -> None:
    for name, (value, kind) in options.items():
        if value not in get_args(kind):
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, nn.DataParallel):
        raise TypeError("the model is a DataParallel, whose copies cannot be watched: use DistributedDataParallel")
    compiled = getattr(model, "_orig_mod", None)
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else compiled
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model


def _find(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    for name in names:
        if name not in modules:
            close = ", ".join(map(repr, get_close_matches(name, modules, 5, 0.4) or list(modules)[:5]))
            raise ValueError(f"{type(model).__name__} has no layer {name!r}, expected one such as {close}")
    return {name: modules[name] for name in names}


def _check_target(target: Tensor) -> None:
    if not isinstance(target, Tensor) or not target.requires_grad:
        raise ValueError("target has no gradient: compute it from the last forward, without detach() and no_grad")
    if target.ndim > 1:
        fix = "of logits (N, C) take each sample's class, logits.gather(1, labels[:, None])[:, 0]"
        raise ValueError(f"target has shape {tuple(target.shape)}, expected a scalar or (N,): {fix}")


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
