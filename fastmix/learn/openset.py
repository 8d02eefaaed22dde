"""Open-set recognition: scores that tell known classes from unknown ones, and the figures that judge scores.

A detector gives a `Detection`: `score` is high for known classes, and `label` is the known class it would name.
Detectors take features (N, D) of training samples with their classes; nothing is fitted or kept.  Rows are worked on in
chunks, so memory does not grow with (test samples x training samples).

    known, unknown = (openset.nearest_neighbours(train, labels, x, k=3) for x in (test_known, test_unknown))
    print(openset.evaluate(known, test_labels, unknown))
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .contrastive import dot, unit_rows, wide_rows


@dataclass(frozen=True)
class Detection:
    """score: (Q,) floating, high where a sample seems known.  label: (Q,) the known class it seems to be."""

    score: Tensor
    label: Tensor


@dataclass(frozen=True)
class OpenSetFigures:
    """Shares in [0, 1] over `n_known` and `n_unknown` test samples; `accuracy` is that of the known ones' labels.

    `aupr_in` has the known samples as positives, `aupr_out` the unknown ones; both depend on n_known : n_unknown.
    """

    accuracy: float
    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    oscr: float
    n_known: int
    n_unknown: int


@torch.no_grad()
def nearest_neighbours(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    k: int = 3,
    normaliser: Literal["shifted", "sum"] = "shifted",
    chunk: int = 1024,
) -> Detection:
    """The similarity of the k nearest training samples of each class, as that class's share of all classes.

    Algorithm 1 of GradMix (Xu et al., arXiv 2505.12803).  Let m_c be the mean of the k largest cosine similarities to
    class c.  "shifted" scores max_c (1 + m_c) / sum_c (1 + m_c), in [1/C, 1]; 1/C for a sample opposite to every class.
    "sum" is the published score, with s_c, the sum of the k largest, in the place of 1 + m_c.  The s_c have signs:
    where they add up to less than 0, the least similar class wins with a high score, so a warning counts these samples.
    Classes with fewer than k samples take all of theirs, with a warning; in "sum" that makes their s_c smaller.

    Args:
        train: (N, D) floating features of known classes; rows need not have length 1.
        labels: (N,) integers, the classes of `train`, at least two different ones.
        test: (Q, D) floating.
        k: >= 1.
        normaliser: "shifted" or "sum".
        chunk: Rows of `test` compared at once, >= 1.

    Raises:
        ValueError: Shapes, types or settings are others, features are not finite, or a "sum" is exactly 0.
    """
    if normaliser not in ("shifted", "sum"):
        raise ValueError(f'normaliser is {normaliser!r}, expected "shifted" or "sum"')
    if k < 1:
        raise ValueError(f"k is {k}, expected at least 1")
    classes, groups = _by_class(unit_rows(train, "train"), labels)
    if len(classes) < 2:
        raise ValueError(f"labels name {len(classes)} class, expected at least 2: the score is a share among classes")
    taken = torch.tensor([min(k, len(group)) for group in groups], device=train.device)
    if (short := int((taken < k).sum())) > 0:
        warnings.warn(f"{short} classes have fewer than k={k} samples, and count with all of theirs", stacklevel=3)
    parts = _chunks(unit_rows(test, "test"), groups[0], chunk)
    means = torch.cat([torch.stack([_top(dot(part, group), k) for group in groups], 1) for part in parts])
    share = _shifted(means) if normaliser == "shifted" else _signed(means * taken)
    score, best = share.max(1)
    return Detection(score, classes[best])


@torch.no_grad()
def nearest_mean(train: Tensor, labels: Tensor, test: Tensor, p: float = 2.0) -> Detection:
    """Minus the distance to the nearest class mean.

    Args:
        train: (N, D) floating features of known classes, taken as they are.
        labels: (N,) integers, the classes of `train`.
        test: (Q, D) floating.
        p: >= 1, of the norm: 2 is the Euclidean distance; 1 is what the released code of GradMix takes.

    Raises:
        ValueError: Shapes, types or settings are others, or features are not finite.
    """
    if not p >= 1:
        raise ValueError(f"p is {p}, expected a number >= 1")
    classes, groups = _by_class(_exact(train, "train"), labels)
    means = torch.stack([group.mean(0) for group in groups])
    (rows,) = _chunks(_exact(test, "test"), means, chunk=len(test))
    return _nearest(torch.cdist(rows, means, p, "donot_use_mm_for_euclid_dist"), classes)


@torch.no_grad()
def mahalanobis(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    covariance: Literal["shared", "per_class"] = "shared",
    shrinkage: float = 1e-3,
    chunk: int = 4096,
) -> Detection:
    """Minus the Mahalanobis distance to the nearest class mean (Lee et al., NeurIPS 2018, section 2).

    The covariance S (of all samples around their class means, or of each class) is divided by the number of samples
    and shrunk to (1 - a) S + a tr(S) / D I, a = shrinkage.  A class with no more samples than dimensions has a singular
    S, which needs a > 0.  Computed in float64.

    Args:
        train: (N, D) floating features of known classes, taken as they are.
        labels: (N,) integers, the classes of `train`.
        test: (Q, D) floating.
        covariance: "shared" or "per_class".
        shrinkage: In [0, 1].
        chunk: Rows of `test` worked on at once, >= 1.

    Raises:
        ValueError: Shapes, types or settings are others, features are not finite, or a covariance is singular.
    """
    if covariance not in ("shared", "per_class"):
        raise ValueError(f'covariance is {covariance!r}, expected "shared" or "per_class"')
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage is {shrinkage}, expected a number in [0, 1]")
    classes, groups = _by_class(_exact(train, "train"), labels)
    means = [group.mean(0) for group in groups]
    centred = [group - mean for group, mean in zip(groups, means, strict=True)]
    if covariance == "shared":
        factors = [_factor(torch.cat(centred), shrinkage, "all classes")] * len(groups)
    else:
        factors = [_factor(rows, shrinkage, f"class {c}") for rows, c in zip(centred, classes.tolist(), strict=True)]
    spaces = list(zip(means, factors, strict=True))
    parts = _chunks(_exact(test, "test"), means[0], chunk)
    distances = torch.cat([torch.stack([_distance(part, *space) for space in spaces], 1) for part in parts])
    return _nearest(distances, classes)


@torch.no_grad()
def max_softmax(logits: Tensor) -> Detection:
    """The largest class probability, MSP (Hendrycks & Gimpel, ICLR 2017); logits (Q, C) floating, label 0..C-1.

    Raises ValueError for logits of another shape or type, or that are not finite.
    """
    return Detection(*_logits(logits).softmax(1).max(1))


@torch.no_grad()
def max_logit(logits: Tensor) -> Detection:
    """The largest logit, MLS (Vaze et al., ICLR 2022); logits (Q, C) floating, label 0..C-1.

    Raises ValueError for logits of another shape or type, or that are not finite.
    """
    return Detection(*_logits(logits).max(1))


def evaluate(known: Detection, labels: Any, unknown: Detection) -> OpenSetFigures:
    """All figures of a detector at once.

    Args:
        known: Of test samples of known classes.
        labels: (n_known,) integers, their true classes.
        unknown: Of test samples of unknown classes.

    Raises:
        ValueError: The number of labels does not fit, there are no samples, or a score is NaN.
    """
    truth = torch.as_tensor(labels, device=known.label.device)
    if truth.shape != known.label.shape:
        raise ValueError(f"labels have shape {tuple(truth.shape)}, expected {tuple(known.label.shape)}")
    correct = known.label == truth
    return OpenSetFigures(
        accuracy=correct.double().mean().item(),
        auroc=auroc(known.score, unknown.score),
        aupr_in=aupr(known.score, unknown.score),
        aupr_out=aupr(known.score, unknown.score, positive="unknown"),
        fpr95=fpr_at_tpr(known.score, unknown.score),
        oscr=oscr(known.score, correct, unknown.score),
        n_known=len(known.score),
        n_unknown=len(unknown.score),
    )


def auroc(known: Any, unknown: Any) -> float:
    """The share of pairs (known, unknown) in which the known score is the higher one, ties counting half.

    known: (n1,) and unknown: (n2,) scores, high = known.  Raises ValueError for none, or for NaN.
    """
    high, low = _scores(known, "known"), _scores(unknown, "unknown")
    return int(_twice_below(high, low).sum()) / (2 * len(high) * len(low))


def oscr(known: Any, correct: Any, unknown: Any) -> float:
    """The area under the correct classification rate of the known over the false positive rate of the unknown.

    Equal to the share of pairs in which the known sample is rightly classified and has the higher score, ties counting
    half: `auroc` if all are right, and never above the accuracy (Dhamija et al., NeurIPS 2018, without thresholds).

    known: (n1,), unknown: (n2,) scores, high = known.  correct: (n1,) booleans, or 0 and 1.  Raises ValueError for
    scores that are none or NaN, and for other shapes or values of `correct`.
    """
    high, low = _scores(known, "known"), _scores(unknown, "unknown")
    right = torch.as_tensor(correct).cpu()
    if right.shape != high.shape or not ((right == 0) | (right == 1)).all():
        raise ValueError(f"correct has shape {tuple(right.shape)}, expected {len(high)} booleans, one a known score")
    return int(_twice_below(high, low)[right.bool()].sum()) / (2 * len(high) * len(low))


def aupr(known: Any, unknown: Any, positive: Literal["known", "unknown"] = "known") -> float:
    """Average precision: the mean over the positives of the precision at their score, without interpolation.

    known: (n1,) and unknown: (n2,) scores, high = known; the signs are turned where the unknown are the positives.
    Raises ValueError for none, for NaN, and for another `positive`.
    """
    high, low = _scores(known, "known"), _scores(unknown, "unknown")
    if positive not in ("known", "unknown"):
        raise ValueError(f'positive is {positive!r}, expected "known" or "unknown"')
    hits, misses = (high, low) if positive == "known" else (-low, -high)
    found, wrong = (len(x) - torch.searchsorted(x.sort().values, hits) for x in (hits, misses))
    return (found / (found + wrong).double()).mean().item()


def fpr_at_tpr(known: Any, unknown: Any, tpr: float = 0.95) -> float:
    """The share of unknown scores >= t, at the largest t that a share of at least `tpr` of the known scores reaches.

    known: (n1,) and unknown: (n2,) scores, high = known.  tpr: in (0, 1].  Raises ValueError for none, NaN, or
    another tpr.
    """
    high, low = _scores(known, "known"), _scores(unknown, "unknown")
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr is {tpr}, expected a share in (0, 1]")
    shares = torch.arange(1, len(high) + 1, dtype=torch.float64) / len(high)
    threshold = high.sort(descending=True).values[torch.searchsorted(shares, tpr)]
    return (low >= threshold).double().mean().item()


def _twice_below(high: Tensor, low: Tensor) -> Tensor:
    """For each of `high`, twice the number of `low` below it plus the number equal to it: whole numbers, so exact."""
    ordered = low.sort().values
    return torch.searchsorted(ordered, high) + torch.searchsorted(ordered, high, right=True)


def _scores(scores: Any, name: str) -> Tensor:
    x = torch.as_tensor(scores).detach().to("cpu", torch.float64)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError(f"{name} scores have shape {tuple(x.shape)}, expected (n,) with n >= 1")
    if x.isnan().any():
        raise ValueError(f"{int(x.isnan().sum())} of {len(x)} {name} scores are NaN, expected numbers")
    return x


def _by_class(rows: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The classes in order, and the rows of each."""
    if labels.shape != rows.shape[:1] or labels.is_floating_point() or len(rows) == 0:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)} for {len(rows)} rows of train, "
            "expected integers, one a row, and at least one"
        )
    classes, counts = torch.unique(labels.to(rows.device), return_counts=True)
    return classes, list(torch.split(rows[labels.argsort(stable=True).to(rows.device)], counts.tolist()))


