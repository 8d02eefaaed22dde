"""An expanded set beside the data set that it was made of: some samples give way to pictures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .datasets import Item, Label, Source, _Subset, known_labels
from .rng import Ids, Key, Stream, integers
from .types import FastmixError, one_hot

__all__ = ["Expanded", "Replacement", "Synthetic"]

_LAWS = ("same_source", "same_class", "any")
_COLUMNS = ("source", "source_label", "weight", "target_label", "path", "source_path")
_UNCLEAR = np.iinfo(np.int64).min  # the class number of a label with several largest shares
_LOOKED_AT = 4096  # records whose sources' names are compared, at most


@dataclass(frozen=True)
class Synthetic:
    """An expanded set, for `DataLoader(synthetic=Synthetic("out/", ...), replace_prob=0.1)`.

    path: a folder that `fastmix refine` has finished, or a manifest, such as the kept.parquet of `fastmix agreement`.
    replace: which picture takes the place of a sample: one made of the same sample ("same_source", as in DA-Fusion;
    keeps the balance of the classes and loses no sample), of its class ("same_class"), or "any" of the set (as in
    Diff-Mix).  A sample of which nothing was made stays.  smoothing: of all labels, (1 - s) y + s / C, 0 <= s < 1;
    SGD-Mix and Diff-Mix train with 0.1.

    Raises TypeError for what is no path, and ValueError for settings outside these ranges.
    """

    path: str | Path
    replace: str = "same_source"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not isinstance(self.path, str | Path):
            raise TypeError(
                f"path is a {type(self.path).__name__}, expected a folder that `fastmix refine` has finished, or a "
                "manifest"
            )
        if self.replace not in _LAWS:
            raise ValueError(f"replace is {self.replace!r}, expected one of {_LAWS}")
        if not (isinstance(self.smoothing, Real) and 0 <= self.smoothing < 1):
            raise ValueError(f"smoothing is {self.smoothing!r}, expected 0 <= smoothing < 1: the papers have 0.1")


class Expanded:
    """A `Source` of a data set's samples, 0..n - 1, and behind them the pictures that were made of them.

    source: the data set.  synthetic: the set that was made of it.  num_classes: C, or None for as many as it names.
    Labels are (C,) float32 if they are smoothed or shared, or the data set's are known to be, else class numbers.

    Raises ValueError if the set was made of another data set or holds nothing, and as `read_manifest` does; and for a
    C that does not fit.  `read` raises FastmixError, in stage "label", for a sample whose label the set contradicts.
    """

    def __init__(self, source: Source, synthetic: Synthetic, num_classes: Any = None):
        from .manifest import read_made  # only those who have such a set need pyarrow

        made, every, about, self._folder = read_made(synthetic.path, _COLUMNS)
        if not len(made):
            raise ValueError(f"{synthetic.path} holds no picture: nothing was made, or kept; see its statuses")
        self._source, self._about = source, synthetic
        self._names: list[str] = about["classes"]
        self._paths = made["path"]
        self._sources, self._labels, self._weights = (made[name].to_numpy() for name in _COLUMNS[:3])
        others = made["target_label"].to_numpy()
        self._others = np.where(np.isnan(others), self._labels, others).astype(np.int64)
        known = _labels_of(source)
        self._numbers = None if known is None else _class_numbers(known)
        self._told = np.full(len(source), -1)  # class numbers as the set has them
        if differs := self._difference(made["source_path"], *(every[name].to_numpy() for name in _COLUMNS[:2])):
            raise ValueError(
                f"the data set {differs}: {synthetic.path} was made of another one; give that, or make it again"
            )
        soft = known is not None and known.ndim == 2
        self._soft = bool(soft or synthetic.smoothing > 0 or (self._weights < 1).any())
        self._width = self._checked_width(num_classes, known.shape[1] if known is not None and soft else None)

    def _difference(self, files: Any, every: Ids, labels: Any) -> str:
        """How the data set is not the one that the set was made of.

        files: the names of the sources' files.  every, labels: sources of all records, and their class numbers.
        """
        names, have, sources, told = self._names, self._source.classes, self._sources, self._told
        if have is not None and list(have) != names:
            return f"has classes {have[:3]}..., those of the set begin with {names[:3]}"
        if every.max() >= len(self._source):
            return f"has {len(self._source)} samples, the set was made of at least {every.max() + 1}"
        told[every] = labels
        if self._numbers is not None:
            other = (told >= 0) & (self._numbers != _UNCLEAR) & (self._numbers != told)
            for sample in np.flatnonzero(other)[:1].tolist():
                return f"has label {self._numbers[sample]} for sample {sample}, where the set has {told[sample]}"
        for row in np.unique(np.linspace(0, len(sources) - 1, _LOOKED_AT).astype(int)).tolist():
            path, name = self._source.path(int(sources[row])), files[row].as_py()
            if path is not None and name is not None and not f"/{Path(path).as_posix()}".endswith(f"/{name}"):
                return f"has {path} as sample {sources[row]}, where the set has {name}"
        return ""

    def _checked_width(self, num_classes: Any, width: int | None) -> int:
        """C.  width: of the data set's labels, if these are vectors.  Raises ValueError for one that does not fit."""
        least, path = len(self._names), self._about.path
        whole = isinstance(num_classes, int | np.integer)
        if num_classes is not None and not (whole and num_classes >= least):
            raise ValueError(
                f"num_classes is {num_classes!r}, expected an integer >= {least}, or None: {path} has {least} classes"
            )
        if width is None:
            return least if num_classes is None else int(num_classes)
        if width < least:
            raise ValueError(f"the data set has labels of {width} numbers each, the set has {least} classes: {path}")
        if num_classes not in (None, width):
            raise ValueError(
                f"the data set has labels of {width} numbers each, and num_classes is {num_classes}: pass "
                f"num_classes={width}, or None"
            )
        return width

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
            if problem := self._problem(index, item.label):
                raise FastmixError(problem, sample_id=index, path=self.path(index), stage="label")
            return item._replace(label=self._label(item.label)) if self._soft else item
        path = self._folder / self._paths[made].as_py()
        label: Label = int(self._labels[made])
        if self._soft:
            pair = np.array([self._labels[made], self._others[made]])
            own, shared = one_hot(pair, self._width)
            weight = np.float32(self._weights[made])
            label = self._label(weight * own + (1 - weight) * shared)
        return Item(path.read_bytes(), label, str(path))

    def is_made(self, index: int) -> bool:
        """Whether this is no sample of the data set, but a picture of the set."""
        return index >= len(self._source)

    def read_many(self, _indices: Sequence[int]) -> None:
        """See `Source`."""

    def read_block(self, _indices: NDArray[np.int64]) -> None:
        """See `Source`."""

    def _label(self, label: Label) -> NDArray[np.float32]:
        """A label as smoothed shares of the classes."""
        shares = label if isinstance(label, np.ndarray) else one_hot(np.array([label]), self._width)[0]
        return np.asarray((1 - self._about.smoothing) * shares + self._about.smoothing / self._width, np.float32)

    def _problem(self, index: int, label: Label) -> str:
        """Why the label of a sample cannot stand beside those of the set, if it cannot."""
        number, told, path = int(_class_numbers(np.array([label]))[0]), int(self._told[index]), self._about.path
        if told >= 0 and number not in (_UNCLEAR, told):
            return (
                f"the label is {number}, but {path} has {told} for it: labels of two numberings do not mix; take the "
                "target_transform out, or make the set anew of this data set with `fastmix refine`"
            )
        if not isinstance(label, np.ndarray):
            fits = not self._soft or 0 <= label < self._width
            return "" if fits else f"the label is {label}, expected 0..{self._width - 1}: pass a larger num_classes="
        if not self._soft:
            return (
                f"the label is a vector of {len(label)} numbers, those of {path} are class numbers: give class "
                "numbers, or arrays, or smooth all labels, as Synthetic(..., smoothing=0.1) does"
            )
        if len(label) != self._width:
            return (
                f"the label is a vector of {len(label)} numbers, those of {path} are of {self._width}: pass "
                f"num_classes={len(label)}"
            )
        return ""

    def replacement(self, law: str, prob: float) -> Replacement:
        """Who takes whose place.  Raises ValueError for "same_class" where labels are not known beforehand."""
        n, count = len(self._source), len(self._sources)
        if law == "any":
            return Replacement(prob, np.arange(n, n + count), np.zeros(n, np.int64), np.array([0, count]))
        if law == "same_source":
            groups, of = self._sources, np.arange(n)
        else:
            if self._numbers is None or (self._numbers == _UNCLEAR).any():
                why = "tells them only with its pictures" if self._numbers is None else "has several for one picture"
                raise ValueError(
                    f"replace is 'same_class', which goes by class numbers, but the data set {why}: use 'same_source', "
                    "or give a folder, or arrays with class numbers or one-hot labels"
                )
            groups, of = self._labels, self._numbers
        edges = np.searchsorted(np.sort(groups), np.arange(int(max(groups.max(), of.max())) + 2))
        return Replacement(prob, n + np.argsort(groups, kind="stable"), of, edges)


def _labels_of(source: Source) -> NDArray[Any] | None:
    """As `known_labels`, also of a Subset."""
    if not isinstance(source, _Subset):
        return known_labels(source)
    labels = _labels_of(source.source)
    return None if labels is None else labels[source.indices]


def _class_numbers(labels: NDArray[Any]) -> NDArray[Any]:
    """(N,) class numbers; of (N, C) labels the place of the largest share, if there is one."""
    if labels.ndim == 1:
        return labels.astype(np.int64)
    one = (labels == labels.max(1, keepdims=True)).sum(1) == 1
    return np.where(one, labels.argmax(1), _UNCLEAR)


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
