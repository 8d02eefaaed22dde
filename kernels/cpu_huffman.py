"""The tables of a baseline JPEG (ITU-T T.81, B.2.4 and annex C), made into forms that are fast to look up.

A symbol is held in 15 bits: how many its code and its value take together (6), how many its value (4), and how far it
goes in the zigzag (5; 0 ends the block).
"""

from __future__ import annotations

import numpy as np

from .jit import jit

LOOK = 11  # bits of a table index: both AC tables of a file stay in the nearest cache
_U, _I = np.uint64, np.int64
_LATER, _CODES, _SYMBOLS = 0, 32, 64  # parts of a row of `codes`: ends, offsets and symbols of the codes
CODES = _SYMBOLS + 256

# Place in the block of a coefficient's number in the zigzag; numbers past the end, which only damage gives, go to 63.
ZIGZAG = np.full(128, 63, np.uint8)
ZIGZAG[:64] = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))


@jit
def read_steps(content, steps):  # type: ignore[no-untyped-def]
    """Put quantisation tables (B.2.4.1) into steps (4, 64) uint16, row by row of a block; returns a bit for each."""
    found = 0
    for at in range(0, content.shape[0], 65):
        row = content[at]
        if row > 3 or at + 65 > content.shape[0]:  # 16-bit steps have a one in the high half
            return 0
        for k in range(64):
            steps[row, ZIGZAG[k]] = content[at + 1 + k]
        found |= 1 << row
    return found


@jit
def read_tables(content, single, double, codes):  # type: ignore[no-untyped-def]
    """Make the tables of Huffman tables (B.2.4.2), number 2 destination + class; returns a bit for each."""
    found, at = 0, 0
    while at + 17 <= content.shape[0]:
        kind, row = content[at] >> 4, content[at] & 15
        symbols = 0
        for k in range(1, 17):
            symbols += content[at + k]
        if kind > 1 or row > 1 or symbols > 256 or at + 17 + symbols > content.shape[0]:
            return 0
        table = 2 * row + kind
        if kind == 0 and symbols and content[at + 17 : at + 17 + symbols].max() > 15:
            return 0
        if not _build(content[at + 1 : at + 17], content[at + 17 : at + 17 + symbols], single[table], codes[table]):
            return 0
        if kind == 1:
            _pair(single[table], double[table])
        found |= 1 << table
        at += 17 + symbols
    return found if at == content.shape[0] else 0


@jit
def _symbol(length, symbol):  # type: ignore[no-untyped-def]
    """A symbol as the tables hold it: bits of code and value (6), bits of the value (4), how far it goes (5)."""
    run, size = symbol >> 4, symbol & 15
    step = run + 1 if size > 0 or run == 15 else 0  # 0 ends the block
    return (length + size) | size << 6 | step << 10


@jit
def _build(counts, symbols, single, codes):  # type: ignore[no-untyped-def]
    """From the numbers of codes with 1..16 bits and their symbols; returns whether they make sense.

    single (2^LOOK,) uint16: the symbol that these bits begin with, or 0 if its code is longer.  codes (CODES,) int64:
    for `_long`.
    """
    code, n = 0, 0
    single[:] = 0
    for length in range(1, 17):
        codes[_CODES + length] = n - code
        for _ in range(counts[length - 1]):
            if code >= (1 << length) - 1:  # ones alone are no code
                return False
            symbol = _symbol(length, _I(symbols[n]))
            codes[_SYMBOLS + n] = symbol
            if length <= LOOK:
                first = code << (LOOK - length)
                for k in range(first, first + (1 << (LOOK - length))):
                    single[k] = symbol
            code += 1
            n += 1
        codes[_LATER + length] = code << (16 - length)
        code <<= 1
    return True


@jit
def _pair(single, double):  # type: ignore[no-untyped-def]
    """double (2^LOOK,) uint32: how far the next two symbols reach, as far as they are in view.

    Bits of both (6), bits of the first (6), its steps (5), those of the second (5), whether a block ends with them (1).
    """
    for k in range(1 << LOOK):
        one = _I(single[k])
        bits, step = one & 63, one >> 10
        two, end = _I(0), step == 0
        if not end and bits < LOOK:
            two = _I(single[k << bits & (1 << LOOK) - 1])
            seen = bits + (two & 63) - (two >> 6 & 15) <= LOOK
            two = two if seen else _I(0)
            end = two != 0 and two >> 10 == 0
        whole = (bits + (two & 63)) | bits << 6 | step << 12 | (two >> 10) << 17 | _I(end) << 22
        double[k] = 0 if one == 0 else whole


@jit
def long(word, codes, table):  # type: ignore[no-untyped-def]
    """The symbol whose code of more than LOOK bits begins the word; 0 if there is none."""
    top = _I(word >> _U(48))
    for length in range(LOOK + 1, 17):
        if top < codes[table, _LATER + length]:
            return _U(codes[table, _U(_SYMBOLS + (top >> (16 - length)) + codes[table, _CODES + length])])
    return _U(0)


@jit
def twice(one):  # type: ignore[no-untyped-def]
    """A symbol as an entry of `double` that stands alone."""
    used, step = one & _U(63), one >> _U(10)
    return used | used << _U(6) | step << _U(12) | _U(used > 0 and step == 0) << _U(22)
