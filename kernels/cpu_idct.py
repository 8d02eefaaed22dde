"""From dequantised JPEG blocks to RGB, to the bit as libjpeg-turbo's accurate decoder makes them.

The inverse DCT is that of Loeffler, Ligtenberg and Moschytz ("Practical fast 1-D DCT algorithms with 11
multiplications", ICASSP 1989) in 13-bit fixed point; colour of half the size is interpolated by a triangle filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types as nb
from numba.extending import intrinsic

from .jit import jit

_I, _U, _I32 = np.int64, np.uint64, np.int32
_LANES = ir.VectorType(ir.IntType(32), 8)
_INTERLEAVED = ([0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15])


class _Lanes:
    """Eight int32 at once, while the code is being generated.

    Numba's own vectoriser does not see a block as eight columns, and takes three and a half times as long.
    """

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def _do(self, operation: str, other: _Lanes | int) -> _Lanes:
        right = ir.Constant(_LANES, [other] * 8) if isinstance(other, int) else other.value
        return _Lanes(self.builder, getattr(self.builder, operation)(self.value, right))

    def __add__(self, other: _Lanes | int) -> _Lanes:
        return self._do("add", other)

    def __sub__(self, other: _Lanes | int) -> _Lanes:
        return self._do("sub", other)

    def __mul__(self, other: int) -> _Lanes:
        return self._do("mul", other)

    def __lshift__(self, other: int) -> _Lanes:
        return self._do("shl", other)

    def __rshift__(self, other: int) -> _Lanes:
        return self._do("ashr", other)

    def __or__(self, other: _Lanes) -> _Lanes:
        return self._do("or_", other)

    def clip(self, low: int, high: int) -> _Lanes:
        """As bytes want it."""
        b, least, most = self.builder, ir.Constant(_LANES, [low] * 8), ir.Constant(_LANES, [high] * 8)
        value = b.select(b.icmp_signed("<", self.value, least), least, self.value)
        return _Lanes(b, b.select(b.icmp_signed(">", value, most), most, value))


def _transform(x: Sequence[Any]) -> list[Any]:
    """The 8-point inverse DCT times 2^13 sqrt(8): twelve multiplications, four of them shared sums."""
    z = (x[2] + x[6]) * 4433
    low, high = z - x[6] * 15137, z + x[2] * 6270
    sum_, difference = (x[0] + x[4]) << 13, (x[0] - x[4]) << 13
    even = [sum_ + high, difference + low, difference - low, sum_ - high]
    outer, inner = (x[7] + x[1]) * -7373, (x[5] + x[3]) * -20995
    a, b = x[7] + x[3], x[5] + x[1]
    both = (a + b) * 9633
    a, b = a * -16069 + both, b * -3196 + both
    odd = [x[1] * 12299 + outer + b, x[3] * 25172 + inner + a, x[5] * 16819 + inner + b, x[7] * 2446 + outer + a]
    return [e + o for e, o in zip(even, odd, strict=True)] + [e - o for e, o in zip(even, odd, strict=True)][::-1]


def _transpose(x: Sequence[_Lanes]) -> list[_Lanes]:
    """Three rounds of interleaving line k with line k + 4."""
    masks = [ir.Constant(_LANES, order) for order in _INTERLEAVED]
    for _ in range(3):
        pairs = [(x[k], x[k + 4], mask) for k in range(4) for mask in masks]
        x = [_Lanes(a.builder, a.builder.shuffle_vector(a.value, b.value, mask)) for a, b, mask in pairs]
    return list(x)


@intrinsic  # type: ignore[untyped-decorator]
def _inverse_dct(_context: Any, blocks: Any, _at: Any, plane: Any, _where: Any, _stride: Any) -> Any:
    """The 64 coefficients at blocks[at:], int16, become 8 rows of 8 bytes at plane[where:], `stride` apart.

    Returns 0 if the columns stay within 15 bits; beyond, libjpeg-turbo's vector code wraps and saturates.
    """

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, at, target, where, stride = arguments
        source = context.make_array(signature.args[0])(context, b, source).data
        target = context.make_array(signature.args[2])(context, b, target).data

        def row(k: int) -> _Lanes:
            first = b.gep(source, [b.add(at, ir.Constant(at.type, 8 * k))])
            line = b.load(b.bitcast(first, ir.VectorType(ir.IntType(16), 8).as_pointer()), align=2)
            return _Lanes(b, b.sext(line, _LANES))

        columns = [(x + (1 << 10)) >> 11 for x in _transform([row(k) for k in range(8)])]
        wide = columns[0] + (1 << 14)
        for x in columns[1:]:
            wide = wide | (x + (1 << 14))
        excess = b.bitcast(b.trunc((wide >> 15).value, ir.VectorType(ir.IntType(8), 8)), ir.IntType(64))
        rows = [((x + (1 << 17)) >> 18) + 128 for x in _transform(_transpose(columns))]
        eight = ir.VectorType(ir.IntType(8), 8)
        for k, line in enumerate(_transpose([x.clip(0, 255) for x in rows])):
            first = b.gep(target, [b.add(where, b.mul(stride, ir.Constant(stride.type, k)))])
            b.store(b.trunc(line.value, eight), b.bitcast(first, eight.as_pointer()), align=1)
        return excess

    return nb.uint64(blocks, nb.uint64, plane, nb.uint64, nb.uint64), emit


@jit
def put_row(blocks, mcus, across, down, colours, y, planes, offsets, strides):  # type: ignore[no-untyped-def]
    """Put the blocks of `mcus` MCUs, row y of those in view, into the planes (flat uint8, colour c from offsets[c] on).

    An MCU is across x down blocks of luma, then one of each colour.  Returns whether all levels stayed within the range
    in which libjpeg-turbo computes the same.
    """
    flat, n, excess = blocks.reshape(-1), 0, _U(0)
    for mcu in range(mcus):
        for c in range(colours):
            wide, high = (across, down) if c == 0 else (1, 1)
            for k in range(wide * high):
                line, column = 8 * (y * high + k // wide), 8 * (mcu * wide + k % wide)
                where = offsets[c] + line * strides[c] + column
                excess |= _inverse_dct(flat, _U(64 * n), planes, _U(where), _U(strides[c]))
                n += 1
    return excess == 0


@jit
def _between(near, far, down):  # type: ignore[no-untyped-def]
    """Three parts of the near colour row and one of the far."""
    return _I32(_I32(_I32(3) * _I32(near)) + _I32(far)) if down == 2 else _I32(near)


@jit
def _byte(v):  # type: ignore[no-untyped-def]
    v = v if v > _I32(0) else _I32(0)
    return np.uint8(v if v < _I32(255) else _I32(255))


@jit
def _rgb(y, b, r):  # type: ignore[no-untyped-def]
    """JFIF's colours (ITU-R BT.601, full range) in 16-bit fixed point, from int32 levels."""
    half, b, r = _I32(32768), _I32(b - _I32(128)), _I32(r - _I32(128))
    red = _I32(_I32(_I32(91881) * r) + half) >> _I32(16)
    green = _I32(_I32(_I32(_I32(-22554) * b) + _I32(_I32(-46802) * r)) + half) >> _I32(16)
    blue = _I32(_I32(_I32(116130) * b) + half) >> _I32(16)
    return _byte(_I32(y + _I32(red))), _byte(_I32(y + _I32(green))), _byte(_I32(y + _I32(blue)))


