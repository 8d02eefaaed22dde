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
    """The fields of a `Recipe` of the same names; and the data set and the settings that they were opened with."""

    source: Source
    maps: MapBank | FileMaps | SpectralResidual | None
    synthetic: Replacement | None
    plain: Source
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, source: Source, maps: Any, synthetic: Any, prob: Any, num_classes: Any = None) -> Extras:
        """Open maps and expanded set.

        maps: a MapBank, MapFile or SpectralResidual, or None.  synthetic: a `Synthetic`, its path, or None.  With a
        `prob` of 0, it is looked at and left alone.  num_classes: of soft labels, or None.

        Raises TypeError and ValueError for others, and as `Expanded`.
        """
        if not (isinstance(prob, int | float | np.floating) and 0 <= prob <= 1):
            raise ValueError(f"replace_prob is {prob!r}, expected a probability in [0, 1]")
        if maps is not None and not isinstance(maps, MapBank | MapFile | SpectralResidual):
            raise TypeError(
                f"maps is a {type(maps).__name__}, expected a fastmix.MapBank, fastmix.MapFile or "
                "fastmix.SpectralResidual, or None"
            )
        opened = maps.of(source) if isinstance(maps, MapFile) else maps
        given = source, (maps, synthetic, prob, num_classes)
        if synthetic is None:
            return cls(source, opened, None, *given)
        if not isinstance(synthetic, str | Path | Synthetic):
            raise TypeError(f"synthetic is a {type(synthetic).__name__}, expected fastmix.Synthetic(path), or a path")
        if isinstance(maps, MapFile):
            raise ValueError("maps is a MapFile, which does not know the synthetic pictures: use SpectralResidual()")
        about = synthetic if isinstance(synthetic, Synthetic) else Synthetic(synthetic)
        expanded = Expanded(source, about, num_classes)
        replacement = expanded.replacement(about.replace, float(prob))
        return cls(source, opened, None, *given) if prob == 0 else cls(expanded, opened, replacement, *given)

    def now(self, *settings: Any) -> Extras:
        """These; or, if the settings after `source` in `of` are not those that they were opened with, new ones."""
        same = all(map(_same, settings, self.settings))
        return self if same else Extras.of(self.plain, *settings)


def _same(a: Any, b: Any) -> bool:
    """Whether a setting was left alone.  Numbers are others after pickling, all else is the very object."""
    return a is b or (isinstance(a, int | float) and isinstance(b, int | float) and a == b)
