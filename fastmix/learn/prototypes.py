"""Class prototypes by filling in the blanks, and the controls without which they say nothing.  Needs torch.

The prototype of a class is the mean of its pictures with a part filled in by the model (`fastmix.learn.filling`), over
many pictures and masks; Deelaka et al. (arXiv 2411.10273, 2024), equation 5.  That the model recognises its own fills
is no evidence that they look like the class, since any gradient step raises its score.  So `make_prototypes` compares
them with fills that know less, also by the eyes of an independently trained classifier, and keeps what was filled in
apart from what the masks left to be seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..rng import Ids, Key, integers
from .filling import (
    Filled,
    Filling,
    Normalised,
    check_pictures,
    evaluating,
    fill_in,
    logits_of,
    noise_fill,
    shuffled_fill,
)

__all__ = [
    "CONTROLS",
    "Control",
    "Filling",
    "Normalised",
    "Prototypes",
    "Report",
    "fill_in",
    "make_prototypes",
    "paired_interval",
    "random_weights",
    "resemblance",
]

CONTROLS = ("clean", "zero", "noise", "shuffled", "wrong class", "random weights", "right class")
"""The kinds of pictures that are classified, see `Control`."""

_WRONG = 1014  # a stream of its own, after those of filling.py


@dataclass(frozen=True)
class Prototypes:
    """Means over the fills of each of K classes, (K, C, H, W) float32, and numbers of fills, (K,) int64.

    every: of the filled pictures, `count` of a class.  filtered: as published, of those alone that the model itself
    recognises, `recognised` of a class.  fill: of what was filled in (filled minus hidden value, 0 for nothing), pixel
    by pixel over the fills in which it was hidden.  Where there are none, pixels are 0.
    """

    every: Tensor
    filtered: Tensor
    fill: Tensor
    count: Tensor
    recognised: Tensor


@dataclass(frozen=True)
class Control:
    """How one kind of picture is classified: shares in [0, 1] of all pictures with all their masks.

    name: "clean": the picture.  "zero": masked.  "noise": masked, and as many pixels as the fill sets are set to random
    levels at random places of the hidden part.  "shuffled": filled, and the hidden pixels moved about.  "wrong class":
    filled towards another class, drawn for each mask.  "random weights": filled by an untrained copy of the model.
    "right class": filled by the model towards the picture's class.
    by: "model", or "judge", the independent classifier.
    right: named as the picture's class.  wrong: as the class that "wrong class" fills towards.
    gain: `right` of "right class" minus this one's; low, high: its 95 % interval by `paired_interval`, where a picture
    with all its masks is one observation (0 and 0 for "right class" itself).
    """

    name: str
    by: str
    right: float
    wrong: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """What `make_prototypes` found; tensors have a row for each of `classes`.

    prototypes: of the model's fills.  untrained: of the fills of its copy with random weights, with the same masks (and
    `recognised` by the model).  means: (K, C, H, W) float32, of the pictures.  controls: CONTROLS by the model, then by
    the judge if there is one.  pictures, masks: how many, and how many masks for each.  empty: share of the model's
    fills towards the right class that changed nothing.
    """

    classes: tuple[int, ...]
    prototypes: Prototypes
    untrained: Prototypes
    means: Tensor
    controls: tuple[Control, ...]
    pictures: int
    masks: int
    empty: float

    @property
    def supported(self) -> bool | None:
        """Whether the judge recognises the fills better than noise and shuffled fills, beyond chance; None: no judge.

        If not, nothing here shows that the fills look like their class.
        """
        lows = [each.low for each in self.controls if each.by == "judge" and each.name in ("noise", "shuffled")]
        return min(lows) > 0 if lows else None


@torch.no_grad()
def make_prototypes(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Ids]],
    classes: Sequence[int],
    how: Filling | None = None,
    *,
    masks: int = 4,
    seed: int = 0,
    judge: nn.Module | None = None,
) -> Report:
    """Prototypes of classes, and how the fills compare with those that know less.

    Args:
        model: Gives logits (N, K) of pictures (N, C, H, W) in [0, 1].
        batches: (images, labels, ids) each: (N, C, H, W) floating in [0, 1] on the models' device, all of one size;
            (N,) integers; (N,) integers that name the pictures.
        classes: Two labels or more, among them all that occur.
        how: By default `Filling()`.
        masks: For each picture, >= 1.  Published prototypes are of more than 10,000 recognised fills a class.
        seed: 0 <= seed < 2^64, of all draws.
        judge: Another classifier of the same classes, trained without this one.

    Returns:
        The prototypes and the controls; sums are kept in float64.

    Raises:
        ValueError: A setting, a batch or a model's output is not as above, or there is no batch.
    """
    study = _Study(model, judge, tuple(classes), how or Filling(), masks, seed)
    with evaluating(*study.judges, study.untrained):
        for images, labels, ids in batches:
            study.add(images, labels, ids)
    return study.report()


def random_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """An untrained copy of a model, on its device.

    Weights with several axes are normal with variance 2 / fan-in (He et al., ICCV 2015), other weights 1, biases 0, and
    statistics of normalisation as at the start.
    """
    untrained, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in untrained.named_parameters():
            if values.ndim < 2:
                values.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                deviation = math.sqrt(2 / values[0].numel())
                values.copy_(torch.empty(values.shape).normal_(0, deviation, generator=generator))
    for module in untrained.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.reset_running_stats()
    return untrained


def paired_interval(total: float, squares: float, n: int) -> tuple[float, float]:
    """95 % interval for the mean of n differences in [-1, 1], from their sum and the sum of their squares.

    For differences of -1, 0 and 1 it is that of Bonett & Price, "Adjusted Wald confidence interval for a difference of
    binomial proportions based on paired data" (2012): a pair of each disagreement is added, so it never has length 0.
    """
    mean = total / (n + 2)
    reach = 1.959964 * math.sqrt(((squares + 2) / (n + 2) - mean**2) / (n + 2))
    return max(-1.0, mean - reach), min(1.0, mean + reach)


def resemblance(pictures: Tensor, means: Tensor) -> Tensor:
    """Pearson correlations (K, K) of K pictures with K class means, both (K, C, H, W); 0 where one is constant.

    A picture whose largest value is on the diagonal resembles its own class the most.
    """
    rows, columns = (
        F.normalize(each - each.mean(1, keepdim=True), dim=1)
        for each in (pictures.double().flatten(1), means.double().flatten(1))
    )
    return rows @ columns.T


class _Sums:
    """Running sums of filled pictures, float64, a row a class."""

    def __init__(self, like: Tensor, classes: int):
        self.every = like.new_zeros((classes, *like.shape[1:]), dtype=torch.float64)
        self.filtered, self.fill, self.hidden = self.every.clone(), self.every.clone(), self.every[:, :1].clone()
        self.count, self.recognised = (like.new_zeros(classes, dtype=torch.int64) for _ in range(2))

    def add(self, rows: Tensor, filled: Filled, recognised: Tensor) -> None:
        images = filled.images.double()
        self.every.index_add_(0, rows, images)
        self.filtered.index_add_(0, rows, images * recognised[:, None, None, None])
        self.fill.index_add_(0, rows, images - filled.masked)
        self.hidden.index_add_(0, rows, filled.hidden.double())
        self.count.index_add_(0, rows, torch.ones_like(rows))
        self.recognised.index_add_(0, rows, recognised.long())

    def means(self) -> Prototypes:
        count, recognised = (each.clamp(min=1)[:, None, None, None] for each in (self.count, self.recognised))
        every, filtered, fill = self.every / count, self.filtered / recognised, self.fill / self.hidden.clamp(min=1)
        return Prototypes(every.float(), filtered.float(), fill.float(), self.count, self.recognised)


class _Study:
    """What `make_prototypes` counts, batch by batch."""

    def __init__(
        self, model: nn.Module, judge: nn.Module | None, classes: tuple[int, ...], how: Filling, masks: int, seed: int
    ):
        if masks < 1:
            raise ValueError(f"masks is {masks}, expected at least 1 a picture")
        if judge is not None and _equal(judge, model):
            raise ValueError("judge has the model's weights, expected a classifier that was trained without it")
        if len(set(classes)) != len(classes) or len(classes) < 2 or min(classes) < 0:
            raise ValueError(f"classes are {classes}, expected at least 2 different labels >= 0")
        self.judges, self.untrained = [model, *([] if judge is None else [judge])], random_weights(model, seed)
        self._classes, self._how, self._masks, self._seed = classes, how, masks, seed
        self._sums: list[_Sums] = []  # of the model's fills and of its untrained copy's, made for the first batch
        self._clean = torch.zeros(())  # sum of the pictures
        # right, wrong, gain and its square of each kind, by each judge
        self._totals = torch.zeros((4, len(CONTROLS), len(self.judges)), dtype=torch.float64)
        self._pictures = self._empty = 0

    def add(self, images: Tensor, labels: Tensor, ids: Ids) -> None:
        labels = check_pictures(images, labels)
        rows = self._rows(labels)
        if not self._sums:
            self._sums = [_Sums(images, len(self._classes)) for _ in range(2)]
            self._clean = torch.zeros_like(self._sums[0].every)
        self._clean.index_add_(0, rows, images.double())
        clean = self._named(images)
        right, wrong = torch.zeros((2, len(CONTROLS), *clean.shape), dtype=torch.float64)
        for number in range(self._masks):
            key = Key(self._seed, number)
            other = self._others(rows, key, ids)
            own, untrained, kinds = self._fills(images, labels, other, key, ids)
            named = torch.stack([clean, *map(self._named, kinds)])
            right += named == labels.cpu()
            wrong += named == other.cpu()
            for sums, filled, by in zip(self._sums, (own, untrained), (named[-1, 0], named[-2, 0]), strict=True):
                sums.add(rows, filled, by.to(labels.device) == labels)
            self._empty += int((own.images == own.masked).flatten(1).all(1).sum())
        right, wrong = right / self._masks, wrong / self._masks
        gain = right[-1] - right
        self._totals += torch.stack([right, wrong, gain, gain**2]).sum(-1)
        self._pictures += len(images)

    def _fills(
        self, images: Tensor, labels: Tensor, other: Tensor, key: Key, ids: Ids
    ) -> tuple[Filled, Filled, list[Tensor]]:
        """Fills by the model and by its untrained copy, and all kinds of CONTROLS but the clean one, in their order."""
        model, how = self.judges[0], self._how
        own = fill_in(model, images, labels, how, key, ids)
        against = fill_in(model, images, other, how, key, ids)
        untrained = fill_in(self.untrained, images, labels, how, key, ids)
        noise, shuffled = noise_fill(own, key, ids), shuffled_fill(own, key, ids)
        return own, untrained, [own.masked, noise, shuffled, against.images, untrained.images, own.images]

    def report(self) -> Report:
        if not self._sums:
            raise ValueError("batches is empty, expected pictures of each class")
        prototypes, untrained = (sums.means() for sums in self._sums)
        n = self._pictures
        means = (self._clean * self._masks / prototypes.count.clamp(min=1)[:, None, None, None]).float()
        controls = [self._control(kind, by) for by in range(len(self.judges)) for kind in range(len(CONTROLS))]
        empty = self._empty / (n * self._masks)
        return Report(self._classes, prototypes, untrained, means, tuple(controls), n, self._masks, empty)

    def _control(self, kind: int, judge: int) -> Control:
        n = self._pictures
        right, wrong, gain, squares = self._totals[:, kind, judge].tolist()
        low, high = paired_interval(gain, squares, n) if CONTROLS[kind] != "right class" else (0.0, 0.0)
        return Control(CONTROLS[kind], ("model", "judge")[judge], right / n, wrong / n, gain / n, low, high)

    def _named(self, images: Tensor) -> Tensor:
        """(judges, N) class that each judge names, on the host."""
        with torch.no_grad():
            return torch.stack([logits_of(judge, images).argmax(1).cpu() for judge in self.judges])

    def _rows(self, labels: Tensor) -> Tensor:
        """The places of labels in `classes`."""
        found = labels[:, None] == labels.new_tensor(self._classes)
        if not found.any(1).all():
            missing = sorted(set(labels.tolist()) - set(self._classes))
            raise ValueError(f"labels {missing} are not among classes {self._classes}, expected all of them there")
        return found.byte().argmax(1)

    def _others(self, rows: Tensor, key: Key, ids: Ids) -> Tensor:
        """For each picture one of the other classes."""
        among = len(self._classes)
        steps = torch.from_numpy(integers(key.uniform(ids, _WRONG, 1)[:, 0], 1, among)).to(rows.device)
        return rows.new_tensor(self._classes)[(rows + steps) % among]


def _equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models have the same weights, of which there are some."""
    pairs = list(zip_longest(a.parameters(), b.parameters()))
    return all(x is not None and y is not None and torch.equal(x.cpu(), y.cpu()) for x, y in pairs) and bool(pairs)
