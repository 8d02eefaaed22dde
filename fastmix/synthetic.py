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
        from .manifest import read_manifest  # only those who have such a set need pyarrow

        manifest = read_manifest(synthetic.path)
        self._source, self._rows, self._folder = source, manifest.made, manifest.folder
        self._smoothing, self._names = synthetic.smoothing, manifest.classes
        if not self._rows:
            raise ValueError(f"{synthetic.path} holds no picture: nothing was made, or kept; see its statuses")
        self._soft = self._smoothing > 0 or any(row["weight"] < 1 for row in self._rows)
        self._check(synthetic.path)

    def _check(self, path: str | Path) -> None:
        names, have, labels = self._names, self._source.classes, known_labels(self._source)
        sources = np.array([row["source"] for row in self._rows])
        own = np.array([row["source_label"] for row in self._rows])
        differs = ""
        if have is not None and list(have) != names:
            differs = f"has classes {have[:3]}..., those of the set begin with {names[:3]}"
        elif sources.max() >= len(self._source):
            differs = f"has {len(self._source)} samples, the set was made of at least {sources.max() + 1}"
        elif labels is not None and labels.ndim == 1 and (labels[sources] != own).any():
            differs = f"has another label than the set says for sample {sources[(labels[sources] != own)][0]}"
        else:
            moved = (row for row in self._rows if not self._is_of(row))
            differs = next((f"has {self._source.path(r['source'])} as sample {r['source']}" for r in moved), "")
        if differs:
            raise ValueError(f"the data set {differs}: {path} was made of another one; give that, or make it again")

    def _is_of(self, row: dict[str, Any]) -> bool:
        """Whether the sample is the file that the row names, as far as both have one."""
        path, name = self._source.path(row["source"]), row["source_path"]
        return path is None or name is None or f"/{Path(path).as_posix()}".endswith(f"/{name}")

    @property
    def classes(self) -> list[str]:
        """See `Source`."""
        return self._names

    def __len__(self) -> int:
        return len(self._source) + len(self._rows)

    def path(self, index: int) -> str | None:
        """See `Source`."""
        made = index - len(self._source)
        return self._source.path(index) if made < 0 else str(self._folder / self._rows[made]["path"])

    def read(self, index: int) -> Item:
        """See `Source`."""
        made = index - len(self._source)
        if made < 0:
            item = self._source.read(index)
            return item._replace(label=self._label(item.label)) if self._soft else item
        row = self._rows[made]
        path = self._folder / row["path"]
        label: Label = row["source_label"]
        if self._soft:
            other = row["source_label"] if row["target_label"] is None else row["target_label"]
            own, shared = (one_hot(np.array([each]), len(self._names))[0] for each in (label, other))
            label = self._label(np.float32(row["weight"]) * own + np.float32(1 - row["weight"]) * shared)
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
        n, count = len(self._source), len(self._rows)
        if law == "any":
            return Replacement(prob, np.arange(n, n + count), np.zeros(n, np.int64), np.array([0, count]))
        if law == "same_source":
            groups, of = np.array([row["source"] for row in self._rows]), np.arange(n)
        else:
            labels = known_labels(self._source)
            if labels is None or labels.ndim != 1:
                raise ValueError(
                    "replace is 'same_class', but the data set tells class numbers only with its pictures: use "
                    "'same_source', or give a folder or arrays"
                )
            groups, of = np.array([row["source_label"] for row in self._rows]), labels
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
