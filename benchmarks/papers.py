"""PixMix, IPMix, LayerMix and AugMix as their public programs run them: one picture at a time, in Pillow and torch.

For comparison only.  Each class is a picklable callable for a `torch.utils.data.Dataset`: a PIL picture and a PIL
mixing picture of the same S x S size in, a float32 (3, S, S) tensor out.  Costs are kept as published (every copy
goes through ToTensor, blends make float32 temporaries, IPMix normalises every branch), and so are the draws: the
same generators in the same order, so that a seed gives the published picture.

PixMix: Hendrycks et al., CVPR 2022.  IPMix: Huang et al., NeurIPS 2023.  LayerMix: Ahmad et al., 2025.
AugMix: Hendrycks et al., ICLR 2020.
"""
# Ops and blends of a family share one signature, though some need less of it.
# ruff: noqa: ARG001, ARG002

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode, Normalize
from torchvision.transforms import functional as tv
from torchvision.transforms.v2 import functional as v2

Picture = Image.Image
PilOp = Callable[[Picture, float], Picture]  # picture, severity
TensorOp = Callable[[Tensor, float], Tensor]  # picture, magnitude
Blend = Callable[[Tensor, Tensor, float], Tensor]  # base, second picture, beta
Finish = Callable[[Tensor], Tensor]

CIFAR_NORM = Normalize([0.5] * 3, [0.5] * 3)
IMAGENET_NORM = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def seed_worker(worker: int) -> None:
    """`worker_init_fn` of the published loaders: NumPy's global generator follows torch's."""
    np.random.seed(np.random.SeedSequence(torch.initial_seed()).generate_state(4))


# The Pillow ops: a strength is drawn from U(0.1, severity), and a sign where there is one.


def _level(severity: float, maximum: float) -> float:
    return float(np.random.uniform(0.1, severity)) * maximum / 10


def _signed(value: float) -> float:
    return -value if np.random.uniform() > 0.5 else value


def _affine(image: Picture, matrix: tuple[float, ...]) -> Picture:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def autocontrast_cut(image: Picture, severity: float) -> Picture:
    """IPMix's autocontrast: removes 10 - level percent at each end."""
    return ImageOps.autocontrast(image, cutoff=10 - _level(severity, 10))


def posterize(image: Picture, severity: float) -> Picture:
    return ImageOps.posterize(image, 4 - int(_level(severity, 4)))


def rotate(image: Picture, severity: float) -> Picture:
    return image.rotate(_signed(int(_level(severity, 30))), resample=Image.Resampling.BILINEAR)


def solarize(image: Picture, severity: float) -> Picture:
    return ImageOps.solarize(image, 256 - int(_level(severity, 256)))


def shear_x(image: Picture, severity: float) -> Picture:
    return _affine(image, (1, _signed(_level(severity, 0.3)), 0, 0, 1, 0))


def shear_y(image: Picture, severity: float) -> Picture:
    return _affine(image, (1, 0, 0, _signed(_level(severity, 0.3)), 1, 0))


def translate_x(image: Picture, severity: float) -> Picture:
    return _affine(image, (1, 0, _signed(int(_level(severity, image.width / 3))), 0, 1, 0))


def translate_y(image: Picture, severity: float) -> Picture:
    return _affine(image, (1, 0, 0, 0, 1, _signed(int(_level(severity, image.width / 3)))))


def _fixed(op: Callable[[Any], Any], image: Any, strength: float) -> Any:
    return op(image)


def _enhance(kind: Callable[[Picture], Any], image: Picture, severity: float) -> Picture:
    enhanced: Picture = kind(image).enhance(_level(severity, 1.8) + 0.1)
    return enhanced


_AUTOCONTRAST: PilOp = partial(_fixed, ImageOps.autocontrast)
_EQUALIZE: PilOp = partial(_fixed, ImageOps.equalize)
_MIRROR: PilOp = partial(_fixed, ImageOps.mirror)
_INVERT: PilOp = partial(_fixed, ImageOps.invert)
_SHARED: tuple[PilOp, ...] = (_EQUALIZE, posterize, rotate, solarize, shear_x, shear_y, translate_x, translate_y)
_ENHANCE: tuple[PilOp, ...] = tuple(
    partial(_enhance, kind)
    for kind in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness)
)
BASE_OPS = (_AUTOCONTRAST, *_SHARED)
ALL_OPS = BASE_OPS + _ENHANCE
IPMIX_OPS = (*_SHARED, _MIRROR, _INVERT)
IPMIX_ALL_OPS: tuple[PilOp, ...] = (autocontrast_cut, *_SHARED, *_ENHANCE, _MIRROR, _INVERT)


def _augment(image: Picture, ops: tuple[PilOp, ...], severity: float) -> Picture:
    return ops[np.random.choice(len(ops))](image.copy(), severity)


