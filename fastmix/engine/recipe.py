"""What becomes of a sample: a `Recipe`, checked once and never changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..datasets import Source, known_labels
from ..kernels import U8
from ..mapfile import FileMaps
from ..maps import MapBank
from ..pools import check_pool, open_pool
from ..saliency import SpectralResidual
from ..synthetic import Replacement
from ..types import FastmixError, Method, Targets, check_range, one_hot
from .jitter import ColorJitter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CROPS = ("random_resized", "pad4", "center", None)
OUTPUTS = ("float32", "float16", "bfloat16", "uint8")
LABELS = (None, "soft", "pair")
ON_ERROR = ("raise", "replace")
_CACHE = 1 << 18  # bytes of pictures that a kernel call works on, so that the next one finds them in a core's cache
_CHUNK = 64  # most pictures of a call


@dataclass(frozen=True)
class Crop:
    """How a picture gets the size of the batch.

    mode: "random_resized", "pad4", "center" or None.  size: (H, W) in pixels.  scale: range of the area share, ratio:
    range of width / height, of a random resized crop.  hflip: probability of mirroring; None means 0.5 for
    "random_resized" and "pad4", else 0.

    Raises ValueError for a setting outside its range.
    """

    mode: str | None
    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.mode not in CROPS:
            raise ValueError(f"crop is {self.mode!r}, expected one of {CROPS}")
        check_size(self.size)
        if not (_are_numbers(self.scale, 2) and 0 < self.scale[0] <= self.scale[1] <= 1):
            raise ValueError(f"scale is {self.scale!r}, expected 0 < low <= high <= 1, shares of the picture's area")
        if not (_are_numbers(self.ratio, 2) and 0 < self.ratio[0] <= self.ratio[1]):
            raise ValueError(f"ratio is {self.ratio!r}, expected 0 < low <= high, width by height")
        if self.hflip is not None and not (_are_numbers([self.hflip], 1) and 0 <= self.hflip <= 1):
            raise ValueError(f"hflip is {self.hflip!r}, expected a probability in [0, 1]")

    @property
    def flip_chance(self) -> float:
        """The probability of mirroring."""
        return (0.5 if self.mode in ("random_resized", "pad4") else 0.0) if self.hflip is None else self.hflip


@dataclass(frozen=True)
class Output:
    """How a finished picture is written.  table: (3, 256), see `level_table`; its dtype is that of the batch."""

    table: NDArray[Any]
    channels_last: bool = False

    def shape(self, rows: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Shape of `rows` pictures in memory."""
        return (rows, *size, 3) if self.channels_last else (rows, 3, *size)


