"""What stands out in a picture: maps by spectral residual, and the objects that Otsu's threshold parts from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels import F32, F64, U8, backend_for

__all__ = ["SpectralResidual", "distances", "object_levels", "object_masks", "otsu", "spectral_maps", "stretched"]

_PLATEAUS = ("first", "middle")
_ROWS = 4  # large maps that a call works on, so that the next one finds them in a core's cache
_LEVELS = 16  # maps whose levels a call makes


@dataclass(frozen=True)
class SpectralResidual:
    """Maps of the very crops that are mixed, by the spectral residual (Hou & Zhang, CVPR 2007) of their grey.

    For `DataLoader(maps=SpectralResidual())`: nothing has to be trained, kept or warped.  shape: (h, w) cells of a map,
    at most one a pixel.  The paper has a width of 64; with 32 the objects come out much the same, at a third of the
    price.  The blur is wider than in the authors' program, a sixteenth of each side, and nothing is squared: so that
    Otsu's threshold finds objects, and not the edges in them.  Raises ValueError for another shape.
    """

    shape: tuple[int, int] = (32, 32)

    def __post_init__(self) -> None:
        """Check the shape."""
        if not is_pair(self.shape):
            raise ValueError(
                f"shape is {self.shape!r}, expected a pair (h, w) of cells >= 1: the usual one is (32, 32)"
            )

    def cells(self, size: tuple[int, int]) -> tuple[int, int]:
        """(h, w) of the maps of pictures of `size` (H, W)."""
        return min(self.shape[0], size[0]), min(self.shape[1], size[1])


def spectral_maps(images: U8, shape: tuple[int, int] = (64, 64)) -> F32:
    """(N, h, w) float32 in [0, 1], the spectral residual of pictures (N, H, W, 3) uint8; see `SpectralResidual`.

    A map has its smallest value at 0 and its largest at 1; that of a picture without contrast is 0 everywhere.  Raises
    ValueError for other pictures.
    """
    shape_of = tuple(getattr(images, "shape", ()))
    known = isinstance(images, np.ndarray) and images.dtype == np.uint8
    if not known or len(shape_of) != 4 or shape_of[3] != 3 or 0 in shape_of[1:]:
        have = f"{getattr(images, 'dtype', type(images).__name__)} {shape_of}"
        raise ValueError(f"images are {have}, expected a NumPy array, uint8 (N, H, W, 3) with H, W >= 1")
    images = np.ascontiguousarray(images)
    maps = np.empty((len(images), *SpectralResidual(shape).cells(images.shape[1:3])), np.float32)
    backend_for(images).spectral_residual(images, maps, 0, len(images))
    return maps


def otsu(maps: Any, plateau: str = "first") -> NDArray[np.int32]:
    """(N,) Otsu's threshold (IEEE Trans. SMC 1979) of each of maps (N, H, W); the object is what lies above.

    maps: levels, uint8, or other numbers, of which the threshold is the last bin, 0..255, below the object, of 256
    equal ones over the range of a map; values that are not finite count as the least finite one.
    plateau: which of the thresholds that part the levels in the same way, the "first", as OpenCV and scikit-image, or
    the "middle" one, which is safer for other levels than these.  255, so that nothing lies above, where all levels are
    equal, or float32 does not hold their range.  Raises ValueError for another word, or anything but numbers of that
    shape.
    """
    if plateau not in _PLATEAUS:
        raise ValueError(f"plateau is {plateau!r}, expected one of {_PLATEAUS}")
    given: Any = _checked(maps)
    given = np.ascontiguousarray(given, None if given.dtype == np.uint8 else np.float32)
    thresholds, backend = np.empty(len(given), np.int32), backend_for(given)
    levels = np.empty((_LEVELS, *given.shape[1:]), np.uint8)
    for low in range(0, len(given), _LEVELS):
        part, n = given[low : low + _LEVELS], min(_LEVELS, len(given) - low)
        found = thresholds[low : low + n]
        if given.dtype == np.float32:
            backend.quantise_otsu(part, plateau == "middle", levels, found, 0, n)
        else:
            backend.otsu(part, plateau == "middle", found, 0, n)
    return thresholds


def object_masks(maps: Any, size: tuple[int, int]) -> U8:
    """(N, H, W) uint8, 255 on the objects of maps (N, h, w) and 0 elsewhere: enlarged bilinearly, then parted by Otsu.

    Values that are not finite count as the least finite one; a map whose finite values are all equal has no object.
    Raises ValueError for anything but numbers of that shape, and a size that is no pair of integers >= 1.
    """
    levels, thresholds = object_levels(maps, size)
    return np.where(levels > thresholds[:, None, None], np.uint8(255), np.uint8(0))


def object_levels(maps: Any, size: tuple[int, int]) -> tuple[U8, NDArray[np.int32]]:
    """The levels (N, H, W) uint8 of maps (N, h, w) enlarged to `size`, and above which (N,) the objects are."""
    if not is_pair(size):
        raise ValueError(f"size is {size!r}, expected pixels >= 1: a pair (height, width)")
    given = finite(maps)
    levels, thresholds = np.empty((len(given), *size), np.uint8), np.empty(len(given), np.int32)
    large, backend = np.empty((_ROWS, *size), np.float32), backend_for(given)
    for low in range(0, len(given), _ROWS):
        part, n = given[low : low + _ROWS], min(_ROWS, len(given) - low)
        backend.enlarge(part, large, 0, n)
        backend.quantise_otsu(large, False, levels[low : low + n], thresholds[low : low + n], 0, n)
    return levels, thresholds


def distances(maps: Any, others: Any) -> F64:
    """(N, M) L2 distances between maps (N, h, w) and others (M, h, w), each of them stretched to 0..1 before.

    N or M may be 0.  Raises ValueError for anything but numbers of these shapes.
    """
    one, two = stretched(maps), stretched(others)
    if one.shape[1:] != two.shape[1:]:
        raise ValueError(f"maps have {one.shape[1:]} cells and others {two.shape[1:]}, expected the same")
    one, two = (part.reshape(len(part), part.shape[1] * part.shape[2]) for part in (one, two))
    out = np.empty((len(one), len(two)))
    backend_for(one).distances(one, two, out, 0, len(one))
    return np.sqrt(out)


def stretched(maps: Any) -> F32:
    """Maps (N, h, w) with their least value at 0 and their largest at 1; constant ones are 0 everywhere."""
    given = finite(maps)
    low, high = given.min((1, 2), keepdims=True), given.max((1, 2), keepdims=True)
    return np.asarray((given - low) / np.where(high > low, high - low, 1), np.float32)


def finite(maps: Any) -> F32:
    """Maps (N, h, w) as float32 whose values that are not finite in it are the least finite one, or 0 if there is none.

    A map whose range float32 does not hold is halved.  Raises ValueError for anything but numbers of that shape.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        given = np.ascontiguousarray(_checked(maps), np.float32)
        if np.isfinite(given.max(initial=0) - given.min(initial=0)):
            return given
        known = np.isfinite(given)
        least = np.where(known, given, np.inf).min((1, 2), keepdims=True)
        made = np.where(known, given, np.where(np.isfinite(least), least, 0)).astype(np.float32)
        wide = np.isinf(made.max((1, 2)) - made.min((1, 2)))
    made[wide] /= 2
    return made


def is_pair(sides: Any) -> bool:
    """Whether these are two integers >= 1, as a tuple or list."""
    known = isinstance(sides, tuple | list) and len(sides) == 2
    integers = known and all(isinstance(side, int | np.integer) and not isinstance(side, bool) for side in sides)
    return integers and min(sides) >= 1


def _checked(maps: Any) -> NDArray[Any]:
    if hasattr(maps, "detach"):  # a torch tensor
        maps = maps.detach().cpu()
        maps = maps.float() if maps.is_floating_point() else maps  # NumPy knows no bfloat16
    given = np.asarray(maps)
    if given.ndim != 3 or 0 in given.shape[1:] or given.dtype.kind not in "fiu":
        raise ValueError(f"maps are {given.dtype} {given.shape}, expected numbers (N, h, w)")
    return given
