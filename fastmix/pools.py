"""Pool files: fractals, or any folder of pictures, in one memory-mapped array to mix in."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps
from platformdirs import user_cache_dir
from tqdm import tqdm

from .fractals import RECIPE, SIDES, fractal
from .images import decode
from .kernels import U8
from .rng import Key
from .types import Pool

__all__ = ["ENDINGS", "default_pool", "default_pool_path", "fit_pool", "make_pool", "pack_pool"]

Item = TypeVar("Item")
Made = TypeVar("Made")

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_COUNT, _SIDE = 256, 256  # the default pool


def make_pool(
    path: str | Path,
    count: int,
    size: int = 256,
    seed: int = 0,
    color: bool = True,
    threads: int | None = None,
    progress: bool = False,
) -> Pool:
    """Write fractals 0..count - 1 of `seed` to a pool file and map it; the file appears when it is complete.

    The same bytes for any number of `threads` (None: one for each CPU of the process).  `progress`: a bar on stderr.
    Raises ValueError for a count or threads below 1, a size outside 16..2048, or a `path` in no folder.
    """
    if count < 1:
        raise ValueError(f"pool count is {count}, expected at least 1 picture")
    pictures = _in_order(partial(fractal, Key(seed), size=size, color=color), range(count), threads)
    return _write(Path(path), (count, size, size, 3), pictures, progress)


def pack_pool(folder: str | Path, path: str | Path, size: int = 256, progress: bool = False) -> Pool:
    """Write all pictures under `folder`, in the order of their names, to a pool file and map it.

    Each is resized (antialiased bilinear) to a short side of `size` pixels, and its centre is cut out.  Files are taken
    by their ENDINGS, hidden ones are not; `fastmix.images` tells how odd files become RGB.
    Raises ValueError for a folder without pictures, an unreadable file, a size below 1, or a `path` in no folder.
    """
    if size < 1:
        raise ValueError(f"pool size is {size}, expected at least 1 pixel")
    files = sorted(file for file in Path(folder).rglob("[!.]*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not files:
        raise ValueError(f"no pictures in {folder}: expected a folder with files that end in {' '.join(ENDINGS)}")
    return _write(Path(path), (len(files), size, size, 3), _in_order(partial(_packed, size), files, None), progress)


def _packed(size: int, file: Path) -> U8:
    try:
        picture = Image.fromarray(decode(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read picture {file}: {error}; mend it or take it out of the folder") from error
    return np.asarray(ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR))


def default_pool_path() -> Path:
    """Where the user's cache folder keeps the default pool, whether it has been made or not."""
    return Path(user_cache_dir("fastmix"), f"fractals-{RECIPE}-{_COUNT}x{_SIDE}.npy")


def default_pool() -> Pool:
    """256 colour fractals of 256 pixels, made on first use (a few seconds) and kept in the user's cache folder.

    Any number of processes may call it at once.  Where nothing can be cached, the pool is made anew, in memory.
    """
    path = default_pool_path()
    if path.is_file():
        return Pool.open(path)
    sys.stderr.write(f"fastmix: drawing {_COUNT} fractals to mix in, once, for {path}\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return make_pool(path, _COUNT, _SIDE)
    except OSError:
        return Pool(np.stack([*_in_order(partial(fractal, Key(0), size=_SIDE, color=True), range(_COUNT), None)]))


def open_pool(pool: Pool | str | Path | None) -> Pool:
    """A pool, or the file of one, or for None the default one.  Raises TypeError or ValueError if it is none."""
    if pool is None or isinstance(pool, Pool):
        return default_pool() if pool is None else pool
    if not isinstance(pool, str | Path):
        raise TypeError(f"pool is a {type(pool).__name__}, expected the path of a pool file, or fastmix.Pool(images)")
    return Pool.open(pool)


def check_pool(pool: Pool, size: tuple[int, int]) -> None:
    """Raise ValueError for a pool smaller than `size` (H, W)."""
    high, wide = pool.images.shape[1:3]
    if high < size[0] or wide < size[1]:
        raise ValueError(
            f"pool pictures are {high}x{wide}, smaller than the {size[0]}x{size[1]} pictures to mix: "
            f"make larger ones with `fastmix pool make --size {max(8 * max(size) // 7, SIDES[0])}`"
        )


def fit_pool(pool: Pool, size: tuple[int, int]) -> Pool:
    """The pool as pictures of `size` (H, W) see it: its short side at most 8/7 of their long side, rounded down.

    So are mixing pictures shown in PixMix: 256 pixels for crops of 224, 36 for 32.  Larger pools are resized once, in
    memory (antialiased bilinear); others are returned as they are.
    Raises ValueError for a pool smaller than `size`.
    """
    check_pool(pool, size)
    high, wide = pool.images.shape[1:3]
    short, side = min(high, wide), 8 * max(size) // 7
    if short <= side:
        return pool
    images = np.empty((len(pool), high * side // short, wide * side // short, 3), np.uint8)

    def resize(i: int) -> None:
        images[i] = Image.fromarray(pool.images[i]).resize(images.shape[2:0:-1], Image.Resampling.BILINEAR)

    for _ in _in_order(resize, range(len(pool)), None):
        pass
    images.flags.writeable = False
    return Pool(images)


def _in_order(function: Callable[[Item], Made], items: Sequence[Item], threads: int | None) -> Iterator[Made]:
    """function(item) of each item, in their order; few results wait, so that a slow disk does not fill the memory."""
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads is {threads}, expected at least 1")
    with ThreadPoolExecutor(threads) as executor:
        for start in range(0, len(items), 16 * threads):
            yield from executor.map(function, items[start : start + 16 * threads])


def _write(path: Path, shape: tuple[int, int, int, int], pictures: Iterable[U8], progress: bool) -> Pool:
    """Write a plain .npy under another name, then move it into place.

    Row by row, not through a map: a full disk is then an error and not the end of the process.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"cannot write pool {path}: expected the name of a file in a folder that exists")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        part = Path(folder, path.name)
        with part.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for picture in tqdm(pictures, desc=path.name, total=shape[0], unit="picture", disable=not progress):
                file.write(np.ascontiguousarray(picture).data)
        part.replace(path)
    return Pool.open(path)
