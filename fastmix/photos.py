"""Small labelled picture sets, cut from the real photographs that scikit-learn and scikit-image install.

For the demo and the benchmarks: nothing is downloaded, the class is the photograph a picture was cut from, and every
crop is a keyed draw of the picture's number, so a seed names the whole set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .rng import F64, Key, integers

if TYPE_CHECKING:
    from PIL import Image

_CROP, _PATCH = 1000, 1001  # streams of their own: no loader draws from them
_LONG, _SHORT = 500, 333  # px: the usual long side of an ImageNet file, and the shortest short side drawn here
# JPEG quality is drawn from [low, high).  So high because these crops are softer than ImageNet's: it gives ImageNet's
# mean of about 105 KB, and bytes, not quality, are what a decoder works through.
_QUALITY = (96, 100)
_CLASSES = {
    "astronaut": ("skimage/data/astronaut.png",),
    "cat": ("skimage/data/chelsea.png",),
    "coffee": ("skimage/data/coffee.png",),
    "flower": ("sklearn/datasets/images/flower.jpg",),
    "galaxies": ("skimage/data/hubble_deep_field.jpg",),
    "motorcycle": ("skimage/data/motorcycle_left.png", "skimage/data/motorcycle_right.png"),
    "pagoda": ("sklearn/datasets/images/china.jpg",),
    "retina": ("skimage/data/retina.jpg",),
    "rocket": ("skimage/data/rocket.jpg",),
    "tissue": ("skimage/data/ihc.png",),
}


@dataclass(frozen=True)
class _Cut:
    """A crop of a photograph: box (left, top, right, bottom) in px, brought to `size` (width, height) in px."""

    photo: Image.Image
    box: tuple[float, float, float, float]
    size: tuple[int, int]

    def picture(self) -> Image.Image:
        return self.photo.resize(self.size, resample=1, box=self.box)  # 1: Lanczos


def cut_photos(
    folder: str | Path, count: int, seed: int = 0, progress: Callable[[Iterable[int]], Iterable[int]] = iter
) -> list[Path]:
    """Write `count` JPEGs of ImageNet's sizes as `folder`/class/number.jpg, classes in turn; returns their paths.

    60 % are 500 x 375 px, 14 % 375 x 500 px, the rest 500 px by 333..500 px either way; baseline 4:2:0, quality 96..99,
    on average about 105 KB.  A seed names the pictures (and their bytes, with one version of Pillow).  `progress` wraps
    the loop, as `tqdm` does.  Raises ModuleNotFoundError if an extra is missing, ValueError for a count below 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}, expected at least 1 picture")
    photos, folder = _photographs(), Path(folder)
    names, paths = list(photos), []
    draws = Key(seed).uniform(np.arange(count), _CROP, 8)
    for number in progress(range(count)):
        name = names[number % len(names)]
        path = folder / name / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        quality = int(integers(draws[number, 7], *_QUALITY))
        _imagenet_cut(photos[name], draws[number]).picture().save(path, quality=quality, subsampling="4:2:0")
        paths.append(path)
    return paths


def cut_patches(count: int, seed: int = 0, side: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A labelled set in memory: (count, side, side, 3) uint8 patches and (count,) int64 classes 0..9, classes in turn.

    A patch is a square of 1/4 to all of the photograph's short side.  Raises as `cut_photos` does.
    """
    if count < 1 or side < 1:
        raise ValueError(f"count is {count} and side is {side}, expected at least 1 patch of at least 1 px")
    photos = list(_photographs().values())
    images = np.empty((count, side, side, 3), np.uint8)
    for number, u in enumerate(Key(seed).uniform(np.arange(count), _PATCH, 4)):
        images[number] = np.asarray(_square_cut(photos[number % len(photos)], u, side).picture())
    return images, np.arange(count) % len(photos)


def _photographs() -> dict[str, list[Image.Image]]:
    """Class name to its photographs, RGB; opened from the installed packages, which are not imported."""
    missing = [name for name in ("PIL", "sklearn", "skimage") if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise ModuleNotFoundError(f'photographs come with {names}, not installed: pip install "fastmix[demo]"')
    from PIL import Image

    return {name: [Image.open(_installed(file)).convert("RGB") for file in files] for name, files in _CLASSES.items()}


def _installed(file: str) -> Path:
    package, _, inside = file.partition("/")
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / inside


def _imagenet_cut(photos: list[Image.Image], u: F64) -> _Cut:
    """The crop of 7 uniform draws: photograph, kind of size, free side, orientation, crop size, left, top."""
    photo = photos[int(u[0] * len(photos))]
    short = 375 if u[1] < 0.74 else int(integers(u[2], _SHORT, _LONG + 1))
    wide = u[1] < 0.6 or (u[1] >= 0.74 and u[3] < 0.5)
    width, height = (_LONG, short) if wide else (short, _LONG)
    largest = min(photo.width / width, photo.height / height)
    # Shrink where the photograph is large enough; otherwise stay near its full size, so that little is invented.
    smallest = 1.0 if largest > 1 else 0.85 * largest
    scale = smallest + float(u[4]) * (largest - smallest)
    return _Cut(photo, _box(photo, width * scale, height * scale, u[5:7]), (width, height))


def _square_cut(photos: list[Image.Image], u: F64, side: int) -> _Cut:
    """The crop of 4 uniform draws: photograph, crop size, left, top."""
    photo = photos[int(u[0] * len(photos))]
    edge = min(photo.size) * (0.25 + 0.75 * float(u[1]))
    return _Cut(photo, _box(photo, edge, edge, u[2:4]), (side, side))


def _box(photo: Image.Image, width: float, height: float, u: F64) -> tuple[float, float, float, float]:
    left, top = float(u[0]) * (photo.width - width), float(u[1]) * (photo.height - height)
    return left, top, min(left + width, photo.width), min(top + height, photo.height)
