"""Draw, apply, merge: from a batch and a key to a mixed batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import Mode, Source, Where, backend_for
from .types import Batch, Key, Method, Params, Pool, Targets


def mix(method: Method, batch: Batch, key: Key) -> Batch:
    """Mix `batch` as `method` draws it under `key`; the batch itself is not changed.

    The pictures are mixed where they are, and come back as what they were: a NumPy array, a CUDA tensor (on torch's
    current stream) or a CuPy array (on CuPy's).

    Raises TypeError for anything but a Batch and a Key, and ValueError if the labels of `batch` are mixed already and
    would have to be mixed again.
    """
    if isinstance(method, type) or not isinstance(method, Method):
        raise TypeError(f"method is {method!r}, expected one such as fastmix.MixUp()")
    if not isinstance(batch, Batch) or not isinstance(key, Key):
        raise TypeError(
            f"batch is a {type(batch).__name__} and key a {type(key).__name__}, expected Batch.of(images, labels) and "
            "Key(seed, epoch)"
        )
    if isinstance(batch.images, np.ndarray):
        batch = replace(batch, images=np.ascontiguousarray(batch.images))
    params = method.draw(key, batch)
    return apply(batch, params, getattr(method, "pool", None), _empty_like(batch.images))


def _empty_like(images: Any) -> Any:
    """New memory of the same kind; NumPy's function makes CuPy's arrays, too."""
    return images.new_empty(images.shape) if hasattr(images, "new_empty") else np.empty_like(images)


def apply(batch: Batch, params: Params, pool: Pool | None, out: Any) -> Batch:
    """Run the programs of `params` into `out` and merge the targets; holds no chance.

    out: (N, H, W, 3) uint8, where the pictures are.  Label b is the partner's label, and w the realised share of the
    own one.  Maps are dropped: they belong to the unmixed pictures.  Raises ValueError if the labels of `batch` are
    mixed already and would have to be mixed again.
    """
    pictures = np.empty((0, *batch.images.shape[1:]), np.uint8) if pool is None else pool.images
    check_params(params, batch.images.shape, pictures.shape)
    targets = merge(batch.targets, params.partner, params.weight)
    backend_for(batch.images).mix(batch.images, pictures, params.program, out, 0, len(out))
    return Batch(out, targets)


def check_params(params: Params, images: tuple[int, ...], pool: tuple[int, ...]) -> None:
    """Raise ValueError for params that lead beyond an array: kernels do not look again.

    images, pool: shapes (N, H, W, 3) and (M, PH, PW, 3) of what the programs will see.
    """
    (count, height, width), (pictures, high, wide) = images[:3], pool[:3]
    layers, steps = params.program.layers, params.program.steps
    used, mate, window = steps["mode"] != Mode.END, layers["source"] == Source.MATE, layers["source"] == Source.POOL
    masked, masks = used & (steps["where"] == Where.MASK), params.program.masks
    if masked.any() and masks.shape[1:3] != (height, width):
        raise ValueError(
            f"the masks that the method drew are {masks.shape[1]} x {masks.shape[2]}, expected {height} x {width}: "
            "mend its draw"
        )
    for name, values, end in (
        ("top and bottom of its steps", (steps["top"][used], steps["bottom"][used]), height),
        ("left and right of its steps", (steps["left"][used], steps["right"][used]), width),
        ("layers of its steps", (steps["layer"][used],), layers.shape[1] - 1),
        ("masks of its steps", (steps["index"][masked],), len(masks) - 1),
        ("mates", (layers["index"][mate], params.partner), count - 1),
        ("pool pictures", (layers["index"][window],), pictures - 1),
        ("tops of pool windows", (layers["top"][window],), high - height),
        ("lefts of pool windows", (layers["left"][window],), wide - width),
    ):
        low, most = min(v.min(initial=0) for v in values), max(v.max(initial=0) for v in values)
        if any(v.size for v in values) and (low < 0 or most > end):
            run = f"the {name} that the method drew run from {low} to {most}"
            raise ValueError(f"{run}, expected 0..{end}: mend its draw")


def merge(targets: Targets, partner: NDArray[np.int64], weight: NDArray[np.float32]) -> Targets:
    """The targets after mixing row i with row partner[i], which takes the share 1 - weight[i]."""
    if (weight == 1).all():
        return targets
    if (targets.w != 1).any():
        raise ValueError(
            f"label weights go down to {targets.w.min()}, expected 1, for labels are mixed once: "
            "start from Targets.of(ids, targets.soft(num_classes))"
        )
    return Targets(targets.ids, targets.a, targets.a[partner], weight)
