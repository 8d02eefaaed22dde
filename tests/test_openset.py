import hashlib
import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance, ShrunkCovariance
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from fastmix.learn import openset
from fastmix.learn.protocols import PROTOCOLS, Split

# Two classes of two directions each; labels are not 0 and 1, and not in order.
TRAIN = torch.tensor([[0.0, 1], [1, 0], [0.8, 0.6], [-0.6, 0.8]])
LABELS = torch.tensor([7, 2, 2, 7])


def blobs(n: int, dims: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=2, size=(classes, dims))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    return torch.tensor(centres[labels] + rng.normal(size=(n, dims))), torch.tensor(labels)


# --- Detectors


def scores(z: list[float], k: int, normaliser: Any, scale: float = 1.0) -> tuple[float, int]:
    got = openset.nearest_neighbours(TRAIN * scale, LABELS, torch.tensor([z]), k, normaliser)
    return got.score.item(), int(got.label.item())


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_neighbours_as_published(scale: float) -> None:
    """s = (.96, .80), then (1.56, 1.08), then (1.8, -.6), each over its sum."""
    for z, k, want in (([0.6, 0.8], 1, 0.5455), ([0.6, 0.8], 2, 0.5909), ([1.0, 0], 2, 1.5)):
        score, label = scores(z, k, "sum", scale)
        np.testing.assert_allclose(score, want, atol=5e-5)
        assert label == 2


def test_the_signed_sum_turns_scores_round_and_the_shift_does_not() -> None:
    """s = (-.8, .6): the sum -.2 makes class 2 win with 4, though class 7 is the nearer one."""
    with pytest.warns(UserWarning, match="1 of 1 test samples add up to less than 0"):
        score, label = scores([-1.0, 0], 1, "sum")
    np.testing.assert_allclose(score, 4, rtol=1e-5)
    assert label == 2
    score, label = scores([-1.0, 0], 1, "shifted")
    np.testing.assert_allclose(score, 1.6 / 1.8, rtol=1e-6)
    assert label == 7
    score, label = scores([-1.0, 0], 2, "shifted")  # means -.9 and .3
    np.testing.assert_allclose(score, 1.3 / 1.4, rtol=1e-6)
    assert label == 7


def test_a_sum_of_exactly_nothing() -> None:
    train, labels = torch.tensor([[1.0, 0], [-1, 0]]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r'1 test samples add up to 0.*use normaliser="shifted"'):
        openset.nearest_neighbours(train, labels, torch.tensor([[1.0, 0]]), 1, "sum")


def test_opposite_to_every_class() -> None:
    """Cosines of -1, up to rounding: no class is preferred, and no quotient of rounding errors is a score."""
    features = torch.tensor(np.random.default_rng(0).normal(size=(50, 1, 8)), dtype=torch.float32)
    for one in features:
        got = openset.nearest_neighbours(torch.cat([one, 3 * one]), torch.tensor([0, 1]), -0.7 * one, 1)
        assert got.score.tolist() == [0.5]


def naive_neighbours(train: Tensor, labels: Tensor, test: Tensor, k: int, normaliser: str) -> tuple[Any, Any]:
    """One test sample after another, in NumPy."""
    found = []
    for z in test.numpy():
        values = []
        for c in np.unique(labels):
            rows = train.numpy()[labels.numpy() == c]
            cosines = np.sort(rows @ z / np.linalg.norm(rows, axis=1) / np.linalg.norm(z))[-k:]
            values.append(cosines.sum() if normaliser == "sum" else ((1 + cosines) / 2).mean())
        share = np.array(values) / np.sum(values)
        found.append((share.max(), np.unique(labels)[share.argmax()]))
    return np.array([s for s, _ in found]), np.array([c for _, c in found])


@pytest.mark.filterwarnings("ignore:the similarities of")
@pytest.mark.parametrize("normaliser", ["sum", "shifted"])
@pytest.mark.parametrize(("k", "chunk"), [(1, 1), (3, 7), (5, 1024)])
def test_neighbours_one_by_one(k: int, chunk: int, normaliser: Any) -> None:
    (train, labels), (test, _) = blobs(60), blobs(25, seed=1)
    got = openset.nearest_neighbours(train, labels, test, k, normaliser, chunk)
    score, label = naive_neighbours(train, labels, test, k, normaliser)
    np.testing.assert_allclose(got.score, score, rtol=1e-9)
    np.testing.assert_array_equal(got.label, label)


