"""Maps of what the model looks at, read out of the training step that is made anyway.  Needs torch.

`AttributionHook` keeps the outputs of named layers during the forward pass; `AttributionHook.maps` makes class
activation maps of them.  There is no second forward, and parameter gradients, modes, buffers, generators and hooks are
afterwards what they would have been without it.  Gradients come in either of two ways, and the rest holds of both:

- `maps(target)`, before `backward()`, differentiates a target (the loss, say) down to the first named layer: any target
  and any number of them, each for a share of a backward.
- With keep_gradients=True, `loss.backward()` leaves its gradients at the named layers in passing, and `maps()` without
  a target reads them afterwards.  There is no other backward, and the target is the loss that was trained on:

      with AttributionHook(model, ["layer3"], keep_gradients=True) as hook:
          loss = criterion(model(images), labels)
          loss.backward()
          maps = hook.maps(size=(8, 8))

  If several backward passes reach a layer after one forward (retain_graph=True, `torch.autograd.grad`, `maps(target)`
  of another hook), the last one counts, by itself and not summed.

- Several forwards: maps are those of the last one with gradients; those under `no_grad` leave no trace.  With gradient
  accumulation each micro-batch has a forward and a backward, and maps of its own: read them before that backward, or
  between it and the next forward.
- Mixed precision: maps are computed in float32.  With a GradScaler give the scaled loss, whose gradients do not
  underflow, or call its backward(); the factor cancels unless norm="none".
- torch.compile: the gradient of an inner tensor cannot be had from a compiled graph, so nothing is kept of a compiled
  forward.  Run `hook.model`, the same module uncompiled, where maps are read, and the compiled one elsewhere.
- DistributedDataParallel: names are those of the wrapped module, maps those of the own rank; nothing is communicated.
- Activation checkpoints need use_reentrant=False.  Sharded parameters (FSDP) have not been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, get_args

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('fastmix.attribution needs torch: pip install "fastmix[torch]"') from missing
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .cams import (
    Fuse,
    Norm,
    Scale,
    fuse_maps,
    grad_cam,
    hires_cam,
    input_gradient,
    layer_cam,
    normalise_maps,
    token_grid,
)

__all__ = [
    "AttributionHook", "Fallbacks", "Fuse", "MapMethod", "Norm", "Scale", "Sign",
    "fuse_maps", "grad_cam", "hires_cam", "input_gradient", "layer_cam", "normalise_maps", "token_grid",
]  # fmt: skip

MapMethod = Literal["layer_cam", "grad_cam", "hires_cam", "input_gradient"]
Sign = Literal["loss", "neg_loss"]

_INPUT = "input"


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
        keep_gradients: Remember what backward passes leave at the kept outputs, for `maps()` without a target.  Costs
            the memory of one gradient a layer, until the next forward or the end of the block.

    Raises:
        ValueError: A name is unknown; close ones are listed.
        TypeError: The model is a DataParallel; or, in the forward, a named layer does not return one floating tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str] = (),
        *,
        reshape: Callable[[Tensor], Tensor] | None = None,
        keep_gradients: bool = False,
    ):
        self.model = _unwrapped(model)
        self._layers = _find(self.model, (layers,) if isinstance(layers, str) else layers)
        self._reshape, self._keeps_gradients = reshape, keep_gradients
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, Tensor] = {}
        self._passing: dict[str, _Passing] = {}
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
        target: Tensor | None = None,
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
            target: A scalar, or (N,) one score a sample, computed from the last forward.  None, with keep_gradients,
                takes the gradients of the last backward() since that forward, and is read after it.
            method: What to make of activations and gradients; "input_gradient" wants a hook without layers.
            size: (height, width) of the maps; None takes the largest named layer's.
            norm: Of each layer's maps, as in `normalise_maps`.
            fuse: Of the layers, after normalising, as in `fuse_maps`.
            scale: As in `normalise_maps`.
            sign: Of the gradients: "neg_loss" negates them.  Of a loss, "loss" marks where more activation raises it,
                "neg_loss" the evidence that lowers it.  For a score take "loss".

        Returns:
            (N, h, w) float32 on the model's device, without gradient: in [0, 1] after "mean", "max" or for one layer,
            in [0, number of layers] after "sum", >= 0 if norm is "none".  Maps without evidence are zeros.

        Raises:
            ValueError: An option, the target or a layer's shape does not fit, the target does not depend on a layer, or
                there is none and gradients are not kept.
            RuntimeError: There is no forward to read from, a layer ran twice in it, its graph is gone, or no backward()
                has reached a layer.
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

    def _pairs(self, target: Tensor | None, sign: Sign) -> list[tuple[Tensor, Tensor]]:
        """Activations and gradients (N, C, h, w) of each layer."""
        names = list(self._layers) or [_INPUT]
        gradients = self._left(names, sign) if target is None else self._derivatives(names, target, sign)
        found = zip(names, gradients, strict=True)
        return [(self._spatial(name, self._seen[name].detach()), self._spatial(name, each)) for name, each in found]

    def _derivatives(self, names: list[str], target: Tensor, sign: Sign) -> list[Tensor]:
        """Gradients of the target, by a backward pass down to the first of the layers."""
        _check_target(target)
        kept = [self._output(name) for name in names]
        before = {name: each.gradient for name, each in self._passing.items()}
        try:
            start = torch.full_like(target, 1 if sign == "loss" else -1)
            gradients = torch.autograd.grad(target, kept, start, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise RuntimeError(
                "the graph of target is gone: read maps() before target.backward(), or after it without a target, from "
                "a hook with keep_gradients=True"
            ) from error
        finally:
            for name, gradient in before.items():
                self._passing[name].gradient = gradient  # this pass is not the one that trains
        lost = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
        if lost:
            raise ValueError(f"target does not depend on {lost[0]!r} in the last forward: compute it from that one")
        return list(gradients)

    def _left(self, names: list[str], sign: Sign) -> list[Tensor]:
        """Gradients that the last backward() has left."""
        if not self._keeps_gradients:
            raise ValueError(
                "target is None, but this hook keeps no gradients: make it with keep_gradients=True, or give the loss, "
                "before loss.backward()"
            )
        gradients = []
        for name in names:
            self._output(name)  # raises if there is none to go with a gradient
            gradient = self._passing[name].gradient
            if gradient is None:
                raise RuntimeError(
                    f"no gradient has reached layer {name!r}: call loss.backward() first, with a loss that depends on "
                    "what the layer returned in the last forward"
                )
            gradients.append(gradient if sign == "loss" else -gradient)
        return gradients

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
        if not _in_backward():
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
        kept = value if value.requires_grad else value.detach().requires_grad_()
        if not _in_backward():
            self._seen[name] = kept
            if self._keeps_gradients:
                self._passing[name] = _Passing(kept)
        return kept.clone()  # so that an in-place operation that follows, such as ReLU, leaves the kept one as it is

    def _forget(self) -> None:
        for each in self._passing.values():
            each.stop()
        self._seen, self._passing, self._repeated, self._inside = {}, {}, set(), False


class _Passing:
    """The gradient that the last backward pass has left at a tensor; not the tensor, that would be a cycle for ever."""

    def __init__(self, tensor: Tensor):
        self.gradient: Tensor | None = None
        self._leaf = tensor.is_leaf
        self._handle: RemovableHandle = tensor.register_hook(self._remember)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self._handle.remove()
        self.gradient = None

    def _remember(self, gradient: Tensor | None) -> None:
        if gradient is not None:  # which it is for a chunk of which only a sibling is used
            # A leaf's .grad is this very memory, and may be changed before maps are read.
            self.gradient = gradient.detach().clone() if self._leaf else gradient.detach()


def _in_backward() -> bool:
    """Whether this is a layer's second run, for its checkpoint; torch.utils.checkpoint asks in this way, too."""
    return torch._C._current_graph_task_id() != -1


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
