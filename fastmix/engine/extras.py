"""What a source is read with besides itself: maps for methods, and pictures that were made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..datasets import Source
from ..mapfile import FileMaps, MapFile
from ..maps import MapBank
from ..saliency import SpectralResidual
from ..synthetic import Expanded, Replacement, Synthetic


class Extras(NamedTuple):
    """The fields of a `Recipe` of the same names."""

    source: Source
    maps: MapBank | FileMaps | SpectralResidual | None = None
    synthetic: Replacement | None = None

    @classmethod
    def of(cls, source: Source, maps: Any, synthetic: Any, prob: Any) -> Extras:
        """Open maps and expanded set.

        maps: a MapBank, MapFile or SpectralResidual, or None.  synthetic: a `Synthetic`, its path, or None.  With a
        `prob` of 0, it is looked at and left alone.  Raises TypeError and ValueError for others, and as `Expanded`.
        """
        if not (isinstance(prob, int | float | np.floating) and 0 <= prob <= 1):
            raise ValueError(f"replace_prob is {prob!r}, expected a probability in [0, 1]")
        if maps is not None and not isinstance(maps, MapBank | MapFile | SpectralResidual):
            raise TypeError(
                f"maps is a {type(maps).__name__}, expected a fastmix.MapBank, fastmix.MapFile or "
                "fastmix.SpectralResidual, or None"
            )
        opened = maps.of(source) if isinstance(maps, MapFile) else maps
        if synthetic is None:
            return cls(source, opened)
        if not isinstance(synthetic, str | Path | Synthetic):
            raise TypeError(f"synthetic is a {type(synthetic).__name__}, expected fastmix.Synthetic(path), or a path")
        if isinstance(maps, MapFile):
            raise ValueError("maps is a MapFile, which does not know the synthetic pictures: use SpectralResidual()")
        about = synthetic if isinstance(synthetic, Synthetic) else Synthetic(synthetic)
        expanded = Expanded(source, about)
        replacement = expanded.replacement(about.replace, float(prob))
        return cls(source, opened) if prob == 0 else cls(expanded, opened, replacement)
