"""Counter-based draws: every number is Philox4x32-10 of (seed, epoch, id, stream, counter).

A draw is a pure function of *what* it is for, never of who asks for it or when.  So it does not depend on threads,
ranks, batch sizes or the order of calls, and any of them can be repeated at any time.

Philox4x32-10 is from Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).  The 128-bit
counter holds (block, id low, epoch, stream | id high << 16) and the 64-bit key holds the seed; one block gives four
32-bit numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
F64 = NDArray[np.float64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_VIEW_STREAMS = 4096
_MAX_ID = 1 << 48


class Stream(IntEnum):
    """What a draw is for.  Two purposes never share numbers; BETA and WEIGHTS take the next number too."""

    SHUFFLE = 1
    CROP = 2
    REPLACE = 3
    PARTNER = 4
    POOL = 5
    BETA = 6
    BOX = 8
    WEIGHTS = 9
    JITTER = 11
    SYNTHETIC = 12
    METHOD = 16
    PIXELS = 64  # + number of the step: the per-pixel draws inside a kernel


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10.  counter: (..., 4) uint32; key: two 32-bit words.  Returns (..., 4) uint32."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0)
        c2 = (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


@dataclass(frozen=True)
class Key:
    """Names one pass over the data: `seed` (0 <= seed < 2^64), `epoch` (< 2^32), and the `view` of a sample (0..15).

    A `stream` (0 <= stream < 4096) names the purpose of a draw, so that two purposes never share numbers.
    """

    seed: int
    epoch: int = 0
    view: int = 0

    def __post_init__(self) -> None:
        for name, value, bound in (("seed", self.seed, 64), ("epoch", self.epoch, 32), ("view", self.view, 4)):
            if not isinstance(value, int | np.integer) or not 0 <= value < 1 << bound:
                raise ValueError(f"{name} is {value!r}, expected 0 <= {name} < 2**{bound}, an integer")

    @property
    def words(self) -> NDArray[np.uint32]:
        """(3,) uint32: seed low, seed high, epoch; what kernels need besides a stream and an id."""
        return np.array([self.seed & 0xFFFFFFFF, self.seed >> 32, self.epoch], np.uint32)

    def stream(self, stream: int) -> int:
        """The number of `stream` in this view, as kernels want it."""
        return self.view * _VIEW_STREAMS + stream

    def bits(self, ids: Ids, stream: int, count: int, start: int = 0) -> NDArray[np.uint32]:
        """(N, count) uint32: numbers start, start + 1, ... of the stream of each id; `start` is a multiple of 4."""
        ids = np.asarray(ids, np.int64)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < _MAX_ID:
            raise ValueError(f"ids run from {ids.min()} to {ids.max()}, expected 0 <= id < 2**48")
        blocks = -(-count // 4)
        counter = np.empty((len(ids), blocks, 4), np.uint32)
        counter[..., 0] = np.arange(start // 4, start // 4 + blocks)
        counter[..., 1] = (ids & 0xFFFFFFFF)[:, None]
        counter[..., 2] = self.epoch
        counter[..., 3] = (self.stream(stream) | (ids >> 32) << 16)[:, None]
        return philox(counter, (self.seed & 0xFFFFFFFF, self.seed >> 32)).reshape(len(ids), blocks * 4)[:, :count]

    def uniform(self, ids: Ids, stream: int, count: int, start: int = 0) -> F64:
        """(N, count) float64 in the open interval (0, 1), 2^32 equally likely values."""
        return np.asarray((self.bits(ids, stream, count, start) + 0.5) * 2.0**-32, np.float64)

    def gamma(self, ids: Ids, stream: int, shape: float, count: int = 1) -> F64:
        """(N, count) logarithms of Gamma(shape, 1) draws (logarithms, for a small shape underflows).

        Marsaglia & Tsang, "A simple method for generating gamma variables" (2000), with their boost for shape < 1.
        Number (t, k) of try t and column k is fixed, so a rejected draw never shifts another one.
        """
        if shape == 1:  # the exponential distribution, which AugMix and MixUp use by default
            return np.asarray(np.log(-np.log(self.uniform(ids, stream, count))))
        d = (shape if shape >= 1 else shape + 1) - 1 / 3
        out = np.full((len(ids), count), np.nan)
        attempt = 0
        while True:
            rows = np.flatnonzero(np.isnan(out).any(axis=1))
            if not rows.size:
                return out
            u = self.uniform(ids[rows], stream, 4 * count, start=4 * count * attempt).reshape(-1, count, 4)
            normal = np.sqrt(-2 * np.log(u[..., 0])) * np.cos(2 * np.pi * u[..., 1])
            v = (1 + normal / np.sqrt(9 * d)) ** 3
            log_v = np.log(np.where(v > 0, v, 1.0))
            ok = (v > 0) & (np.log(u[..., 2]) < 0.5 * normal**2 + d * (1 - v + log_v))
            value = np.log(d) + log_v + (np.log(u[..., 3]) / shape if shape < 1 else 0.0)
            out[rows] = np.where(np.isnan(out[rows]) & ok, value, out[rows])
            attempt += 1

    def beta(self, ids: Ids, stream: int, a: float, b: float) -> F64:
        """(N,) float64 Beta(a, b) draws in [0, 1]; uses `stream` and `stream` + 1."""
        x = self.gamma(ids, stream, a)[:, 0]
        y = self.gamma(ids, stream + 1, b)[:, 0]
        return np.asarray(1 / (1 + np.exp(np.clip(y - x, -700, 700))))

    def dirichlet(self, ids: Ids, stream: int, alpha: float, count: int) -> F64:
        """(N, count) float64 Dirichlet(alpha, ..., alpha) draws; rows sum to 1."""
        logs = self.gamma(ids, stream, alpha, count)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def partners(self, ids: Ids, stream: int, group: int) -> Ids:
        """(N,) row numbers: a random cyclic permutation of every mix group, so nobody with mates is left alone.

        Rows are cut in order into groups of `group` (the last one smaller).  A group's members are put in the order of
        a draw keyed by their own ids, and each takes the next one: so the pairing moves with the ids when rows are
        permuted inside the group.
        """
        rows = np.arange(len(ids))
        order = np.lexsort((self.bits(ids, stream, 1)[:, 0], rows // group))
        partner = np.empty(len(ids), np.int64)
        first = rows // group * group
        last = np.minimum(first + group, len(ids)) - 1
        partner[order] = order[np.where(rows == last, first, rows + 1)]
        return partner


def beta_a1(u: F64, a: float) -> F64:
    """Beta(a, 1) draws from uniform ones, by inversion."""
    return np.asarray(u ** (1 / a))


def beta_1b(u: F64, b: float) -> F64:
    """Beta(1, b) draws from uniform ones, by inversion."""
    return np.asarray(-np.expm1(np.log(u) / b))


def integers(u: F64, low: int, high: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers in [low, high), equally likely up to 2^-32 (high - low), from uniform draws."""
    return np.asarray(low + np.floor(u * (high - low)), np.int64)


def shuffle(positions: Ids, length: int, key: Key, stream: int) -> Ids:
    """Where each position goes in a random permutation of range(length), in O(len(positions)) whatever the length.

    A Feistel network over the smallest even number of bits that holds `length`, walked until it lands inside; its round
    function is Philox.
    """
    if length <= 1024:  # a few Feistel rounds are visibly uneven on small ranges, and a sort costs nothing there
        return np.argsort(key.bits(np.arange(length), stream, 1)[:, 0], kind="stable")[positions]
    half = max(1, (max(length - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = np.array(positions, np.int64)
    outside = np.arange(len(value))
    while outside.size:
        left, right = value[outside] >> half, value[outside] & mask
        for turn in range(4):
            left, right = right, left ^ (key.bits(right, stream, 1, start=4 * turn)[:, 0].astype(np.int64) & mask)
        value[outside] = left << half | right
        outside = outside[value[outside] >= length]
    return value