def _top(similarities: Tensor, k: int) -> Tensor:
    """The mean of the k largest of each row, or of all if there are fewer."""
    return similarities.topk(min(k, similarities.shape[1])).values.mean(1)


def _shifted(means: Tensor) -> Tensor:
    raised = 1 + means
    total = raised.sum(1, keepdim=True)
    # Opposite to every class up to rounding: the quotient of what is left would be noise.
    rounding = 8 * means.shape[1] * torch.finfo(means.dtype).eps
    share: Tensor = torch.where(total > rounding, raised / total, 1 / means.shape[1])
    return share


def _signed(sums: Tensor) -> Tensor:
    total = sums.sum(1, keepdim=True)
    fix = 'use normaliser="shifted"'
    if (none := int((total == 0).sum())) > 0:
        raise ValueError(f"the similarities of {none} test samples add up to 0, which nothing can be divided by: {fix}")
    if (turned := int((total < 0).sum())) > 0:
        which = f"the similarities of {turned} of {len(sums)} test samples"
        warnings.warn(f"{which} add up to less than 0, so the least similar class wins: {fix}", stacklevel=4)
    return sums / total


def _nearest(distances: Tensor, classes: Tensor) -> Detection:
    least, best = distances.min(1)
    return Detection(-least, classes[best])


