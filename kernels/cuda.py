"""The kernels on a GPU: what is launched, on how many blocks, and with what.

Programs stay on the host, where they were drawn; the records that a launch needs go to the device in one small copy.
A launch works on a whole batch, nothing waits for the device, and there is no launch for what no sample has.  Sums
that must round as on a CPU are CUDA C++ (`cuda/*.cu`), for Numba's compiler fuses multiplications and additions and
cannot be told not to; gathers and whole numbers are Numba's (`gather.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import F64, Mode, Op, Program, Records, Source, gather
from .cuda_device import Array, CupyDevice
from .cuda_jobs import CUT, JOB, THREADS, blocks
from .cuda_masks import CudaMasks

_RUN, _FOLDERS = 16, 128  # pixels a thread of the fold has, threads of its blocks

PICTURE = np.dtype([("address", np.uint64), ("pitch", np.int64)], align=True)
# log2 of a level as GEOMETRIC sees it, y / 127.5 and at least 1e-37; of 127.5; of 255.
_LOGS = np.log2([*np.maximum(np.arange(256) / 127.5, 1e-37), 127.5, 255]).astype(np.float32)


class Cuda(CudaMasks):
    """`Backend`, but for `spectral_residual` and `attractor`, on a device.

    Pictures, maps and results are arrays on the device; programs, boxes and ops are NumPy arrays.
    """

    def crop_resize(
        self, sources: Sequence[Array], boxes: F64, flips: NDArray[np.bool_], out: Array, lo: int, hi: int
    ) -> None:
        """See `Backend.crop_resize`."""
        given = [self._device.array(each) for each in sources[lo:hi]]
        cuts = np.zeros(hi - lo, CUT)
        cuts["address"] = [self._device.address(each) for each in given]
        cuts["height"], cuts["width"] = np.array([each.shape[:2] for each in given]).reshape(-1, 2).T
        cuts["pitch"], cuts["slot"] = 3 * cuts["width"], np.arange(lo, hi)
        cuts["box"], cuts["flip"] = boxes[lo:hi], flips[lo:hi]
        cuts["rectangle"][:, 2:] = out.shape[1:3]
        self._jobs.resize(cuts, out, False, out)

    def paste(
        self, images: Array, partner: NDArray[np.int64], source_boxes: F64, boxes: Any, out: Array, lo: int, hi: int
    ) -> None:
        """See `Backend.paste`."""
        height, width = images.shape[1:3]
        cuts = np.zeros(hi - lo, CUT)
        cuts["address"] = self._device.address(images) + 3 * height * width * partner[lo:hi]
        cuts["height"], cuts["width"], cuts["pitch"] = height, width, 3 * width
        cuts["box"], cuts["rectangle"], cuts["slot"] = source_boxes[lo:hi], boxes[lo:hi], np.arange(lo, hi)
        self._jobs.resize(cuts, images, True, out)

    def op(self, images: Array, ops: Records, out: Array, lo: int, hi: int) -> None:
        """See `Backend.op`."""
        jobs = self._jobs.of_rows(images, lo, hi)
        jobs["code"], jobs["p"] = ops["code"][lo:hi], ops["p"][lo:hi]
        self._jobs.apply(jobs, [images], out)

    def warp(self, images: Array, matrices: F64, out: Array, lo: int, hi: int) -> None:
        """See `Backend.warp`."""
        jobs = self._jobs.of_rows(images, lo, hi)
        jobs["code"], jobs["p"] = Op.WARP, matrices[lo:hi]
        self._jobs.apply(jobs, [images], out)

    def filter3x3(self, images: Array, weights: Any, out: Array, lo: int, hi: int) -> None:
        """See `Backend.filter3x3`."""
        height, width = images.shape[1:3]
        grid = hi - lo, blocks(height * width, THREADS)
        args = images[lo:hi], self._device.array(weights), np.int32(height), np.int32(width), out[lo:hi]
        self._jobs.launch("filter3x3", grid, THREADS, *args)

    def histogram(self, images: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.histogram`."""
        (jobs,) = self._device.upload(self._jobs.of_rows(images, lo, hi))
        self._device.clear(out[lo:hi])
        self._jobs.count(jobs, hi - lo, 3, images.shape[1:3], out[lo:hi])

    def table(self, images: Array, tables: Array, out: Array, lo: int, hi: int) -> None:
        """See `Backend.table`."""
        size = math.prod(images.shape[1:])
        pictures, looked_up, made = (self._device.array(each)[lo:hi].reshape(-1) for each in (images, tables, out))
        self._device.gather(gather.table, (hi - lo) * size, pictures, looked_up, np.int64(size), made)

    def bits(self, ids: Any, words: NDArray[np.uint32], stream: int, out: Array) -> None:
        """See `Backend.bits`."""
        turns = len(ids) * blocks(out.shape[1], 4)
        numbers = [np.uint64(word) for word in (*words, stream)]
        self._device.gather(gather.bits, turns, self._device.array(ids), *numbers, out)

    def mix(self, images: Array, pool: Array, program: Program, out: Array, lo: int, hi: int) -> None:
        """See `Backend.mix`."""
        self.mix_float(images, pool, program, None, out, False, lo, hi)

    def to_float(self, images: Array, table: Any, out: Array, channels_last: bool, lo: int, hi: int) -> None:
        """See `Backend.to_float`: a fold without steps."""
        none = Program.empty(np.zeros(hi - lo, np.int64), _NO_KEY, (1, 1), layers=1, chain=0, steps=1)
        self.mix_float(images[lo:hi], images[:0], none, table, out[lo:hi], channels_last, 0, hi - lo)

    def mix_float(
        self,
        images: Array,
        pool: Array,
        program: Program,
        table: Any,
        out: Array,
        channels_last: bool,
        lo: int,
        hi: int,
    ) -> None:
        """See `Backend.mix_float`: the fold writes what it has in its registers; without a table, levels as `mix`."""
        pool = self._device.keep(pool)
        pictures, memory = self._render(images, pool, program, lo, hi)  # the pictures lie in the memory, so keep it
        finish = program.finish[lo:hi]
        if (finish["code"] == Op.NONE).all():
            self._fold(images, pictures, program, table, out, channels_last, lo, hi)
            return
        made = self._device.empty((hi - lo, *images.shape[1:]), np.uint8)
        self._fold(images, pictures, program, None, made, False, lo, hi)
        done = out if table is None else self._device.empty(made.shape, np.uint8)
        self.op(made, finish, done, 0, hi - lo)
        if table is not None:
            self.to_float(done, table, out, channels_last, 0, hi - lo)
        del memory

    def _render(self, images: Array, pool: Array, program: Program, lo: int, hi: int) -> tuple[Records, Array]:
        """Where the pictures of the layers are, (hi - lo, L) PICTURE, and the memory of those that are made.

        Layers without ops lie where they are; the others are made one op after the other, for all samples at once, in
        turns in two halves of that memory.
        """
        (height, width), size = images.shape[1:3], 3 * images.shape[1] * images.shape[2]
        layers, codes = program.layers[lo:hi], program.ops["code"][lo:hi]
        pooled = layers["source"] == Source.POOL
        windows = (layers["index"] * pool.shape[1] + layers["top"]) * pool.shape[2] + layers["left"]
        rows = np.where(layers["source"] == Source.MATE, layers["index"], np.arange(lo, hi)[:, None])
        pictures = np.zeros(layers.shape, PICTURE)
        pictures["pitch"] = 3 * np.where(pooled, pool.shape[2], width)
        pictures["address"] = np.where(
            pooled, self._device.address(pool) + 3 * windows, self._device.address(images) + size * rows
        )
        lengths = np.cumprod(codes != Op.NONE, axis=2).sum(2) * _used(program.steps[lo:hi], layers.shape[1])
        sample, layer = np.nonzero(lengths)
        length = lengths[sample, layer]
        count, depth = len(sample), int(length.max(initial=0))
        memory = self._device.empty((max(count * min(depth, 2), 1), height, width, 3), np.uint8)
        for stage in range(depth):
            live = np.flatnonzero(length > stage)
            at = sample[live], layer[live]
            jobs = np.zeros(len(live), JOB)
            jobs["address"], jobs["pitch"] = pictures["address"][at], pictures["pitch"][at]
            jobs["slot"] = live + stage % 2 * count
            jobs["code"], jobs["p"] = codes[at][:, stage], program.ops["p"][lo:hi][at][:, stage]
            self._jobs.apply(jobs, [images, pool, memory], memory)
            pictures["address"][at] = self._device.address(memory) + size * jobs["slot"].astype(np.int64)
            pictures["pitch"][at] = 3 * width
        return pictures, memory

    def _fold(
        self,
        images: Array,
        pictures: Records,
        program: Program,
        table: Any,
        out: Array,
        channels_last: bool,
        lo: int,
        hi: int,
    ) -> None:
        (height, width), steps = images.shape[1:3], program.steps[lo:hi]
        values = np.zeros(1, np.uint8) if table is None else table
        sent = self._device.upload(pictures, steps, program.ids[lo:hi], values, program.masks, _LOGS)
        # Every stretch is whole, and starts at a multiple of 16 bytes in out.
        wide = height * width % _RUN == 0 and self._device.address(out) % 16 == 0
        summed = bool(np.isin(steps["mode"], (Mode.SUM, Mode.TOTAL)).any())
        self._jobs.launch(
            "fold_sums" if summed else "fold",
            (hi - lo, blocks(height * width, _RUN * _FOLDERS)),
            _FOLDERS,
            images[lo:hi],
            sent[0],
            sent[1],
            np.int32(pictures.shape[1]),
            np.int32(steps.shape[1]),
            sent[2],
            *map(np.uint32, program.words),
            sent[4],
            np.int32(program.masks.shape[3]),
            sent[5],
            np.int32(height),
            np.int32(width),
            sent[3],
            np.int32(0 if table is None else table.dtype.itemsize),
            np.int32(channels_last),
            np.int32(wide),
            out,
        )


_NO_KEY = np.zeros(3, np.uint32)


def _used(steps: Records, layers: int) -> NDArray[np.bool_]:
    """(N, L) whether a step reads the layer."""
    read = (np.cumprod(steps["mode"] != Mode.END, axis=1) > 0) & ~np.isin(steps["mode"], (Mode.SUM, Mode.TOTAL))
    read &= (steps["top"] < steps["bottom"]) & (steps["left"] < steps["right"])
    return np.asarray((read[:, :, None] & (steps["layer"][:, :, None] == np.arange(layers))).any(1))


@cache
def backend(number: int = 0, torch: Any = None) -> Cuda:
    """The kernels on a GPU by its number; torch: the module, for tensors."""
    return Cuda(CupyDevice(number, torch))