def test_classes_with_fewer_than_k() -> None:
    """Class 2 has one sample: in "shifted" it is not worse for it, in "sum" it is."""
    train, labels = torch.tensor([[1.0, 0], [0, 1], [0, 1]]), torch.tensor([2, 5, 5])
    test = torch.tensor([[1.0, 1]])
    for normaliser, want in (("shifted", 0.5), ("sum", 2 / 3)):
        with pytest.warns(UserWarning, match="1 classes have fewer than k=2 samples"):
            got = openset.nearest_neighbours(train, labels, test, 2, normaliser)  # type: ignore[arg-type]
        np.testing.assert_allclose(got.score.item(), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_neighbours_are_compared_in_float32(dtype: torch.dtype) -> None:
    (train, labels), (test, _) = blobs(60), blobs(25, seed=1)
    train, test = train.to(dtype), test.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = openset.nearest_neighbours(train, labels, test)
    want = openset.nearest_neighbours(train.double(), labels, test.double())
    assert got.score.dtype == torch.float32
    np.testing.assert_allclose(got.score, want.score, rtol=1e-6)


def test_detectors_take_features_that_need_gradients() -> None:
    train, labels = blobs(30)
    train.requires_grad_()
    for detect in (openset.nearest_neighbours, openset.nearest_mean, openset.mahalanobis):
        assert not detect(train, labels, train).score.requires_grad


def test_nearest_mean() -> None:
    (train, labels), (test, _) = blobs(60), blobs(25, seed=1)
    oracle = NearestCentroid().fit(train.numpy(), labels.numpy())
    distance = np.linalg.norm(test.numpy()[:, None] - oracle.centroids_, axis=2)
    got = openset.nearest_mean(train, labels, test)
    np.testing.assert_array_equal(got.label, oracle.predict(test.numpy()))
    np.testing.assert_allclose(got.score, -distance.min(1), rtol=1e-10)
    got = openset.nearest_mean(train, labels, test, p=1)
    np.testing.assert_allclose(got.score, -np.abs(test.numpy()[:, None] - oracle.centroids_).sum(2).min(1), rtol=1e-10)


@pytest.mark.parametrize("shrinkage", [0.0, 1e-3, 0.3, 1.0])
@pytest.mark.parametrize("chunk", [10, 4096])
def test_mahalanobis_per_class(shrinkage: float, chunk: int) -> None:
    (train, labels), (test, _) = blobs(90), blobs(25, seed=1)
    each = [
        ShrunkCovariance(shrinkage=shrinkage).fit(train.numpy()[labels.numpy() == c]).mahalanobis(test.numpy())
        for c in range(3)
    ]
    got = openset.mahalanobis(train, labels, test, "per_class", shrinkage, chunk)
    np.testing.assert_allclose(got.score, -np.sqrt(each).min(0), rtol=1e-8)
    np.testing.assert_array_equal(got.label, np.argmin(each, 0))


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
def test_mahalanobis_shared(shrinkage: float) -> None:
    (train, labels), (test, _) = blobs(90), blobs(25, seed=1)
    means = np.stack([train.numpy()[labels.numpy() == c].mean(0) for c in range(3)])
    centred = train.numpy() - means[labels.numpy()]
    oracle = ShrunkCovariance(shrinkage=shrinkage, assume_centered=True).fit(centred)
    each = [oracle.mahalanobis(test.numpy() - mean) for mean in means]
    got = openset.mahalanobis(train, labels, test, shrinkage=shrinkage)
    np.testing.assert_allclose(got.score, -np.sqrt(each).min(0), rtol=1e-8)
    np.testing.assert_array_equal(got.label, np.argmin(each, 0))


def test_mahalanobis_of_one_class_is_scikit_learns() -> None:
    (train, _), (test, _) = blobs(40), blobs(5, seed=1)
    want = -np.sqrt(EmpiricalCovariance().fit(train.numpy()).mahalanobis(test.numpy()))
    got = openset.mahalanobis(train, torch.zeros(40, dtype=torch.int64), test, shrinkage=0)
    np.testing.assert_allclose(got.score, want, rtol=1e-8)


def test_singular_covariances_are_named() -> None:
    """Class 1 has four samples in four dimensions: their centred rows lie in three, but rounding hides that."""
    train, labels = blobs(44, dims=4, classes=2)
    labels[:] = 0
    labels[10:14] = 1
    with pytest.raises(ValueError, match=r"covariance of class 1 is singular \(4 samples, 4 dimensions, shrinkage=0"):
        openset.mahalanobis(train, labels, train, "per_class", shrinkage=0)
    assert openset.mahalanobis(train, labels, train, "per_class").score.isfinite().all()
    with pytest.raises(ValueError, match=r"covariance of all classes is singular"):
        openset.mahalanobis(TRAIN, torch.tensor([0, 1, 2, 3]), TRAIN)


def test_logit_baselines() -> None:
    logits = torch.tensor([[2.0, 1, 0], [0, 0, -5], [-1, 3, 3.5]], dtype=torch.bfloat16)
    likely = openset.max_softmax(logits)
    want = [1 / (1 + math.exp(-1) + math.exp(-2)), 1 / (2 + math.exp(-5)), 1 / (1 + math.exp(-0.5) + math.exp(-4.5))]
    np.testing.assert_allclose(likely.score, want, rtol=1e-6)
    largest = openset.max_logit(logits)
    assert largest.score.tolist() == [2, 0, 3.5]
    assert largest.label.tolist() == likely.label.tolist() == [0, 0, 2]


# --- Figures


def pairs(known: Any, unknown: Any, correct: Any = None) -> float:
    correct = np.ones(len(known)) if correct is None else correct
    won = [c * ((k > u) + 0.5 * (k == u)) for k, c in zip(known, correct, strict=True) for u in unknown]
    return float(np.mean(won))


def test_figures_of_a_small_set() -> None:
    known, unknown = [0.9, 0.8, 0.4], [0.5, 0.1]
    assert openset.auroc(known, unknown) == 5 / 6
    assert openset.oscr(known, [1, 0, 1], unknown) == 0.5
    assert openset.oscr(known, [True] * 3, unknown) == 5 / 6
    assert openset.fpr_at_tpr(known, unknown) == 0.5


def draw(n1: int, n2: int, seed: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores on a few levels: ties within and between the two."""
    rng = np.random.default_rng(seed)
    known, unknown = (np.round(rng.normal(shift, size=n) * levels) / levels for shift, n in ((1, n1), (0, n2)))
    return known, unknown


CASES = [(1, 1, 4), (1, 9, 4), (9, 1, 4), (20, 30, 1), (40, 17, 3), (60, 60, 1000)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n1", "n2", "levels"), CASES)
def test_figures_with_ties(n1: int, n2: int, levels: int, seed: int) -> None:
    known, unknown = draw(n1, n2, seed, levels)
    truth, all_scores = np.r_[np.ones(n1), np.zeros(n2)], np.r_[known, unknown]
    correct = np.random.default_rng(seed + 9).integers(0, 2, n1)
    np.testing.assert_allclose(openset.auroc(known, unknown), roc_auc_score(truth, all_scores), rtol=1e-12)
    np.testing.assert_allclose(openset.auroc(known, unknown), pairs(known, unknown), rtol=1e-12)
    np.testing.assert_allclose(openset.oscr(known, correct, unknown), pairs(known, unknown, correct), atol=1e-12)
    np.testing.assert_allclose(openset.aupr(known, unknown), average_precision_score(truth, all_scores), rtol=1e-12)
    want = average_precision_score(1 - truth, -all_scores)
    np.testing.assert_allclose(openset.aupr(known, unknown, positive="unknown"), want, rtol=1e-12)
    tprs = {t: np.mean(known >= t) for t in known}
    threshold = max(t for t, tpr in tprs.items() if tpr >= 0.95)
    assert openset.fpr_at_tpr(known, unknown) == np.mean(unknown >= threshold)


def staircase(known: np.ndarray, correct: np.ndarray, unknown: np.ndarray) -> float:
    """The area under the polygon through all thresholds, by trapezes."""
    thresholds = [np.inf, *sorted({*known, *unknown}, reverse=True)]
    rates = [(np.mean(unknown >= t), np.mean((known >= t) & (correct == 1))) for t in thresholds]
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(rates))


@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_oscr_is_the_area_under_its_curve(levels: int) -> None:
    known, unknown = draw(50, 40, 5, levels)
    correct = np.random.default_rng(6).integers(0, 2, 50)
    got = openset.oscr(known, correct, unknown)
    np.testing.assert_allclose(got, staircase(known, correct, unknown), rtol=1e-12)
    assert got <= correct.mean()


def test_figures_do_not_change_with_increasing_transforms() -> None:
    known, unknown = draw(50, 40, 5, 2)
    for figure in (openset.auroc, openset.aupr, openset.fpr_at_tpr):
        assert figure(known, unknown) == figure(np.exp(known) - 9, np.exp(unknown) - 9)
        assert figure(known, unknown) == figure(torch.tensor(known).float(), torch.tensor(unknown).bfloat16())


@pytest.mark.parametrize("n", [20, 40, 60, 100, 1000])
def test_the_threshold_is_reached_by_exactly_95_percent(n: int) -> None:
    """Known scores 1..n: 95 % of them are above 0.05 n, and no rounding of 0.95 n may ask for one more."""
    known, at = np.arange(1, n + 1), n // 20
    assert openset.fpr_at_tpr(known, [at + 0.9, at + 1]) == 0.5
    assert openset.fpr_at_tpr(known, [1, 0.5], tpr=1) == 0.5


def test_infinite_scores_are_scores() -> None:
    assert openset.auroc([math.inf, 0], [-math.inf, math.inf]) == (0.5 + 1 + 1 + 0) / 4


def test_scores_are_not_rounded() -> None:
    assert openset.auroc(np.array([1 + 1e-12]), np.array([1.0])) == 1


def test_large_sets() -> None:
    """More pairs than memory: the n scores i against i + 1/2 win n (n - 1) / 2 of n^2 pairs."""
    n = 300_000
    scores = torch.arange(n, dtype=torch.float64)
    assert openset.auroc(scores, scores + 0.5) == (n - 1) / (2 * n)


def test_evaluate() -> None:
    known = openset.Detection(torch.tensor([0.9, 0.8, 0.4]), torch.tensor([3, 3, 5]))
    unknown = openset.Detection(torch.tensor([0.5, 0.1]), torch.tensor([3, 5]))
    got = openset.evaluate(known, [3, 5, 5], unknown)
    assert (got.auroc, got.oscr, got.fpr95, got.n_known, got.n_unknown) == (
        pytest.approx(5 / 6, abs=1e-7),
        0.5,
        0.5,
        3,
        2,
    )
    assert got.accuracy == pytest.approx(2 / 3)
    assert got.aupr_in == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert got.aupr_out == pytest.approx((1 + 2 / 3) / 2)


# --- Errors

Q = torch.ones(2, 2)
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, Q, 0), r"k is 0, expected at least 1"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, Q, 1, chunk=0), r"chunk is 0, expected at least 1"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, Q, 1, "softmax"), r"normaliser is 'softmax'"),  # type: ignore
    (lambda: openset.nearest_neighbours(TRAIN, LABELS * 0, Q, 1), r"labels name 1 class, expected at least 2"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS[:3], Q, 1), r"shape \(3,\) for 4 rows of train"),
    (lambda: openset.nearest_neighbours(TRAIN[:0], LABELS[:0], Q, 1), r"for 0 rows of train"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS / 1, Q, 1), r"labels are torch.float32"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, torch.ones(2, 3), 1), r"\(2, 3\), expected \(Q, 2\) as train"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, Q[:0], 1), r"expected \(Q, 2\) as train, Q >= 1"),
    (lambda: openset.nearest_neighbours(TRAIN, LABELS, Q / 0, 1), r"test has NaN, infinite"),
    (lambda: openset.nearest_neighbours(TRAIN * math.nan, LABELS, Q, 1), r"train has NaN, infinite .* in 4 of 4 rows"),
    (lambda: openset.nearest_mean(TRAIN, LABELS, Q, p=0.5), r"p is 0.5, expected a number >= 1"),
    (lambda: openset.nearest_mean(TRAIN, LABELS, Q[:0]), r"expected \(Q, 2\) as train, Q >= 1"),
    (lambda: openset.mahalanobis(TRAIN, LABELS, Q, "tied"), r"covariance is 'tied'"),  # type: ignore
    (lambda: openset.mahalanobis(TRAIN, LABELS, Q, shrinkage=1.5), r"shrinkage is 1.5"),
    (lambda: openset.max_logit(torch.ones(3)), r"shape \(3,\), expected floating features"),
    (lambda: openset.max_softmax(torch.ones(3, 0)), r"logits have shape \(3, 0\)"),
    (lambda: openset.max_softmax(torch.tensor([[math.nan, 0]])), r"logits has NaN"),
    (lambda: openset.auroc([], [1]), r"known scores have shape \(0,\)"),
    (lambda: openset.auroc([1], [[1]]), r"unknown scores have shape \(1, 1\)"),
    (lambda: openset.auroc([1], [1, math.nan]), r"1 of 2 unknown scores are NaN"),
    (lambda: openset.aupr([1], [0], positive="both"), r"positive is 'both'"),  # type: ignore
    (lambda: openset.fpr_at_tpr([1], [0], tpr=0), r"tpr is 0, expected a share in \(0, 1\]"),
    (lambda: openset.fpr_at_tpr([1], [0], tpr=95), r"tpr is 95"),
    (lambda: openset.oscr([1, 2], [1], [0]), r"correct has shape \(1,\), expected 2 booleans"),
    (lambda: openset.oscr([1, 2], [1, 3], [0]), r"expected 2 booleans"),
    (lambda: openset.evaluate(openset.max_logit(Q), [1], openset.max_logit(Q)), r"labels have shape \(1,\)"),
    (lambda: Split("a", (), "b", (1,)), r"0 known and 1 unknown classes"),
    (lambda: Split("a", (1, 2), "a", (2,)), r"classes \[\('a', 2\)\] are named twice"),
    (lambda: Split.of("a", [0, 10], 10), r"known classes \[10\] are outside 0..9"),
    (lambda: Split.of("a", [0, 1], 2), r"2 known and 0 unknown classes"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_errors_name_the_value(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# --- Protocols

# SHA-256, first 16 digits, of json.dumps of the lists of github.com/sgvaze/osr_closed_set_all_you_need, osr_splits.py
RELEASED = {
    ("mnist", "known"): "d90b231de1a12928",
    ("svhn", "known"): "a7ece39fe505d8f7",
    ("cifar10", "known"): "f0fe4b8ec627794d",
    ("cifar+10", "known"): "5f65fe7bea51ecf3",
    ("cifar+50", "known"): "5f65fe7bea51ecf3",
    ("cifar+10", "unknown"): "8d59321ceb68e756",
    ("cifar+50", "unknown"): "30b23b31d131266e",
    ("tinyimagenet", "known"): "1b20f19879989139",
}


@pytest.mark.parametrize(("name", "side"), RELEASED)
def test_splits_are_the_released_ones(name: str, side: str) -> None:
    lists = [list(getattr(split, side)) for split in PROTOCOLS[name]]
    assert hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16] == RELEASED[name, side]


@pytest.mark.parametrize(
    ("name", "known", "unknown", "percent"),
    [
        ("mnist", 6, 4, 22.54),
        ("svhn", 6, 4, 22.54),
        ("cifar10", 6, 4, 22.54),
        ("cifar+10", 4, 10, 46.55),
        ("cifar+50", 4, 50, 72.78),
        ("tinyimagenet", 20, 180, 68.38),
    ],
)
def test_sizes_and_openness(name: str, known: int, unknown: int, percent: float) -> None:
    assert len(PROTOCOLS[name]) == 5
    for split in PROTOCOLS[name]:
        assert (len(split.known), len(split.unknown)) == (known, unknown)
        np.testing.assert_allclose(100 * split.openness, percent, atol=0.005)


def test_two_trials_of_cifar10_are_one_partition() -> None:
    assert len({frozenset(split.known) for split in PROTOCOLS["cifar10"]}) == 4


def test_split_of_one_dataset() -> None:
    split = Split.of("fashion_mnist", [9, 0, 4], 10)
    assert (split.known, split.unknown) == ((9, 0, 4), (1, 2, 3, 5, 6, 7, 8))
    assert split.known_from == split.unknown_from == "fashion_mnist"