# The blends, on float32 tensors in [0, 1].


def _weights(beta: float) -> tuple[float, float]:
    if np.random.random() < 0.5:
        a, b = np.random.beta(beta, 1), np.random.beta(1, beta)
    else:
        a, b = 1 + np.random.beta(1, beta), -np.random.beta(1, beta)
    return float(np.float32(a)), float(np.float32(b))


def add(x: Tensor, y: Tensor, beta: float) -> Tensor:
    a, b = _weights(beta)
    return (a * (x * 2 - 1) + b * (y * 2 - 1) + 1) / 2


def multiply(x: Tensor, y: Tensor, beta: float) -> Tensor:
    a, b = _weights(beta)
    return (x * 2) ** a * (y * 2).clip(1e-37) ** b / 2


def random_pixels(x: Tensor, y: Tensor, beta: float) -> Tensor:
    field = torch.rand(1, x.size(1), x.size(2))
    mask = (field < torch.rand(1)).float()
    return mask * x + (1 - mask) * y


def random_elems(x: Tensor, y: Tensor, beta: float) -> Tensor:
    field = torch.rand(x.size())
    mask = (field < torch.rand(1)).float()
    return mask * x + (1 - mask) * y


# LayerMix's ops, on float tensors in [0, 1]: a strength is drawn between 0.1 and the maximum at this magnitude.


def _strength(maximum: float, magnitude: float) -> float:
    return random.uniform(0.1, maximum * magnitude / 10)


def _signed_strength(maximum: float, magnitude: float) -> float:
    value = _strength(maximum, magnitude)
    return value if random.random() > 0.5 else -value


def _float_affine(x: Tensor, translate: tuple[float, float] = (0, 0), shear: tuple[float, float] = (0, 0)) -> Tensor:
    moved: Tensor = v2.affine(
        x, 0.0, list(translate), 1.0, [math.degrees(math.atan(s)) for s in shear], InterpolationMode.BILINEAR
    )
    return moved


def float_posterize(x: Tensor, magnitude: float) -> Tensor:
    return v2.posterize(x, int(_strength(4, magnitude)))  # type: ignore[no-any-return]


def float_posterize_increasing(x: Tensor, magnitude: float) -> Tensor:
    return v2.posterize(x, 4 - int(_strength(4, magnitude)))  # type: ignore[no-any-return]


def float_solarize(x: Tensor, magnitude: float) -> Tensor:
    return v2.solarize(x, _strength(1, magnitude))  # type: ignore[no-any-return]


def float_solarize_increasing(x: Tensor, magnitude: float) -> Tensor:
    return v2.solarize(x, _strength(1, 1 - magnitude))  # type: ignore[no-any-return]


def float_grayscale(x: Tensor, magnitude: float) -> Tensor:
    return v2.rgb_to_grayscale(x, num_output_channels=3)  # type: ignore[no-any-return]


def float_rotate(x: Tensor, magnitude: float) -> Tensor:
    return v2.rotate(x, _signed_strength(30, magnitude), InterpolationMode.BILINEAR)  # type: ignore[no-any-return]


def float_shear_x(x: Tensor, magnitude: float) -> Tensor:
    return _float_affine(x, shear=(_signed_strength(0.3, magnitude), 0))


def float_shear_y(x: Tensor, magnitude: float) -> Tensor:
    return _float_affine(x, shear=(0, _signed_strength(0.3, magnitude)))


def float_translate_x(x: Tensor, magnitude: float) -> Tensor:
    return _float_affine(x, translate=(_signed_strength(int(0.33 * x.size(-1)), magnitude), 0))


def float_translate_y(x: Tensor, magnitude: float) -> Tensor:
    return _float_affine(x, translate=(0, _signed_strength(int(0.33 * x.size(-1)), magnitude)))


LAYERMIX_OPS: tuple[TensorOp, ...] = (
    partial(_fixed, v2.equalize), float_posterize, float_posterize_increasing, float_solarize,
    float_solarize_increasing, partial(_fixed, v2.autocontrast), float_grayscale,
    float_rotate, float_shear_x, float_shear_y, float_translate_x, float_translate_y,
)  # fmt: skip
LAYERMIX_BLENDS: tuple[Blend, ...] = (add, multiply, add, multiply, random_pixels, random_elems)


# The methods.


@dataclass(frozen=True)
class Plain:
    """No mixing: ToTensor and Normalize."""

    finish: Finish = IMAGENET_NORM

    def __call__(self, image: Picture) -> Tensor:
        return self.finish(tv.to_tensor(image))


