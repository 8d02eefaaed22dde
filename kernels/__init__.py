"""Arrays in, arrays out: the arithmetic of fastmix, once per backend.

A mix is a short *program*.  ``layers`` are pictures seen through a chain of ops; ``steps`` fold them, one after
the other, into the picture being made; a last op may finish it.  Everything here is deterministic: the only
"random" numbers are Philox bits that are a pure function of the key stored in the program.

Pictures are ``uint8`` RGB, N x H x W x 3, C-contiguous.  Every kernel takes a slice ``[lo, hi)`` of the batch, writes
``out[lo:hi]`` and nothing else, never changes its input, and trusts its arguments: they are checked where they enter
(`fastmix.types`).  ``kernels.reference`` is the living definition; ``kernels.cpu`` is the fast one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from .program import LAYER as LAYER
from .program import OP as OP
from .program import STEP as STEP
from .program import U8 as U8
from .program import Clip as Clip
from .program import Mode as Mode
from .program import Op as Op
from .program import Program as Program
from .program import Records as Records
from .program import Source as Source
from .program import Where as Where
from .scan import DECODE_SPACE as DECODE_SPACE
from .scan import Scan as Scan
from .scan import decode_jpeg as decode_jpeg

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Backend(Protocol):
    """Every kernel once.

    Backends agree to the bit but in three places, which a level may separate: `crop_resize` and `Op.SHRINK`; a warp,
    where a value is next to a whole number (1e-4 of the values of a photograph); a power, where one is next to a
    rounding edge (at most 1e-3).
    """

    def crop_resize(
        self, sources: Sequence[U8], boxes: F64, flips: NDArray[np.bool_], out: U8, lo: int, hi: int
    ) -> None:
        """Antialiased bilinear (triangle filter) resize of a box of each source to out's H x W, mirrored where `flips`.

        sources: one (h, w, 3) picture a row, any sizes.  boxes: (N, 4) left, top, width, height in source pixels, may
        be fractional, inside the source.  float32 inside, one rounding; within 1 level of Pillow's resize(box=...),
        backends within 1 level of each other.
        """

    def op(self, images: U8, ops: Records, out: U8, lo: int, hi: int) -> None:
        """Apply ops[i] (N, OP) to images[i]: the op suite.  NONE copies.

        Equal to Pillow for the ops that carry its names; `Op.WARP` as in `warp`, `Op.SHRINK` as in
        `crop_resize`.
        """

    def warp(self, images: U8, matrices: F64, out: U8, lo: int, hi: int) -> None:
        """`Op.WARP`: bilinear, black outside, fraction dropped, as Pillow's AFFINE, to which the reference is equal.

        Backends may weigh taps in float32 at float64 positions.  matrices: (N, 6).
        """

    def filter3x3(self, images: U8, weights: F32, out: U8, lo: int, hi: int) -> None:
        """Correlate with (3, 3) weights, + 0.5, drop the fraction, clip; the border is copied.

        Equal to Pillow's Kernel of weights[::-1], for it counts rows from below.  Sides below 3: a copy.
        """

    def histogram(self, images: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
        """out[i, c, v] = how many pixels of channel c have value v.  out: (N, 3, 256) int32."""

    def table(self, images: U8, tables: U8, out: U8, lo: int, hi: int) -> None:
        """out[i, y, x, c] = tables[i, c, images[i, y, x, c]].  tables: (N, 3, 256) uint8."""

    def mix(self, images: U8, pool: U8, program: Program, out: U8, lo: int, hi: int) -> None:
        """Run the programs: render the layers, fold the steps in float32, round half up, finish.

        pool: (M, PH, PW, 3), PH >= H, PW >= W.  out: (hi - lo, H, W, 3), row i goes to out[i - lo], so that a thread
        needs memory for its own rows only; it must not overlap `images`.
        """

    def paste(
        self,
        images: U8,
        partner: NDArray[np.int64],
        source_boxes: F64,
        boxes: NDArray[np.int64],
        out: U8,
        lo: int,
        hi: int,
    ) -> None:
        """out[i] = images[i] with boxes[i] (top, left, bottom, right) covered by a part of images[partner[i]].

        That part, source_boxes[i] (left, top, width, height), is resized as in `crop_resize`.  An empty box copies.
        """

    def to_float(
        self, images: U8, table: NDArray[Any], out: NDArray[Any], channels_last: bool, lo: int, hi: int
    ) -> None:
        """out[i, c, y, x] = table[c, images[i, y, x, c]] (out[i, y, x, c] if channels_last): normalise and lay out.

        table: (3, 256) float32, or uint16 holding float16 / bfloat16 bits.  out: (N, 3, H, W) or (N, H, W, 3), of the
        same dtype.
        """

    def mix_float(
        self,
        images: U8,
        pool: U8,
        program: Program,
        table: NDArray[Any],
        out: NDArray[Any],
        channels_last: bool,
        lo: int,
        hi: int,
    ) -> None:
        """`mix`, then `to_float`, row by row: a picture is written while it is in the nearest caches.

        out: as for `to_float`, but with hi - lo rows; row i goes to out[i - lo].
        """

    def spectral_residual(self, images: U8, out: F32, lo: int, hi: int) -> None:
        """Where pictures are unusual: the spectral residual (Hou & Zhang, CVPR 2007) of their grey in h x w cells.

        Its magnitude after a Gaussian of sigma h / 16 and w / 16, up to ceil(h / 8) and ceil(w / 8) cells away.
        out: (N, h, w) float32 in [0, 1], smallest value 0, largest 1; 0 everywhere for a picture without contrast.
        h <= H, w <= W; cell i spans the whole pixels from i H // h to (i + 1) H // h.  Grey is 0.299 R + 0.587 G +
        0.114 B.  Backends agree within 1e-3.
        """

    def enlarge(self, maps: F32, out: F32, lo: int, hi: int) -> None:
        """out[i] (H, W) = maps[i] (h, w), bilinear between the centres of cells, as they are beyond the outermost ones.

        Along an axis a + f (b - a) in float32, with f the float32 of a float64 place: columns first, then rows.
        """

    def quantise(self, maps: F32, out: U8, lo: int, hi: int) -> None:
        """The number, 0..255, of each value's bin, of 256 equal ones over the range of its map (H, W).

        min(floor((v - least) * (256 / (most - least))), 255) in float32.  Values that are not finite count as the least
        finite one; a map whose finite values are all equal, or that has none, becomes 0 everywhere.
        """

    def otsu(self, levels: U8, middle: bool, out: NDArray[np.int32], lo: int, hi: int) -> None:
        """out[i] = Otsu's threshold of levels[i] (H, W): the object is where levels are above it.

        The first t with the largest q1 q2 (mu1 - mu2)^2, in float64, q and mu the shares and means of the levels up to
        t and above; `middle`: the middle, rounded down, of the thresholds that part the levels in the same way.  255,
        so that there is no object, if all levels are equal.
        """

    def quantise_otsu(self, maps: F32, middle: bool, levels: U8, out: NDArray[np.int32], lo: int, hi: int) -> None:
        """`quantise` to `levels`, then `otsu` of them, map by map: what is counted is still at hand."""

    def join_masks(
        self,
        levels: U8,
        thresholds: NDArray[np.int32],
        partner: NDArray[np.int64],
        union: bool,
        out: U8,
        areas: NDArray[np.int64],
        lo: int,
        hi: int,
    ) -> None:
        """out[i] (H, W) = 255 where levels[i] or (`union`; else: and) levels[partner[i]] are above their thresholds.

        areas: (N, 3) pixels of the own mask, of the partner's and of the joint one.
        """

    def share_masks(
        self, maps: F32, partner: NDArray[np.int64], out: U8, sums: NDArray[np.int64], lo: int, hi: int
    ) -> None:
        """out[i] (H, W) = floor(255 r + 0.5), r = (a + 1e-6) / ((a + 1e-6) + (b + 1e-6)) in float32.

        a and b are maps[i] and maps[partner[i]] (h, w), finite and >= 0, as `enlarge` makes them.  sums[i]: of out[i].
        """

    def best_windows(self, levels: U8, sides: NDArray[np.int64], out: NDArray[np.int64], lo: int, hi: int) -> None:
        """out[i] = top, left of the sides[i] (height, width) window with the largest sum of levels[i] (H, W).

        The first in row-major order of several; windows lie inside.
        """

    def distances(self, maps: F32, others: F32, out: F64, lo: int, hi: int) -> None:
        """out[i, j] = the sum of squares of maps[i] - others[j], rows of (N, K) and (M, K); summed in float64.

        Equal rows have equal distances, and 0 from each other; else backends agree within 1e-12 of the value.
        """

    def bits(self, ids: NDArray[np.int64], words: NDArray[np.uint32], stream: int, out: NDArray[np.uint32]) -> None:
        """out[i, k] = 32-bit number k of the Philox stream of ids[i]; the bits that `mix` uses for its masks."""

    def attractor(
        self, maps: F64, chances: F64, points: int, words: NDArray[np.uint32], box: F64, out: NDArray[np.uint32]
    ) -> None:
        """Count the visits of the chaos game to each pixel (Barnsley, "Fractals Everywhere").

        maps: (n, 6) a, b, c, d, e, f of (x, y) -> (ax + by + c, dx + ey + f).  chances: (n,) cumulative.  box: (4,)
        left, top, right, bottom of the window in the plane; points outside are not counted.  Starts at the fixed point
        of map 0.  words: (4,) uint32 seed low, seed high, picture, 0: the key of the choices.  out: (H, W) counts.
        """


def backend_for(array: object) -> Backend:
    """The backend that works where `array` lives, loaded (and compiled) on first use.

    NumPy arrays: Numba's.  CUDA tensors of torch and CuPy arrays: those of their GPU.  Raises TypeError for anything
    else, and ModuleNotFoundError where what a GPU needs is not installed.
    """
    if isinstance(array, np.ndarray):
        from . import cpu

        return cast(Backend, cpu)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")  # whoever has such an array has loaded it
    given: Any = array
    if torch is not None and isinstance(array, torch.Tensor) and given.is_cuda:
        from . import cuda

        return cast(Backend, cuda.backend(given.device.index, torch))
    if cupy is not None and isinstance(array, cupy.ndarray):
        from . import cuda

        return cast(Backend, cuda.backend(given.device.id))
    raise TypeError(f"no backend for {type(array).__name__}: pass a NumPy array, a CUDA tensor or a CuPy array")
