"""What `decode_jpeg`, the kernel without a reference, needs to know of a file, and the kernel itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

DECODE_SPACE = 1 << 24  # most bytes that a thread keeps for `decode_jpeg`


@dataclass(frozen=True)
class Scan:
    """Where the pixels of a baseline JPEG begin and how they are coded (ITU-T T.81); one scan, 8 bits, 1 or 3 colours.

    start: place of the first entropy-coded byte.
    shape: height, width, luma samples a colour sample across and down (1 or 2), colours.
    parts: (blocks of an MCU, 4) int64: the colour; its DC and its AC table, 0..3 for DC 0, AC 0, DC 1, AC 1; its
    quantisation table, 0..3.
    steps, tables: contents of the DQT and of the DHT segments.
    """

    start: int
    shape: tuple[int, int, int, int, int]
    parts: NDArray[np.int64]
    steps: tuple[bytes, ...]
    tables: tuple[bytes, ...]


def decode_jpeg(data: bytes, scan: Scan, region: tuple[int, int, int, int], out: U8) -> bool:
    """Decode the pixels left..right, top..bottom of a JPEG into the same place of out (H, W, 3) uint8, RGB.

    They equal those of libjpeg-turbo's default decoder, which is the definition: this kernel has no reference of its
    own, and works on CPUs alone.  The whole file is checked.  False: it is damaged, or of a kind that only looked
    plain; out is then undefined and a full decoder should be asked.
    """
    from . import cpu_jpeg

    return cpu_jpeg.decode(data, scan, region, out)
