"""The types everything speaks: Batch, Targets, Pool, Params and the Method protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .kernels import Program
from .rng import Key

__all__ = ["Batch", "FastmixError", "Key", "Method", "Params", "Pool", "Targets"]


class FastmixError(RuntimeError):
    """A sample could not be made: says which one, from where and at which stage."""

    def __init__(self, message: str, *, sample_id: int | None = None, path: str | None = None, stage: str = "read"):
        self.sample_id, self.path, self.stage = sample_id, path, stage
        where = f"sample {sample_id}" if sample_id is not None else "sample"
        super().__init__(f"{where}{f' ({path})' if path else ''}, stage {stage}: {message}")
        self._message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), sample_id=self.sample_id, path=self.path, stage=self.stage), (self._message,)


@dataclass(frozen=True)
class Targets:
    """What a batch is labelled with: label a counts w, label b counts 1 - w.

    ids: (N,) int64 global sample numbers.  a, b: int (N,), soft (N, C) or multi-hot (N, C) labels, the same kind.
    w: (N,) float32 in [0, 1], the realised share of label a.
    """

    ids: NDArray[np.int64]
    a: NDArray[Any]
    b: NDArray[Any]
    w: NDArray[np.float32]

    @classmethod
    def of(cls, ids: Any, labels: Any) -> Targets:
        """Unmixed targets.  Raises ValueError for labels that are not (N,) integers or (N, C) numbers in [0, 1]."""
        for name, given in (("ids", ids), ("labels", labels)):
            if hasattr(given, "__cuda_array_interface__"):
                raise TypeError(f"{name} are on a GPU, expected a NumPy array or CPU tensor: pass {name}.cpu()")
        ids = np.ascontiguousarray(ids, np.int64)
        labels = np.asarray(labels)
        if labels.ndim not in (1, 2) or len(labels) != len(ids):
            raise ValueError(f"labels have shape {labels.shape} for {len(ids)} ids, expected (N,) or (N, C)")
        if labels.ndim == 1 and labels.dtype.kind not in "iu":
            raise ValueError(f"(N,) labels are {labels.dtype}, expected integers; give soft labels as (N, C)")
        if labels.ndim == 2 and labels.size and not 0 <= labels.min() <= labels.max() <= 1:
            raise ValueError(f"(N, C) labels run from {labels.min()} to {labels.max()}, expected [0, 1]")
        return cls(ids, labels, labels, np.ones(len(ids), np.float32))

    def soft(self, num_classes: int | None = None) -> NDArray[np.float32]:
        """(N, C) float32 labels w a + (1 - w) b; rows sum to 1 unless the labels are multi-hot.

        Raises ValueError if integer labels come without `num_classes` or lie outside [0, num_classes).
        """
        w = self.w[:, None]
        return one_hot(self.a, num_classes) * w + one_hot(self.b, num_classes) * (1 - w)


def one_hot(labels: NDArray[Any], num_classes: int | None) -> NDArray[np.float32]:
    """Integer labels (N,) as (N, C) float32; (N, C) labels just become float32."""
    if labels.ndim == 2:
        return labels.astype(np.float32)
    if num_classes is None:
        raise ValueError("num_classes is unknown, but integer labels are mixed: pass num_classes=")
    check_range(labels, num_classes)
    out = np.zeros((len(labels), num_classes), np.float32)
    out[np.arange(len(labels)), labels] = 1
    return out


def check_range(labels: NDArray[Any], num_classes: int) -> None:
    """Raise ValueError for integer labels (N,) outside [0, num_classes)."""
    if labels.ndim == 1 and labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        fix = f"pass num_classes={labels.max() + 1}" if labels.min() >= 0 else "mend the labels"
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, expected 0..{num_classes - 1} "
            f"(num_classes={num_classes}): {fix}"
        )


@dataclass(frozen=True)
class Batch:
    """images: (N, H, W, 3) uint8 RGB, NumPy's, or torch's or CuPy's on a GPU.  maps: (N, h, w) float32 or None.

    A map is what a model looks at: h x w cells of equal size, whatever the picture's; the larger a value, the more it
    looks there, and NaN is unknown.  Only ratios inside a map count, so any scale will do.
    """

    images: NDArray[np.uint8]
    targets: Targets
    maps: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, images: Any, labels: Any, ids: Any = None) -> Batch:
        """A checked batch; ids default to 0..N-1.  CUDA tensors and CuPy arrays of pictures stay where they are.

        Raises TypeError or ValueError that names the array and the fix.
        """
        images = images if hasattr(images, "dtype") else np.asarray(images)
        dtype = str(images.dtype).removeprefix("torch.")
        if dtype != "uint8":
            raise TypeError(
                f"images are {dtype}, expected uint8 in 0..255: mix before normalising, so remove ToTensor(), "
                "Normalize() and the like"
            )
        about = getattr(images, "__cuda_array_interface__", None)
        images = np.asarray(images) if about is None else images
        if images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape[1:]:
            raise ValueError(f"images have shape {tuple(images.shape)}, expected (N, H, W, 3) with H, W >= 1")
        if about is not None and about.get("strides") is not None:
            raise ValueError(
                "images on a GPU are not contiguous, expected (N, H, W, 3) in memory: pass a contiguous copy"
            )
        ids = np.arange(len(images)) if ids is None else ids
        return cls(images if about is not None else np.ascontiguousarray(images), Targets.of(ids, labels))


@dataclass(frozen=True)
class Params:
    """Everything a method drew for a batch: the programs, and who lends its label.

    partner: (N,) int64 rows of the batch.  weight: (N,) float32, the share of the own label: realised, never nominal.
    """

    program: Program
    partner: NDArray[np.int64]
    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Pool:
    """Pictures to mix in.  images: (M, H, W, 3) uint8, read-only, usually memory-mapped."""

    images: NDArray[np.uint8]

    def __post_init__(self) -> None:
        a = self.images
        if not isinstance(a, np.ndarray):
            raise TypeError(f"a pool holds a {type(a).__name__}, expected a NumPy array, uint8 (M, H, W, 3)")
        if a.dtype != np.uint8 or a.ndim != 4 or a.shape[-1] != 3 or 0 in a.shape:
            raise ValueError(
                f"a pool holds {a.dtype} {a.shape}, expected uint8 (M, H, W, 3): "
                "pack pictures with `fastmix pool pack DIR OUT.npy`"
            )
        if not a.flags.c_contiguous:
            object.__setattr__(self, "images", np.ascontiguousarray(a))

    @classmethod
    def open(cls, path: str | Path) -> Pool:
        """Map a .npy file written by `fastmix pool`.  Nothing is unpickled."""
        try:
            images = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError) as error:
            fix = "expected a .npy file that `fastmix pool make` or `fastmix pool pack` wrote"
            raise ValueError(f"cannot open pool {path}: {error}; {fix}") from error
        try:
            return cls(images)
        except ValueError as error:
            raise ValueError(f"cannot open pool {path}: {error}") from None

    def __len__(self) -> int:
        return len(self.images)


@runtime_checkable
class Method(Protocol):
    """A mixing method: `draw` holds all of its chance and sees no pixel.

    enabled: False makes every sample its own unmixed picture.  label_preserving: whether pictures keep their labels.
    """

    enabled: bool

    @property
    def label_preserving(self) -> bool:
        """True if the mixed picture keeps its own label."""
        ...

    def draw(self, key: Key, batch: Batch) -> Params:
        """Draw the programs of `batch`; reads only the ids, the picture size, and the maps if it uses them."""
        ...
