"""The crop's part of a baseline JPEG: entropy decoding (ITU-T T.81, annex F) that stores only the blocks in view.

Every symbol of the file is read, so damage anywhere is noticed, but what lies outside the crop is only measured, by a
table that knows how far two symbols reach.  Whatever is not plain and sound makes the decoder give up: the caller then
asks libjpeg-turbo, to which the pixels are equal.

Bits are read from a 64-bit word.  Refilled it holds 56 or more, and a symbol with its value takes 31 at most, so a code
(16 at most) can be looked up before the next refill, which then happens at the same time: that saves a fifth of it all.
"""

from __future__ import annotations

import threading
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types as nb
from numba.extending import intrinsic

from . import DECODE_SPACE, U8, Scan
from .cpu import work_space
from .cpu_huffman import CODES, LOOK, ZIGZAG, long, read_steps, read_tables, twice
from .cpu_idct import put_row, to_rgb
from .jit import jit

PAD = 320  # zero bytes behind the stream, more than the longest block takes
_STEP = 32  # bytes copied at a time
_U, _I = np.uint64, np.int64


@intrinsic  # type: ignore[untyped-decorator]
def _copy(_context: Any, source: Any, _at: Any, target: Any, _to: Any) -> Any:
    """Copy the next `_STEP` bytes; returns how many come before the first 0xFF among them."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        source, target = (context.make_array(kinds[k])(context, b, arguments[k]).data for k in (0, 2))
        several = ir.VectorType(ir.IntType(8), _STEP)
        value = b.load(b.bitcast(b.gep(source, [arguments[1]]), several.as_pointer()), align=1)
        b.store(value, b.bitcast(b.gep(target, [arguments[3]]), several.as_pointer()), align=1)
        found = b.icmp_unsigned("==", value, ir.Constant(several, [255] * _STEP))
        return b.zext(b.cttz(b.bitcast(found, ir.IntType(_STEP)), ir.Constant(ir.IntType(1), 0)), ir.IntType(64))

    return nb.uint64(source, nb.uint64, target, nb.uint64), emit


@jit
def unstuff(data, start, stream):  # type: ignore[no-untyped-def]
    """Copy entropy-coded bytes from `start` up to the next marker, without the zero behind each 0xFF.

    Returns how many bytes were written and where the marker is (or the end).
    """
    size, i, n = _U(data.shape[0]), _U(start), _U(0)
    while i < size:
        if i + _U(_STEP) <= size:
            count = _copy(data, i, stream, n)
            i += count
            n += count
            if count == _STEP:
                continue
        if data[i] == 255 and (i + _U(1) == size or data[i + _U(1)] != 0):
            break
        stream[n] = data[i]
        i += _U(2) if data[i] == 255 else _U(1)
        n += _U(1)
    for k in range(_U(PAD)):
        stream[n + k] = 0
    return n, i


@jit
def _word(data, i):  # type: ignore[no-untyped-def]
    """Eight bytes, the first one highest; compiled to one load."""
    high = _U(data[i]) << _U(56) | _U(data[i + _U(1)]) << _U(48) | _U(data[i + _U(2)]) << _U(40)
    middle = _U(data[i + _U(3)]) << _U(32) | _U(data[i + _U(4)]) << _U(24) | _U(data[i + _U(5)]) << _U(16)
    return high | middle | _U(data[i + _U(6)]) << _U(8) | _U(data[i + _U(7)])


@jit
def _value(word, bits, size):  # type: ignore[no-untyped-def]
    """The last `size` of the word's first `bits` bits: as they are after a 1, else minus their complement (F.2.2.1)."""
    word = word << (bits - size & _U(63))
    low = _I(~word) >> _I(63)
    return (_I(((word ^ _U(low)) >> _U(1)) >> (_U(63) - size)) ^ low) - low


@jit
def _refill(stream, at, word, bits):  # type: ignore[no-untyped-def]
    return at + (_U(63) - bits >> _U(3)), word | _word(stream, at) >> bits, bits | _U(56)


@jit
def read_row(stream, end, place, last, parts, tables, steps, mcus, first, stop, blocks):  # type: ignore[no-untyped-def]
    """Read one row of `mcus` MCUs and put the blocks of those in first..stop, dequantised, into `blocks` (n, 64) int16.

    place: (3,) uint64, where the stream is read: byte, word, bits.  last: (3,) int64, the last DC value of each colour.
    tables: single, double, codes.  Returns whether all of it could be read.

    One long function, for Numba counts references to arrays around calls: by block, that takes a quarter of the time.
    """
    single, double, codes = tables
    at, word, bits = _refill(stream, place[0], place[1], place[2])
    n = _U(0)
    for mcu in range(mcus):
        for part in range(_U(parts.shape[0])):
            colour, dc, ac, row = _U(parts[part, 0]), _U(parts[part, 1]), _U(parts[part, 2]), _U(parts[part, 3])
            one = _U(single[dc, word >> _U(64 - LOOK)])
            at, word, bits = _refill(stream, at, word, bits)
            one = one if one else long(word, codes, dc)
            used = one & _U(63)
            last[colour] += _value(word, used, one >> _U(6) & _U(15))
            word <<= used
            bits -= used
            sound = used > 0
            k = _U(0)  # number in the zigzag of the last coefficient read
            if first <= mcu and mcu < stop:
                for j in range(_U(64)):
                    blocks[n, j] = 0
                blocks[n, 0] = np.int16(last[colour] * _I(steps[row, 0]))
                while k < 63:
                    one = _U(single[ac, word >> _U(64 - LOOK)])
                    at, word, bits = _refill(stream, at, word, bits)
                    one = one if one else long(word, codes, ac)
                    used, step, before = one & _U(63), one >> _U(10), word
                    word <<= used
                    bits -= used
                    if step == 0:
                        sound = sound and used > 0
                        break
                    k += step
                    j = _U(ZIGZAG[k])
                    blocks[n, j] = np.int16(_value(before, used, one >> _U(6) & _U(15)) * _I(steps[row, j]))
                n += _U(1)
            else:
                while k < 63:
                    two = _U(double[ac, word >> _U(64 - LOOK)])
                    at, word, bits = _refill(stream, at, word, bits)
                    two = two if two else twice(long(word, codes, ac))
                    k += two >> _U(12) & _U(31)
                    if k >= 63:  # the symbol that follows is of the next block
                        used = two >> _U(6) & _U(63)
                        word <<= used
                        bits -= used
                        break
                    used = two & _U(63)
                    k += two >> _U(17) & _U(31)
                    word <<= used
                    bits -= used
                    if two >> _U(22) or two == 0:
                        sound = sound and two > 0
                        break
            if not sound or k > 63 or at > end + _U(8):
                return False
    place[0], place[1], place[2] = at, word, bits
    return True


