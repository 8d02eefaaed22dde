"""The kernels for saliency on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import gather
from .cuda_device import Array, Device
from .cuda_jobs import PARTS, THREADS, Jobs, blocks

_ROW_THREADS = 1024  # of the one block that works on a map


class CudaMasks:
    """The part of `cuda.Cuda` that works on maps; all arrays are on the device, but for partners and sides, NumPy's."""

    def __init__(self, device: Device):
        self._device, self._jobs = device, Jobs(device)

    def quantise(self, maps: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.quantise`."""
        self._levels(maps[lo:hi], False, out[lo:hi], None)

    def otsu(self, levels: Array, middle: bool, out: Array, lo: int, hi: int) -> None:
        """See `Backend.otsu`."""
        self._levels(None, middle, levels[lo:hi], out[lo:hi])

    def quantise_otsu(self, maps: Array, middle: bool, levels: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.quantise_otsu`."""
        self._levels(maps[lo:hi], middle, levels[lo:hi], out[lo:hi])

    def enlarge(self, maps: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.enlarge`."""
        sides = [np.int32(side) for side in (*maps.shape[1:], *out.shape[1:])]
        grid = hi - lo, blocks(out.shape[1] * out.shape[2], THREADS)
        self._jobs.launch("enlarge", grid, THREADS, maps[lo:hi], *sides, out[lo:hi])

    def join_masks(
        self,
        levels: Array,
        thresholds: Array,
        partner: Any,
        union: bool,
        out: Array,
        areas: Array,
        lo: int,
        hi: int,
    ) -> None:
        """See `Backend.join_masks`."""
        pixels, mates = levels.shape[1] * levels.shape[2], self._device.array(partner[lo:hi] - lo)
        self._device.clear(areas[lo:hi])
        grid = hi - lo, min(blocks(pixels, THREADS), PARTS)
        args = levels[lo:hi], thresholds[lo:hi], mates, np.int32(pixels), np.int32(not union)
        self._jobs.launch("join_masks", grid, THREADS, *args, out[lo:hi], areas[lo:hi].view(np.uint64))

    def share_masks(self, maps: Array, partner: Any, out: Array, sums: Array, lo: int, hi: int) -> None:
        """See `Backend.share_masks`."""
        sides = [np.int32(side) for side in (*maps.shape[1:], *out.shape[1:])]
        grid = hi - lo, min(blocks(out.shape[1] * out.shape[2], THREADS), PARTS)
        self._device.clear(sums[lo:hi])
        args = maps[lo:hi], self._device.array(partner[lo:hi] - lo), *sides, out[lo:hi], sums[lo:hi].view(np.uint64)
        self._jobs.launch("share_masks", grid, THREADS, *args)

    def best_windows(self, levels: Array, sides: Any, out: Array, lo: int, hi: int) -> None:
        """See `Backend.best_windows`: by sums over all corners, of rows first and then of columns."""
        height, width = levels.shape[1:]
        size = np.int32(height), np.int32(width)
        sums = self._device.empty((hi - lo, height + 1, width + 1), np.uint32)
        self._jobs.launch("integral_rows", (hi - lo, blocks(height + 1, THREADS)), THREADS, levels[lo:hi], *size, sums)
        self._jobs.launch("integral_columns", (hi - lo, blocks(width + 1, THREADS)), THREADS, *size, sums)
        args = sums, self._device.array(sides)[lo:hi], *size, out[lo:hi]
        self._jobs.launch("best_windows", (hi - lo, 1), THREADS, *args)

    def distances(self, maps: Array, others: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.distances`."""
        self._device.gather(gather.distances, (hi - lo) * len(others), maps[lo:hi], others, out[lo:hi])

    def _levels(self, maps: Array | None, middle: bool, levels: Array, thresholds: Array | None) -> None:
        pixels, none = levels.shape[1] * levels.shape[2], self._device.empty((1,), np.float32)
        args = none if maps is None else maps, np.int32(pixels), np.int32(middle), np.int32(maps is not None)
        found = self._device.empty((1,), np.int32) if thresholds is None else thresholds
        grid = len(levels), 1
        self._jobs.launch("quantise_otsu", grid, _ROW_THREADS, *args, np.int32(thresholds is not None), levels, found)
