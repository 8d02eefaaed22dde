"""Scalar arithmetic of one value, in plain Python: compiled by Numba for the CPU and by Numba-CUDA for the GPU.

Nothing here is random, allocates or knows an array.  Integers are uint64 inside Philox, for NumPy's and Numba's rules
for mixed unsigned arithmetic differ; floats are float32, one rounding an operation, so that every target gives the same
bits.
"""

from __future__ import annotations

import numpy as np

U64 = np.uint64
U32 = np.uint32
I32 = np.int32
F32 = np.float32


def philox_round(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """One round of Philox4x32; all words are uint64 below 2^32, which the masks tell the compiler."""
    low = U64(0xFFFFFFFF)
    p0 = (c0 & low) * U64(0xD2511F53)
    p1 = (c2 & low) * U64(0xCD9E8D57)
    return (p1 >> U64(32)) ^ c1 ^ (k0 & low), p1 & low, (p0 >> U64(32)) ^ c3 ^ (k1 & low), p0 & low


def philox4x32(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Philox4x32-10 of a 4-word counter and a 2-word key: four 32-bit words, in uint64.

    Ten calls and no loop: so compilers see straight code, and do many counters at a time.
    """
    low, step0, step1 = U64(0xFFFFFFFF), U64(0x9E3779B9), U64(0xBB67AE85)
    c0, c1, c2, c3, k0, k1 = U64(c0) & low, U64(c1) & low, U64(c2) & low, U64(c3) & low, U64(k0), U64(k1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + step0, k1 + step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(2) * step0, k1 + U64(2) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(3) * step0, k1 + U64(3) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(4) * step0, k1 + U64(4) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(5) * step0, k1 + U64(5) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(6) * step0, k1 + U64(6) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(7) * step0, k1 + U64(7) * step1)
    c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0 + U64(8) * step0, k1 + U64(8) * step1)
    return philox_round(c0, c1, c2, c3, k0 + U64(9) * step0, k1 + U64(9) * step1)


def fma(a, b, c):  # type: ignore[no-untyped-def]
    """a b + c of float32, rounded once.  Backends put the processor's instruction in its place: faster, same bits."""
    return F32(np.float64(a) * np.float64(b) + np.float64(c))


def log2(x):  # type: ignore[no-untyped-def]
    """log2 of a positive normal float32, absolute error below 2e-7.

    Writes x = 2^e (1 + f) with f in [sqrt(1/2) - 1, sqrt(2) - 1) and takes a polynomial of degree 8 in f.
    """
    word = F32(x).view(I32)
    e = I32(I32(word - I32(0x3F3504F3)) >> I32(23))
    f = I32(word - I32(e << I32(23))).view(F32) - F32(1)
    p = F32(-0.1457444280385971)
    p = fma(p, f, F32(0.23688922822475433))
    p = fma(p, f, F32(-0.2500685453414917))
    p = fma(p, f, F32(0.28670763969421387))
    p = fma(p, f, F32(-0.3600872755050659))
    p = fma(p, f, F32(0.48093944787979126))
    p = fma(p, f, F32(-0.7213571667671204))
    p = fma(p, f, F32(1.4426947832107544))
    return fma(p, f, F32(e))


def exp2(t):  # type: ignore[no-untyped-def]
    """2^t in float32 for -126 <= t < 127.4, relative error below 2e-7.

    A polynomial of degree 5 around the nearest integer.
    """
    e = I32(I32(F32(t) + F32(1024.5)) - I32(1024))
    f = F32(t) - F32(e)
    p = F32(0.0013276466634124517)
    p = fma(p, f, F32(0.009675541892647743))
    p = fma(p, f, F32(0.05550713464617729))
    p = fma(p, f, F32(0.24022120237350464))
    p = fma(p, f, F32(0.6931469440460205))
    p = fma(p, f, F32(1.0000001192092896))
    return I32(F32(p).view(I32) + I32(e << I32(23))).view(F32)