def _distance(x: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Mahalanobis distances (Q,) of rows from a mean; `factor` is the Cholesky factor of the covariance."""
    white: Tensor = torch.linalg.solve_triangular(factor, (x - mean).T, upper=False)
    return white.square().sum(0).sqrt()


def _factor(centred: Tensor, shrinkage: float, name: str) -> Tensor:
    """The Cholesky factor of the shrunk covariance of (n, D) rows around their mean."""
    n, d = centred.shape
    covariance = (1 - shrinkage) * (centred.T @ centred) / n
    covariance.diagonal().add_(shrinkage * centred.square().sum() / (n * d))
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    # Rounding can leave a pivot of a singular matrix just above 0, and distances of 1e8 behind it.
    smallest, rounding = factor.diagonal().min() ** 2, d * torch.finfo(factor.dtype).eps * covariance.diagonal().max()
    if failed or not smallest > rounding:
        raise ValueError(
            f"the covariance of {name} is singular ({n} samples, {d} dimensions, shrinkage={shrinkage}): "
            'raise shrinkage, or use covariance="shared"'
        )
    return factor


def _exact(x: Tensor, name: str) -> Tensor:
    return wide_rows(x, name)[0].double()


def _chunks(test: Tensor, like: Tensor, chunk: int) -> tuple[Tensor, ...]:
    """Chunks of `test` with the dtype and device of `like`, whose rows must be as long."""
    if test.shape[1] != like.shape[-1] or len(test) == 0:
        raise ValueError(f"test has shape {tuple(test.shape)}, expected (Q, {like.shape[-1]}) as train, Q >= 1")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, expected at least 1")
    return torch.split(test.to(like), chunk)


def _logits(logits: Tensor) -> Tensor:
    if 0 in logits.shape:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected (Q, C) with Q, C >= 1")
    return wide_rows(logits, "logits")[0]
