"""Windows in pictures: how large, where on a map, and what is put into them.  Needs torch.

Sizes are arrays of the host, (N, 2) int64 (height, width), and come from uniform draws that are given.  Boxes are
tensors, (N, 4) int64 (y0, y1, x0, x1) with y1 and x1 exclusive, on the device of the maps.  Nothing here carries
gradients, and nothing waits for the device.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('fastmix.windows needs torch: pip install "fastmix[torch]"') from missing
from torch import Tensor

Ints = NDArray[np.int64]
SizeMode = Literal["side", "area"]
Rounding = Literal["nearest", "floor"]
Border = Literal["shift", "clip"]

_STEPS = 2.0**30  # with values counted up to here, sums of 2^23 of them are exact in float64


def window_sizes(
    u: NDArray[np.float64],
    shape: tuple[int, int],
    size_range: tuple[float, float] = (0.1, 0.5),
    mode: SizeMode = "side",
    rounding: Rounding = "nearest",
) -> Ints:
    """Window sizes by the law of GradMix (Xu et al., arXiv 2505.12803): uniform sides, or uniform areas.

    Args:
        u: (N,) uniform draws in [0, 1]; one number N times for one size a batch.
        shape: (H, W) of the pictures.
        size_range: (lo, hi), 0 < lo <= hi <= 1; v = lo + (hi - lo) u.
        mode: "side": windows of v H by v W.  "area": of sqrt(v) H by sqrt(v) W.
        rounding: "nearest" (halves up), or "floor" as the authors' program; at least one pixel in both.

    Returns:
        (N, 2) int64: height and width.

    Raises:
        ValueError: lo and hi are not in order or outside (0, 1], or an option is unknown.
    """
    low, high = size_range
    if not 0 < low <= high <= 1:
        raise ValueError(f"size_range is ({low}, {high}), expected 0 < lo <= hi <= 1")
    _one_of("mode", mode, SizeMode)
    _one_of("rounding", rounding, Rounding)
    share = low + (high - low) * np.asarray(u, np.float64)[:, None]
    sides = (share if mode == "side" else np.sqrt(share)) * np.asarray(shape)
    whole: Ints = np.floor(sides + 0.5 if rounding == "nearest" else sides).astype(np.int64)
    return whole.clip(1, shape)


def place_windows(u: NDArray[np.float64], sizes: Ints, shape: tuple[int, int]) -> Ints:
    """Windows at random, all places equally likely: the control of `find_windows`, and its stand-in for empty maps.

    Args:
        u: (N, 2) uniform draws in [0, 1).
        sizes: (N, 2) height and width, within `shape`.
        shape: (H, W) of the pictures.

    Returns:
        (N, 4) int64 boxes on the host.
    """
    first = np.floor(u * (np.asarray(shape) - sizes + 1)).astype(np.int64)
    return np.stack([first, first + sizes], -1).reshape(-1, 4)


@torch.no_grad()
def find_windows(maps: Tensor, sizes: Ints) -> Tensor:
    """The window with the largest sum of each map, always inside; the first in row-major order if several have it.

    Sums come from an integral image in float64, of values rounded to 2^-30 of the power of two above their map's peak:
    so they are exact up to 2^23 pixels, equal sums tie, and all devices agree.  Maps with NaN or infinity count as
    constant.  The least active window is that of -maps.

    Args:
        maps: (N, H, W) floating.
        sizes: (N, 2) height and width of each window, 1..H and 1..W.

    Returns:
        (N, 4) int64 boxes on the maps' device.

    Raises:
        TypeError, ValueError: Dtype, shape or a size does not fit.
    """
    size = _checked_sizes(maps, sizes)
    n, height, width = maps.shape
    table = maps.new_zeros((n, height + 1, width + 1), dtype=torch.float64)
    table[:, 1:, 1:] = _counted(maps).cumsum(1).cumsum(2)
    rows, bottom, fits_down = _starts(size[:, 0], height)
    columns, right, fits_across = _starts(size[:, 1], width)
    bands = table.gather(1, bottom[:, :, None].expand(-1, -1, width + 1)) - table[:, rows]
    sums = bands.gather(2, right[:, None, :].expand(-1, height, -1)) - bands[:, :, columns]
    sums = sums.masked_fill(~(fits_down[:, :, None] & fits_across[:, None, :]), -torch.inf)
    best = sums.flatten(1).argmax(1)
    y, x = best // width, best % width
    return torch.stack([y, y + size[:, 0], x, x + size[:, 1]], 1)


@torch.no_grad()
def peak_windows(maps: Tensor, sizes: Ints, border: Border = "shift") -> Tensor:
    """A window around the largest pixel of each map, the first in row-major order if several are.

    Maps with NaN or infinity count as constant, so their peak is the first pixel.

    Args:
        maps: (N, H, W) floating.
        sizes: (N, 2) height and width of each window, 1..H and 1..W.
        border: "shift": size // 2 pixels before the peak, moved inside.  "clip", as the program of GradMix's authors:
            size // 2 pixels to both sides (odd sizes lose one, if that leaves any), cut off at the border.

    Returns:
        (N, 4) int64 boxes on the maps' device; after "clip" take areas from `box_areas`.

    Raises:
        TypeError, ValueError: Dtype, shape, a size or the option does not fit.
    """
    _one_of("border", border, Border)
    size = _checked_sizes(maps, sizes)
    shape = torch.tensor(maps.shape[1:], device=maps.device)
    best = _counted(maps).flatten(1).argmax(1)
    first = torch.stack([best // maps.shape[2], best % maps.shape[2]], 1) - size // 2
    if border == "shift":
        first = torch.minimum(first, shape - size).clamp(min=0)
        last = first + size
    else:
        last = torch.minimum(first + (size // 2 * 2).clamp(min=1), shape)
        first = first.clamp(min=0)
    return torch.stack([first, last], 2).flatten(1)


def box_areas(boxes: Tensor) -> Tensor:
    """(N,) int64 pixels of boxes (N, 4)."""
    return (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])


@torch.no_grad()
def fill_windows(images: Tensor, content: Tensor, boxes: Tensor) -> Tensor:
    """Pictures whose boxes show `content` at the same place; all other pixels are those of `images`, bit for bit.

    Args:
        images: (N, C, H, W) floating.
        content: Floating, broadcast to (N, C, H, W): other pictures, noise, a mean (N, C, 1, 1), ...
        boxes: (N, 4) int64, inside the pictures, on their device.

    Returns:
        (N, C, H, W) new tensor in the dtype and memory format of `images`.

    Raises:
        TypeError, ValueError: Dtype or shape does not fit.
    """
    _check_pictures(images, boxes)
    y0, y1, x0, x1 = boxes.T[:, :, None]
    y, x = (torch.arange(side, device=images.device) for side in images.shape[2:])
    inside = ((y >= y0) & (y < y1))[:, None, :, None] & ((x >= x0) & (x < x1))[:, None, None, :]
    return torch.where(inside, content.to(images.dtype), images, out=torch.empty_like(images))


@torch.no_grad()
def paste_windows(images: Tensor, partners: Tensor, boxes: Tensor, antialias: bool = True) -> Tensor:
    """Pictures whose boxes show the whole partner, shrunk to the box.

    Equal to `torch.nn.functional.interpolate(mode="bilinear", align_corners=False)` of each partner to within 1e-5 of
    the largest value (1e-3 under `torch.set_float32_matmul_precision("high")`), for all boxes at once: the two axes are
    resampled one after the other by matrices of each sample.  Half precision is computed in float32.

    Args:
        images: (N, C, H, W) floating.
        partners: (N, C, h, w) floating, row i for picture i: `images[partner]`, or another view of it.
        boxes: (N, 4) int64, inside the pictures, on their device.
        antialias: Whether each pixel averages over all that it covers.  Without, small windows show single pixels of
            their partner.

    Returns:
        (N, C, H, W) new tensor in the dtype and memory format of `images`.

    Raises:
        TypeError, ValueError: Dtype or shape does not fit.
    """
    _check_pictures(images, boxes)
    if partners.ndim != 4 or partners.shape[:2] != images.shape[:2]:
        raise ValueError(
            f"partners have shape {tuple(partners.shape)} for images of {tuple(images.shape)}, expected one each"
        )
    wide = torch.promote_types(partners.dtype, torch.float32)
    down = _resampling(boxes[:, :2], images.shape[2], partners.shape[2], antialias).to(wide)
    across = _resampling(boxes[:, 2:], images.shape[3], partners.shape[3], antialias).to(wide)
    with torch.autocast(images.device.type, enabled=False):
        content = torch.einsum("nyh,nchw,nxw->ncyx", down, partners.to(wide), across)
    return fill_windows(images, content, boxes)


def _resampling(ends: Tensor, size: int, source: int, antialias: bool) -> Tensor:
    """(N, size, source) float64: the share of each source pixel in each pixel of an axis; of use inside `ends` only."""
    first, last = ends[:, :1, None].double(), ends[:, 1:, None].double()
    step = source / (last - first)
    reach = step.clamp(min=1) if antialias else torch.ones_like(step)
    pixel = torch.arange(size, device=ends.device)[None, :, None]
    centre = ((pixel - first + 0.5) * step).clamp(0, source)
    distance = (torch.arange(source, device=ends.device) + 0.5 - centre).abs()
    share = (1 - distance / reach).clamp(min=0)
    return share / share.sum(2, keepdim=True)


def _counted(maps: Tensor) -> Tensor:
    """Maps as float64 integers up to 2^30, by one power of two for each map; zeros if it has no finite peak."""
    peak = maps.abs().amax((1, 2), keepdim=True).double()
    steps = torch.frexp(peak).mantissa / peak * _STEPS
    return torch.where(steps.isfinite(), (maps.double() * steps).round(), 0)


def _starts(side: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """All starts of windows along an axis, (length,); their ends, (N, length); and which of them fit, (N, length)."""
    starts = torch.arange(length, device=side.device)
    ends = starts + side[:, None]
    return starts, ends.clamp(max=length), ends <= length


def _checked_sizes(maps: Tensor, sizes: Ints) -> Tensor:
    if maps.ndim != 3 or not maps.is_floating_point():
        raise ValueError(f"maps are {maps.dtype} {tuple(maps.shape)}, expected floating (N, H, W)")
    sizes = np.asarray(sizes)
    if sizes.shape != (len(maps), 2) or sizes.dtype.kind not in "iu":
        raise ValueError(f"sizes are {sizes.dtype} {sizes.shape}, expected integers ({len(maps)}, 2): height and width")
    if sizes.size and not (sizes.min() >= 1 and (sizes <= maps.shape[1:]).all()):
        ends = f"{sizes.min(0).tolist()} to {sizes.max(0).tolist()}"
        raise ValueError(f"sizes run from {ends}, expected heights 1..{maps.shape[1]} and widths 1..{maps.shape[2]}")
    return torch.from_numpy(sizes.astype(np.int64)).to(maps.device)


def _check_pictures(images: Tensor, boxes: Tensor) -> None:
    if not images.is_floating_point():
        raise TypeError(f"images are {images.dtype}, expected floating: paste after normalising")
    if images.ndim != 4 or boxes.shape != (len(images), 4):
        raise ValueError(
            f"images have shape {tuple(images.shape)} and boxes {tuple(boxes.shape)}, expected (N, C, H, W) and (N, 4)"
        )


def _one_of(name: str, value: str, kind: Any) -> None:
    if value not in get_args(kind):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")