@dataclass(frozen=True)
class PixMix:
    """Up to k blends with the mixing picture or an augmented copy; defaults are the ImageNet recipe with all ops."""

    k: int = 4
    beta: float = 4
    severity: float = 1
    ops: tuple[PilOp, ...] = ALL_OPS
    finish: Finish = IMAGENET_NORM

    def __call__(self, image: Picture, mixing: Picture) -> Tensor:
        mixed = tv.to_tensor(self._augmented(image) if np.random.random() < 0.5 else image)
        for _ in range(np.random.randint(self.k + 1)):
            second = self._augmented(image) if np.random.random() < 0.5 else mixing
            blend = (add, multiply)[np.random.choice(2)]
            mixed = blend(mixed, tv.to_tensor(second), self.beta).clip(0, 1)
        return self.finish(mixed)

    def _augmented(self, image: Picture) -> Picture:
        return _augment(image, self.ops, self.severity)


@dataclass(frozen=True)
class IPMix:
    """k chains of up to t image-level ops or patch blends, averaged; `own` lets a patch come from an augmented copy.

    Defaults are the ImageNet recipe of one view; its CIFAR recipe has patches (4, 8, 16, 32) and own=False.
    """

    k: int = 3
    t: int = 3
    beta: float = 4
    severity: float = 1
    patches: tuple[int, ...] = (4, 8, 16, 32, 64, 224)
    own: bool = True
    ops: tuple[PilOp, ...] = IPMIX_OPS
    finish: Finish = IMAGENET_NORM

    def __call__(self, image: Picture, mixing: Picture) -> Tensor:
        weights = np.random.dirichlet([1] * self.k).astype(np.float32)
        m = float(np.float32(np.random.beta(1, 1)))
        total = torch.zeros_like(tv.to_tensor(image))
        for weight in weights:
            step = random.choice((self._image_step, self._patch_step))
            chain = image.copy()
            for _ in range(np.random.randint(self.t + 1)):
                chain = step(chain, image, mixing)
            total += float(weight) * self.finish(tv.to_tensor(chain))
        return (1 - m) * self.finish(tv.to_tensor(image)) + m * total

    def _image_step(self, chain: Picture, image: Picture, mixing: Picture) -> Picture:
        return _augment(chain, self.ops, self.severity)

    def _patch_step(self, chain: Picture, image: Picture, mixing: Picture) -> Picture:
        patch = random.choice(self.patches)
        blend: Blend = random.choice((add, multiply, random_pixels, random_elems))
        if self.own and random.random() < 0.5:
            mixing = _augment(image, self.ops, self.severity)
        left, top = random.randint(0, image.width - patch), random.randint(0, image.height - patch)
        width = height = patch
        if random.random() <= 0.5:
            width, height = random.randint(2, patch), random.randint(2, patch)
        box = (left, top, left + width, top + height)
        blended = blend(tv.to_tensor(chain.crop(box)), tv.to_tensor(mixing.crop(box)), self.beta)
        with np.errstate(invalid="ignore"):  # no clip, as published: values outside [0, 1] wrap modulo 256
            chain.paste(tv.to_pil_image(blended), box)
        return chain


@dataclass(frozen=True)
class LayerMix:
    """One op, shared by up to three layers, the third the mixing picture; defaults are an ImageNet setting."""

    magnitude: float = 1
    beta: float = 4
    ops: tuple[TensorOp, ...] = LAYERMIX_OPS
    finish: Finish = IMAGENET_NORM

    def __call__(self, image: Picture, mixing: Picture) -> Tensor:
        x, fractal = (v2.to_dtype(v2.pil_to_tensor(p), torch.float32, scale=True) for p in (image, mixing))
        return self.finish(self._layers(x, fractal))

    def _layers(self, x: Tensor, fractal: Tensor) -> Tensor:
        depth = int(torch.randint(0, 3, (1,)))
        op = random.choices(self.ops, k=depth + 1)[0]
        z = op(x, self.magnitude)
        if depth == 0:
            return z
        second = op(x, self.magnitude)
        z = random.choice(LAYERMIX_BLENDS)(z, second, self.beta).clip(0, 1)
        if depth == 1:
            return z
        z = random.choice(LAYERMIX_BLENDS)(z, fractal, self.beta).clip(0, 1)
        return op(z, self.magnitude)


@dataclass(frozen=True)
class AugMix:
    """`width` chains of one to three ops, averaged; defaults are the ImageNet recipe of one view."""

    width: int = 3
    severity: float = 1
    ops: tuple[PilOp, ...] = BASE_OPS
    finish: Finish = IMAGENET_NORM

    def __call__(self, image: Picture) -> Tensor:
        weights = np.random.dirichlet([1] * self.width).astype(np.float32)
        m = float(np.float32(np.random.beta(1, 1)))
        total = torch.zeros_like(tv.to_tensor(image))
        for weight in weights:
            chain = image.copy()
            for _ in range(np.random.randint(1, 4)):
                chain = _augment(chain, self.ops, self.severity)
            total += float(weight) * self.finish(tv.to_tensor(chain))
        return (1 - m) * self.finish(tv.to_tensor(image)) + m * total
