"""Scalar arithmetic of one value, in plain Python: compiled by Numba for the CPU and by Numba-CUDA for the GPU.

Nothing here is random, allocates or knows an array.  Integers are uint64 inside Philox, for NumPy's and Numba's rules for
mixed unsigned arithmetic differ; floats are float32, one rounding an operation, so that every target gives the same bits.
"""

from __future__ import annotations

import numpy as np

U64 = np.uint64
U32 = np.uint32
I32 = np.int32
F32 = np.float32


def philox4x32(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Philox4x32-10 of a 4-word counter and a 2-word key: four 32-bit words, in uint64."""
    c0, c1, c2, c3, k0, k1 = U64(c0), U64(c1), U64(c2), U64(c3), U64(k0), U64(k1)
    low = U64(0xFFFFFFFF)
    for _ in range(10):
        p0 = c0 * U64(0xD2511F53)
        p1 = c2 * U64(0xCD9E8D57)
        c0 = (p1 >> U64(32)) ^ c1 ^ k0
        c2 = (p0 >> U64(32)) ^ c3 ^ k1
        c1 = p1 & low
        c3 = p0 & low
        k0 = (k0 + U64(0x9E3779B9)) & low
        k1 = (k1 + U64(0xBB67AE85)) & low
    return c0, c1, c2, c3