@jit
def decode_region(  # type: ignore[no-untyped-def]
    data, start, shape, parts, tables, steps, region, stream, blocks, planes, sums, lines, out
):
    """Decode the region of a scan into out (H, W, 3); returns whether the file was plain and sound.

    shape: height, width, across, down (luma samples a colour sample), colours.
    """
    height, width, across, down, colours = shape
    left, top, right, bottom = region
    size = ((width + across - 1) // across, (height + down - 1) // down)
    # Interpolated colour needs one more sample on each side.  An MCU has 8 x 8 of them.
    first = max(left // across - (across - 1), 0) // 8
    stop = min((right - 1) // across + across - 1, size[0] - 1) // 8 + 1
    above = max(top // down - (down - 1), 0) // 8
    below = min((bottom - 1) // down + down - 1, size[1] - 1) // 8 + 1
    wide, high = 8 * (stop - first), 8 * (below - above)
    strides = (wide * across, wide, wide)
    luma = wide * across * high * down
    offsets = (0, luma, luma + wide * high)
    mcus, rows = (size[0] + 7) // 8, (size[1] + 7) // 8

    end, marker = unstuff(data, start, stream)
    place, last = np.zeros(3, np.uint64), np.zeros(3, np.int64)
    for row in range(rows):
        seen = above <= row and row < below
        skip = 0 if seen else mcus
        if not read_row(stream, end, place, last, parts, tables, steps, mcus, max(first, skip), stop, blocks):
            return False
        if np.abs(last).max() >= 1 << 30:  # libjpeg-turbo refuses sums beyond 32 bits
            return False
        if seen and not put_row(blocks, stop - first, across, down, colours, row - above, planes, offsets, strides):
            return False
    unread = _I(8 * end) - (_I(8 * place[0]) - _I(place[2]))
    if unread < 0 or unread >= 8 or not _ends(data, marker):
        return False
    origin = (8 * first * across, 8 * above * down)
    to_rgb(planes, offsets, strides, origin, across, down, colours, region, size, sums, lines, out)
    return True


@jit
def _ends(data, marker):  # type: ignore[no-untyped-def]
    """Whether the end of the image is what comes next."""
    while marker + _U(1) < data.shape[0] and data[marker + _U(1)] == 255:
        marker += _U(1)
    return marker + _U(1) < data.shape[0] and data[marker + _U(1)] == 0xD9


class _Kept(threading.local):
    """What a thread keeps from file to file: the tables of the last one."""

    def __init__(self) -> None:
        self.contents: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
        self.found = [0, 0]
        self.steps = np.zeros((4, 64), np.uint16)
        self.tables = (
            np.zeros((4, 1 << LOOK), np.uint16),
            np.zeros((4, 1 << LOOK), np.uint32),
            np.zeros((4, CODES), np.int64),
        )

    def prepare(self, scan: Scan) -> bool:
        """Make the tables, unless they are the last file's; returns whether all that the scan uses are there."""
        if self.contents != (scan.steps, scan.tables):
            read = [
                [read_steps(np.frombuffer(content, np.uint8), self.steps) for content in scan.steps],
                [read_tables(np.frombuffer(content, np.uint8), *self.tables) for content in scan.tables],
            ]
            self.contents = (scan.steps, scan.tables)
            self.found = [0 if 0 in bits else reduce(or_, bits, 0) for bits in read]
        steps, tables = self.found
        return all(tables >> dc & tables >> ac & steps >> row & 1 for _, dc, ac, row in scan.parts.tolist())


_kept = _Kept()


def decode(data: bytes, scan: Scan, region: tuple[int, int, int, int], out: U8) -> bool:
    """See `kernels.decode_jpeg`."""
    if not _kept.prepare(scan):
        return False
    height, width, across, down, _ = scan.shape
    mcus, rows, blocks = -(-width // (8 * across)), -(-height // (8 * down)), len(scan.parts)
    line = 4 * (width + 16)
    counts = line, 2 * line, mcus * blocks * 128, rows * mcus * blocks * 64, len(data) - scan.start + PAD
    ends = list(accumulate(-(-count // 64) * 64 for count in counts))
    space = work_space(ends[-1]) if ends[-1] <= DECODE_SPACE else np.empty(ends[-1], np.uint8)
    sums, lines, row, planes, stream = (space[begin:end] for begin, end in pairwise([0, *ends]))
    # fmt: off
    return bool(decode_region(
        np.frombuffer(data, np.uint8), scan.start, scan.shape, scan.parts, _kept.tables, _kept.steps, region,
        stream, row.view(np.int16).reshape(-1, 64), planes,
        sums.view(np.int32), lines.view(np.int32).reshape(2, -1), out,
    ))
    # fmt: on