class Send(Protocol):
    """Takes crops to where they are mixed."""

    def memory(self, count: int) -> U8:
        """Memory for so many bytes of crops."""
        ...

    def __call__(self, job: Any) -> Any:
        """Take a job whose crops are in `out`; returns what `hand_over` makes the batch of."""
        ...

    def hand_over(self, sent: Any, labels: Any) -> Any:
        """[images, *labels] where they were sent to."""
        ...


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a sample becomes, whoever makes it and when.

    method: one that is enabled and has its pool, or None.
    views: 1; 2 for (view 1, view 2), followed by (mixed 1, mixed 2) if there is a method; 3 for (clean, mixed, mixed).
    replace: whether a bad sample gives way to another one; `anywhere`: to any of the source, else to one of its batch.
    jitter: of the colours of each crop, before it is mixed.
    maps: what a method that looks at maps is given: those of earlier epochs, of a file, or of the crops themselves.
    synthetic: what takes the place of some samples; the source is then an `Expanded` one.
    send: what takes the crops away, unmixed, to be mixed elsewhere; None: mix them here.
    """

    source: Source
    crop: Crop
    output: Output
    method: Method | None = None
    views: int = 1
    replace: bool = False
    anywhere: bool = True
    jitter: ColorJitter | None = None
    maps: MapBank | FileMaps | SpectralResidual | None = None
    synthetic: Replacement | None = None
    send: Send | None = None

    def __post_init__(self) -> None:
        """Check what is not checked on its own."""
        if self.jitter is not None and not isinstance(self.jitter, ColorJitter):
            raise TypeError(
                f"jitter is {self.jitter!r}, expected None or fastmix's own, which is drawn by key: "
                "fastmix.ColorJitter()"
            )
        if isinstance(self.maps, MapBank):
            _check_bank(self.maps, self.source, self.views)

    @property
    def pool(self) -> U8:
        """(M, PH, PW, 3) uint8 pictures to mix in; M is 0 if the method has none."""
        pool = getattr(self.method, "pool", None)
        # A plain array, of whatever class the pool's is: Numba knows these best.
        return _no_pictures(self.crop.size) if pool is None else np.asarray(pool.images)

    @property
    def mixed_views(self) -> int:
        """How many pictures of a sample are mixed."""
        return 0 if self.method is None else min(self.views, 2)

    @property
    def crops(self) -> int:
        """How many parts are cut from a sample, each with draws of its own."""
        return 2 if self.views == 2 else 1

    @property
    def pictures(self) -> int:
        """How many pictures are made of a sample."""
        return self.mixed_views + (self.crops if self.views > 1 or self.method is None else 0)

    @property
    def reads_maps(self) -> bool:
        """Whether the method looks at maps, so that it can be drawn only when the crops are known."""
        return self.maps is not None and uses_maps(self.method)

    @property
    def mixes_labels(self) -> bool:
        """Whether labels come out mixed.  With two views they do not: contrastive training tells samples apart."""
        return self.method is not None and self.views != 2 and not self.method.label_preserving

    @property
    def chunk(self) -> int:
        """How many pictures a kernel call works on."""
        return max(1, min(_CHUNK, _CACHE // (3 * self.crop.size[0] * self.crop.size[1])))


def _are_numbers(values: Any, count: int) -> bool:
    """Whether this is a sequence of so many finite numbers."""
    known = isinstance(values, Sequence | np.ndarray) and len(values) == count
    return known and all(isinstance(value, Real) and math.isfinite(value) for value in values)


def check_size(size: Any) -> tuple[int, int]:
    """Pixels as (H, W), given as an integer or a pair.  Raises ValueError for anything else."""
    sides = (size, size) if isinstance(size, int | np.integer) else size
    if not (_are_numbers(sides, 2) and all(isinstance(side, int | np.integer) and side >= 1 for side in sides)):
        raise ValueError(f"size is {sides!r}, expected pixels >= 1: an integer or a pair (height, width)")
    return int(sides[0]), int(sides[1])


def _no_pictures(size: tuple[int, int]) -> U8:
    empty = np.empty((0, *size, 3), np.uint8)
    empty.flags.writeable = False  # as mapped pools are, so that kernels are compiled for one kind
    return empty


def uses_maps(method: Any) -> bool:
    """Whether a method wants `Batch.maps`."""
    return bool(getattr(method, "uses_maps", False))


def _check_bank(maps: MapBank, source: Source, views: int) -> None:
    """Raise ValueError for a bank that is not of this dataset and so many views."""
    crops = 2 if views == 2 else 1
    for name, have, want in (("length", maps.length, len(source)), ("views", maps.views, crops)):
        if have != want:
            fix = f"make it with MapBank({len(source)}, views={crops})"
            raise ValueError(f"maps has {name}={have}, expected {want}: {fix}")


def check_method(method: Any, views: int, maps: Any = None) -> None:
    """Raise TypeError for what is no method, and ValueError for one that cannot make so many views, or lacks maps."""
    if views not in (1, 2, 3):
        raise ValueError(f"views is {views!r}, expected 1, 2 or 3")
    if method is not None and (isinstance(method, type) or not isinstance(method, Method)):
        raise TypeError(f"mix is {method!r}, expected a method such as fastmix.PixMix.imagenet(), or None")
    if uses_maps(method) and maps is None:
        raise ValueError(
            f"mix is {type(method).__name__}, which needs maps: pass maps=fastmix.SpectralResidual(), or "
            "maps=fastmix.MapBank(len(dataset)) and fill it with put_maps, see docs/gradmix.md"
        )
    if views == 3 and (method is None or not method.label_preserving):
        raise ValueError(
            f"views is 3 and mix is {method!r}, expected a method that keeps labels: pass another, or views=1"
        )


def check_inputs(source: Source, method: Any, pool: Any, size: tuple[int, int], num_classes: Any) -> None:
    """Raise for a pool that cannot be mixed into pictures of `size`, and for labels that are known and out of range.

    pool: what takes the place of the method's, or None.
    """
    pool = getattr(method, "pool", None) if pool is None else pool
    if pool is not None:
        opened = open_pool(pool)
        if hasattr(method, "pool"):
            check_pool(opened, size)
    if num_classes is not None and not (isinstance(num_classes, int | np.integer) and num_classes >= 1):
        raise ValueError(f"num_classes is {num_classes!r}, expected an integer >= 1, or None")
    if num_classes is None and source.classes is None:
        num_classes = getattr(method, "num_classes", None)
    labels = known_labels(source)
    if labels is not None and num_classes is not None:
        check_range(labels, num_classes)


def form_labels(recipe: Recipe, targets: Targets, form: str | None, num_classes: int | None) -> Any:
    """The labels of a batch as users want them.

    form: "soft": (N, C) float32.  "pair": (a, b, w), the fields of `Targets`.  None: soft if the recipe mixes them,
    else as they are.  num_classes: C, to which integer labels are held; None: what the source says, else the method.

    Raises FastmixError for labels outside 0..C - 1, or if C is needed and unknown.
    """
    names = recipe.source.classes
    classes = getattr(recipe.method, "num_classes", None) if names is None else len(names)
    try:
        if num_classes is not None:
            one_hot(targets.a, num_classes)
        if form == "pair":
            return targets.a, targets.b.copy() if targets.b is targets.a else targets.b, targets.w
        soft = recipe.mixes_labels or form == "soft"
        return targets.soft(classes if num_classes is None else num_classes) if soft else targets.a
    except ValueError as error:
        raise FastmixError(str(error), stage="label") from error


def level_table(output: str, mean: Sequence[float], std: Sequence[float]) -> NDArray[Any]:
    """(3, 256) values of the levels 0..255: (v / 255 - mean) / std in float32, op by op as in torchvision.

    output: "float32"; "float16" or "bfloat16", as bits in uint16, rounded to nearest even; or "uint8", the levels
    themselves.  Raises ValueError for another output, or mean and std that are not three numbers, in [0, 1] and > 0.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output is {output!r}, expected one of {OUTPUTS}")
    if not (_are_numbers(mean, 3) and _are_numbers(std, 3) and min(std) > 0):
        raise ValueError(f"mean is {mean!r} and std is {std!r}, expected three numbers each, one a channel, std > 0")
    if not 0 <= min(mean) <= max(mean) <= 1:
        raise ValueError(f"mean is {mean!r}, expected numbers in [0, 1]: divide it, and std, by 255")
    levels = np.arange(256, dtype=np.uint8)
    if output == "uint8":
        return np.ascontiguousarray(np.broadcast_to(levels, (3, 256)))
    unit = levels.astype(np.float32) / np.float32(255)
    table = (unit - np.asarray(mean, np.float32)[:, None]) / np.asarray(std, np.float32)[:, None]
    if output == "float16":
        return table.astype(np.float16).view(np.uint16)
    if output == "bfloat16":
        bits = table.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return table
