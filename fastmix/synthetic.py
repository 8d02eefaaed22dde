"""An expanded set beside the data set that it was made of: some samples give way to pictures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .datasets import Item, Label, Source, known_labels
from .rng import Ids, Key, Stream, integers
from .types import one_hot

__all__ = ["Expanded", "Replacement", "Synthetic"]

_LAWS = ("same_source", "same_class", "any")
_COLUMNS = ("source", "source_label", "weight", "target_label", "path", "source_path")
_LOOKED_AT = 4096  # records whose sources' names are compared, at most


@dataclass(frozen=True)
class Synthetic:
    """An expanded set, for `DataLoader(synthetic=Synthetic("out/", ...), replace_prob=0.1)`.

    path: a folder that `fastmix refine` has finished, or a manifest, such as the kept.parquet of `fastmix agreement`.
    replace: which picture takes the place of a sample: one made of the same sample ("same_source", as in DA-Fusion;
    keeps the balance of the classes and loses no sample), of its class ("same_class"), or "any" of the set (as in
    Diff-Mix).  A sample of which nothing was made stays.  smoothing: of all labels, (1 - s) y + s / C, 0 <= s < 1;
    SGD-Mix and Diff-Mix train with 0.1.

    Raises ValueError for settings outside these ranges.
    """

    path: str | Path
    replace: str = "same_source"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.replace not in _LAWS:
            raise ValueError(f"replace is {self.replace!r}, expected one of {_LAWS}")
        if not (isinstance(self.smoothing, Real) and 0 <= self.smoothing < 1):
            raise ValueError(f"smoothing is {self.smoothing!r}, expected 0 <= smoothing < 1: the papers have 0.1")


class Expanded:
    """A `Source` of a data set's samples, 0..n - 1, and behind them the pictures that were made of them.

    source: the data set.  synthetic: the set that was made of it.  Labels are (C,) float32 if they are smoothed or
    shared, else class numbers.

    Raises ValueError if the set was made of another data set or holds nothing, and as `read_manifest` does.
    """

    def __init__(self, source: Source, synthetic: Synthetic):
        from .manifest import read_made  # only those who have such a set need pyarrow

        made, about, self._folder = read_made(synthetic.path, _COLUMNS)
        if not len(made):
            raise ValueError(f"{synthetic.path} holds no picture: nothing was made, or kept; see its statuses")
        self._source, self._smoothing, self._names = source, synthetic.smoothing, list(about["classes"])
        self._paths, names = made["path"], made["source_path"]
        self._sources, self._labels, self._weights = (made[name].to_numpy() for name in _COLUMNS[:3])
        others = made["target_label"].to_numpy()
        self._others = np.where(np.isnan(others), self._labels, others).astype(np.int64)
        self._soft = bool(self._smoothing > 0 or (self._weights < 1).any())
        if differs := self._difference(names):
            raise ValueError(
                f"the data set {differs}: {synthetic.path} was made of another one; give that, or make it again"
            )

    def _difference(self, files: Any) -> str:
        """How the data set is not the one that the set was made of.  files: the names of the sources' files."""
        names, have, labels, sources = self._names, self._source.classes, known_labels(self._source), self._sources
        if have is not None and list(have) != names:
            return f"has classes {have[:3]}..., those of the set begin with {names[:3]}"
        if sources.max() >= len(self._source):
            return f"has {len(self._source)} samples, the set was made of at least {sources.max() + 1}"
        if labels is not None and labels.ndim == 1 and (labels[sources] != self._labels).any():
            return f"has another label than the set says for sample {sources[labels[sources] != self._labels][0]}"
        for row in np.unique(np.linspace(0, len(sources) - 1, _LOOKED_AT).astype(int)).tolist():
            path, name = self._source.path(int(sources[row])), files[row].as_py()
            if path is not None and name is not None and not f"/{Path(path).as_posix()}".endswith(f"/{name}"):
                return f"has {path} as sample {sources[row]}, where the set has {name}"
        return ""

    @property
    def classes(self) -> list[str]:
        """See `Source`."""
        return self._names

    def __len__(self) -> int:
        return len(self._source) + len(self._sources)

    def path(self, index: int) -> str | None:
        """See `Source`."""
        made = index - len(self._source)
        return self._source.path(index) if made < 0 else str(self._folder / self._paths[made].as_py())

    def read(self, index: int) -> Item:
        """See `Source`."""
        made = index - len(self._source)
        if made < 0:
            item = self._source.read(index)
            return item._replace(label=self._label(item.label)) if self._soft else item
        path = self._folder / self._paths[made].as_py()
        label: Label = int(self._labels[made])
        if self._soft:
            pair = np.array([self._labels[made], self._others[made]])
            own, shared = one_hot(pair, len(self._names))
            weight = np.float32(self._weights[made])
            label = self._label(weight * own + (1 - weight) * shared)
        return Item(path.read_bytes(), label, str(path))

    def read_many(self, _indices: Sequence[int]) -> None:
        """See `Source`."""

    def read_block(self, _indices: NDArray[np.int64]) -> None:
        """See `Source`."""

    def _label(self, label: Label) -> NDArray[np.float32]:
        """A label as smoothed shares of the classes."""
        classes = len(self._names)
        shares = label if isinstance(label, np.ndarray) else one_hot(np.array([label]), classes)[0]
        return np.asarray((1 - self._smoothing) * shares + self._smoothing / classes, np.float32)

    def replacement(self, law: str, prob: float) -> Replacement:
        """Who takes whose place.  Raises ValueError for "same_class" where labels are not known beforehand."""
        n, count = len(self._source), len(self._sources)
        if law == "any":
            return Replacement(prob, np.arange(n, n + count), np.zeros(n, np.int64), np.array([0, count]))
        if law == "same_source":
            groups, of = self._sources, np.arange(n)
        else:
            labels = known_labels(self._source)
            if labels is None or labels.ndim != 1:
                raise ValueError(
                    "replace is 'same_class', but the data set tells class numbers only with its pictures: use "
                    "'same_source', or give a folder or arrays"
                )
            groups, of = self._labels, labels
        edges = np.searchsorted(np.sort(groups), np.arange(int(max(groups.max(), of.max())) + 2))
        return Replacement(prob, n + np.argsort(groups, kind="stable"), of, edges)


@dataclass(frozen=True)
class Replacement:
    """prob: chance of a sample to give way.  made: numbers of pictures, group by group, which begin at `edges`.

    of: (n,) the group of each sample.
    """

    prob: float
    made: Ids
    of: Ids
    edges: Ids

    def take(self, key: Key, ids: Ids, samples: Ids) -> Ids:
        """(N,) int64 what is read for samples (N,), whose draws have the names ids (N,)."""
        u, group = key.uniform(ids, Stream.SYNTHETIC, 2), self.of[samples]
        first, last = self.edges[group], self.edges[group + 1]
        gives_way = (u[:, 0] < self.prob) & (first < last)
        chosen = np.minimum(first + integers(u[:, 1], 0, np.maximum(last - first, 1)), len(self.made) - 1)
        return np.where(gives_way, self.made[chosen], samples)