@jit
def to_rgb(planes, offsets, strides, origin, across, down, colours, region, size, sums, lines, out):  # type: ignore[no-untyped-def]
    """Write the pixels of `region` (left, top, right, bottom) into out (H, W, 3).

    origin: pixel x, y of the planes' first sample.  size: colour samples of the picture, (width, height).  Beyond its
    ends, colour repeats.  sums, lines (2, n): work space of int32.

    One long function, as `cpu_jpeg.read_row`.
    """
    left, top, right, bottom = region
    count = _U(right - left)
    first, last = left // across, (right - 1) // across  # colour samples under the region
    begin, end = max(first - 1, 0), min(last + 1, size[0] - 1)  # and those mixed into them
    even, odd, shift = (_I32(8), _I32(7), _I32(4)) if down == 2 else (_I32(1), _I32(2), _I32(2))
    flat = out.reshape(-1)
    for y in range(top, bottom):
        luma = _U(offsets[0] + (y - origin[1]) * strides[0] + left - origin[0])
        target = _U(3 * (y * out.shape[1] + left))
        near = y // down
        far = min(max(near + 2 * (y % down) - 1, 0), size[1] - 1) if down == 2 else near
        for c in range(1, colours):
            corner = offsets[c] + begin - origin[0] // across
            a = _U(corner + (near - origin[1] // down) * strides[c])
            b = _U(corner + (far - origin[1] // down) * strides[c])
            if across == 1:
                skip = _U(left - begin)
                for x in range(count):
                    lines[c - 1, x] = planes[a + skip + x]
                continue
            start = _U(begin - first + 1)
            for x in range(_U(end - begin + 1)):
                sums[start + x] = _between(planes[a + x], planes[b + x], down)
            if start == 1:
                sums[0] = sums[1]
            if end == last:
                sums[last - first + 2] = sums[last - first + 1]
            # Three parts of a sample and one of its neighbour, rounded up and down in turn.
            for x in range(_U(last - first + 1)):
                middle = _I32(_I32(3) * sums[x + _U(1)])
                lines[c - 1, _U(2) * x] = _I32(_I32(middle + sums[x]) + even) >> shift
                lines[c - 1, _U(2) * x + _U(1)] = _I32(_I32(middle + sums[x + _U(2)]) + odd) >> shift
        if colours == 1:
            for x in range(count):
                v = planes[luma + x]
                flat[target], flat[target + _U(1)], flat[target + _U(2)] = v, v, v
                target += _U(3)
        else:
            skip = _U(left - first * across)
            for x in range(count):
                r, g, b = _rgb(_I32(planes[luma + x]), lines[0, skip + x], lines[1, skip + x])
                at = target + _U(3) * x
                flat[at], flat[at + _U(1)], flat[at + _U(2)] = r, g, b
