"""Ops of pictures anywhere on a device, as jobs: which launches do them."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Op, Records, gather
from .cuda_device import Array, Device

THREADS = 256  # of a block
MOST = 65535  # blocks of a picture; 16 million pixels
PARTS = 32  # most blocks that share the counting of a picture

# One op of a picture that is somewhere in memory, in rows of `pitch` bytes; the result is picture `slot` of an array.
JOB = np.dtype(
    [("address", np.uint64), ("pitch", np.int64), ("slot", np.int32), ("code", np.int32), ("p", np.float64, (6,))],
    align=True,
)
# Such a picture's box (left, top, width, height), resized into a rectangle (top, left, bottom, right) of a slot.
CUT = np.dtype(
    [
        ("address", np.uint64),
        ("pitch", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("box", np.float64, (4,)),
        ("rectangle", np.int32, (4,)),
        ("slot", np.int32),
        ("flip", np.int32),
    ],
    align=True,
)
_COUNTED = (Op.AUTOCONTRAST, Op.EQUALIZE, Op.CONTRAST, Op.FLOAT_AUTOCONTRAST)  # ops that a histogram decides
_TABLES = (*_COUNTED, Op.POSTERIZE, Op.SOLARIZE, Op.INVERT, Op.BRIGHTNESS, Op.FLOAT_POSTERIZE)
_WARPS = (Op.WARP, Op.FLOAT_WARP)


class Jobs:
    """Launches of jobs on a device."""

    def __init__(self, device: Device):
        self.device = device

    def launch(self, name: str, grid: tuple[int, int], threads: int, *args: Any) -> None:
        """As `Device.launch`, but nothing for an empty grid.  Raises ValueError for pictures that no grid can hold."""
        if grid[1] > MOST:
            raise ValueError(f"{name} takes {grid[1]} blocks a picture, a GPU has {MOST}: mix such pictures on the CPU")
        if grid[0] and grid[1]:
            self.device.launch(name, grid, threads, *args)

    def of_rows(self, images: Array, lo: int, hi: int) -> Records:
        """A job for each picture, in its own place, as yet without an op."""
        jobs = np.zeros(hi - lo, JOB)
        size = 3 * images.shape[1] * images.shape[2]
        jobs["address"] = self.device.address(images) + np.arange(lo, hi) * size
        jobs["pitch"], jobs["slot"] = 3 * images.shape[2], np.arange(lo, hi)
        return jobs

    def count(self, jobs: Array, number: int, rows: int, size: tuple[int, int], counts: Array) -> None:
        """Add to counts (J, rows, 256), all zeros, how many pixels of pictures of `size` have each level.

        Rows are the channels and, if there are four, Pillow's L.
        """
        grid = number, min(blocks(size[0] * size[1], 16 * THREADS), PARTS)
        self.launch("histogram", grid, THREADS, jobs, np.int32(size[0]), np.int32(size[1]), np.int32(rows), counts)

    def apply(self, jobs: Records, sources: list[Array], out: Array) -> None:
        """Do the jobs, which read pictures of `sources` and write pictures of out (N, H, W, 3)."""
        codes, (height, width) = jobs["code"], out.shape[1:3]
        warped, shrunk = np.isin(codes, _WARPS), codes == Op.SHRINK
        self._warp(jobs[warped], sources, out)
        self._shrink(jobs[shrunk], out)
        plain = jobs[~warped & ~shrunk]
        counted, tabled = np.isin(plain["code"], _COUNTED), np.isin(plain["code"], _TABLES)
        plain = plain[np.argsort(np.where(counted, 0, np.where(tabled, 1, 2)), kind="stable")]
        first, second = int(counted.sum()), int(tabled.sum())
        (sent,) = self.device.upload(plain)
        counts = self.device.empty((max(first, 1), 4, 256), np.int32)
        self.device.clear(counts)
        tables = self.device.empty((max(second, 1), 3, 256), np.uint8)
        self.count(sent, first, 4, (height, width), counts)
        self.launch("tables", (second, 1), THREADS, sent, counts, np.int32(height * width), tables)
        grid = len(plain), blocks(height * width, 4 * THREADS)
        self.launch("apply_ops", grid, THREADS, sent, tables, np.int32(height), np.int32(width), out)

    def _warp(self, jobs: Records, sources: list[Array], out: Array) -> None:
        if not len(jobs):
            return
        height, width = out.shape[1:3]
        given = [self.device.array(each).reshape(-1) for each in sources]
        starts = [self.device.address(each) for each in given]
        which = np.zeros(len(jobs), np.int32)
        for number, (start, each) in enumerate(zip(starts, given, strict=True)):
            which[(jobs["address"] >= start) & (jobs["address"] < start + each.size)] = number
        offsets = (jobs["address"] - np.array(starts, np.uint64)[which]).astype(np.int64)
        soft = (jobs["code"] == Op.FLOAT_WARP).astype(np.int32)
        parts = which, offsets, jobs["pitch"], jobs["slot"].astype(np.int64), soft, jobs["p"]
        sent = self.device.upload(*parts)
        typed = [each.view(part.dtype).reshape(part.shape) for each, part in zip(sent, parts, strict=True)]
        read, size = [*given, *[given[0]] * (3 - len(given))], (np.int64(height), np.int64(width))
        flat = self.device.array(out).reshape(-1)
        self.device.gather(gather.warp, len(jobs) * height * width, *read, *typed, *size, flat)

    def _shrink(self, jobs: Records, out: Array) -> None:
        cuts = np.zeros(len(jobs), CUT)
        for name in ("address", "pitch", "slot"):
            cuts[name] = jobs[name]
        cuts["height"], cuts["width"] = out.shape[1:3]
        cuts["box"] = [0, 0, out.shape[2], out.shape[1]]
        cuts["rectangle"] = jobs["p"][:, :4]
        self.resize(cuts, out, False, out)

    def resize(self, cuts: Records, under: Array, keep: bool, out: Array) -> None:
        """Do the cuts, to out (N, H, W, 3): around a rectangle is what `under`, of that shape, has, if kept, or 0."""
        height, width = out.shape[1:3]
        (sent,) = self.device.upload(cuts)
        grid = len(cuts), blocks(height * width, THREADS)
        args = sent, under, np.int32(keep), np.int32(height), np.int32(width), out
        self.launch("resize", grid, THREADS, *args)


def blocks(count: int, each: int) -> int:
    """How many blocks of so many it takes."""
    return -(-count // each)
