"""The label check: its figures against scipy and by hand, and what its judge sees."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest

from fastmix.images import center_box
from fastmix.offline.agreement import (
    Named,
    Rule,
    Share,
    agreement,
    facts,
    failures,
    kept_shares,
    mcnemar,
    poor_classes,
    read_bound,
    table,
    wilson,
)
from fastmix.offline.judge import Training, cut, split


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(900, 1000, 0.880, 0.917), (950, 1000, 0.935, 0.962), (1000, 1000, 0.996, 1.0), (0, 10, 0.0, 0.278)],
)
def test_wilson_of_the_books(hits, n, low, high):
    assert tuple(round(end, 3) for end in wilson(hits, n)) == (low, high)


def test_wilson_is_scipys():
    for n in (1, 2, 17, 400):
        for hits in {0, 1, n // 3, n - 1, n}:
            ours, theirs = wilson(hits, n), binomtest(hits, n).proportion_ci(0.95, method="wilson")
            np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-7)
            wide = binomtest(hits, n).proportion_ci(0.99, method="wilson")
            np.testing.assert_allclose(wilson(hits, n, z=2.5758293), (wide.low, wide.high), atol=1e-7)


@pytest.mark.parametrize(("hits", "n"), [(1, 0), (0, 0), (-1, 3), (4, 3)])
def test_wilson_refuses(hits, n):
    with pytest.raises(ValueError, match=f"{hits} successes of {n}, expected"):
        wilson(hits, n)


@pytest.mark.parametrize(("lost", "won"), [(0, 1), (1, 1), (5, 0), (30, 12), (3, 4), (300, 260), (700, 2100)])
def test_mcnemar_is_the_binomial_test_of_what_differs(lost, won):
    before = np.repeat([True, False, True, False], [lost, won, 40, 9])
    after = np.repeat([False, True, True, False], [lost, won, 40, 9])
    assert mcnemar(before, after) == pytest.approx(binomtest(lost, lost + won).pvalue, rel=1e-9)
    assert mcnemar(before, before) == mcnemar([], []) == 1.0


def test_mcnemar_refuses_unequal_lengths():
    with pytest.raises(ValueError, match=r"before has shape \(2,\) and after \(3,\)"):
        mcnemar([1, 0], [1, 0, 1])


def rows_of(labels, targets, strengths, sources=None):
    sources = range(len(labels)) if sources is None else sources
    names = ("source_label", "target_label", "strength", "source")
    return [dict(zip(names, each, strict=True)) for each in zip(labels, targets, strengths, sources, strict=True)]


def test_figures_by_hand():
    rows = rows_of([0, 0, 1, 1, 2, 2], [1, 0, None, 2, 0, 1], [0.5, 0.5, 0.5, 0.5, 0.5, 0.9], [7, 7, 8, 9, 5, 5])
    named = Named(
        clean=np.array([0, 0, 1, 2, 2, 0]),
        before=np.array([0, 0, 1, 1, 0, 1]),
        after=np.array([1, 0, 0, 2, 2, 2]),
        round_trip=np.array([0, -1, 1, -1, 1, -1]),
    )
    half, strong = agreement(rows, named)
    assert (half.strength, half.records, half.sources, strong.strength, strong.records) == (0.5, 5, 4, 0.9, 1)
    assert half.clean == Share(4, 5) and half.before == Share(4, 5) and half.after == Share(2, 5)
    assert half.before_right == Share(3, 4) and half.after_right == Share(2, 4)  # all but the fourth
    # The target of the second has the source's label, and the third has none.
    assert half.leak_before == Share(1, 3) and half.leak_after == Share(2, 3)
    assert half.round_trip == Share(2, 3) and half.plain is None and strong.round_trip is None
    assert half.loss == pytest.approx(0.4) and half.p == pytest.approx(binomtest(1, 4).pvalue)
    assert strong.after_right is None and strong.leak_before == Share(1, 1) and strong.leak_after == Share(0, 1)
    shown = table([half, strong]).splitlines()
    assert shown[0].split() == ["strength", "0.5", "0.9"] and shown[1].split() == ["records", "5", "1"]
    assert any(line.startswith("after, normalised") and line.endswith(" -") for line in shown)
    assert not any("source, refined" in line for line in shown)
    told = facts([half, strong])
    assert told[0]["clean"]["share"] == 0.8 and told[0]["clean"]["high"] == wilson(4, 5)[1] and told[0]["plain"] is None
    json.dumps(told)


def test_nothing_changes_where_refining_does_nothing():
    rows, names = rows_of([0, 1, 1, 0], [1, 0, 0, 1], [0.7] * 4), np.array([0, 1, 0, 1])
    (figures,) = agreement(rows, Named(names, names, names))
    assert (figures.before, figures.loss, figures.p) == (figures.after, 0.0, 1.0)
    assert failures([figures], Rule()) == []


def share_of(clean, before, after, n=100):
    """Figures of `n` records of class 0: so many named 0 (and all others 1), from the first."""
    names = [np.where(np.arange(n) < count, 0, 1) for count in (clean, before, after)]
    return agreement(rows_of([0] * n, [1] * n, [0.5] * n), Named(*names))


@pytest.mark.parametrize(
    ("clean", "before", "after", "bounds"),
    [
        (100, 100, 95, []),  # just as much as is allowed
        (100, 100, 94, ["--most-loss"]),
        (100, 90, 90, []),
        (100, 89, 89, ["--least"]),
        (100, 95, 80, ["--most-loss", "--least"]),
        (75, 75, 75, []),  # as good as the classifier is
        (75, 75, 67, ["--most-loss", "--least"]),
        (0, 100, 100, ["--least"]),  # nothing to be held against it, so nothing is known
    ],
)
def test_the_rule_says_which_bound_fails(clean, before, after, bounds):
    found = failures(share_of(clean, before, after), Rule())
    assert [line[line.rindex("(") + 1 : -1] for line in found] == bounds
    assert all(line.startswith("strength 0.5: ") for line in found)
    assert failures(share_of(clean, before, after), Rule(most_loss=1, least=0)) == [line for line in found if not clean]


def test_settings_and_shapes_are_checked():
    with pytest.raises(ValueError, match=r"most_loss is 5, expected a share in 0..1, such as 0\.05"):
        Rule(most_loss=5)
    with pytest.raises(ValueError, match=r"held_out is 1\.0"):
        Training(held_out=1.0)
    with pytest.raises(ValueError, match="epochs is 0"):
        Training(epochs=0)
    with pytest.raises(ValueError, match=r"after has shape \(1,\), expected a class number for 2 records"):
        agreement(rows_of([0, 1], [1, 0], [0.5, 0.5]), Named(np.zeros(2), np.zeros(2), np.zeros(1)))
    with pytest.raises(ValueError, match="there are no records"):
        agreement([], Named(*np.zeros((3, 0))))


def test_bounds_of_filters_are_read_strictly():
    assert [read_bound(text) for text in ("p>=0.5", "p>=.25", "p>=1", "p>=0.90")] == [0.5, 0.25, 1.0, 0.9]
    for text in (
        "",
        "p>0.5",
        "p >= 0.5",
        "p>=",
        "p>=0",
        "p>=1.1",
        "p>=nan",
        "p>=-0.5",
        "p>=5e-1",
        "q>=0.5",
        "p>=0.5;",
        "p>=\uff11",
    ):
        with pytest.raises(ValueError, match=r"expected .p>=NUMBER"):
            read_bound(text)


def test_classes_that_a_filter_thins_out():
    labels = np.repeat([0, 1, 3], [4, 4, 10])
    kept = np.array([1, 1, 1, 1, 1, 1, 1, 0, *[1] * 2, *[0] * 8], bool)
    shares = kept_shares(labels, kept, 4)
    assert shares == [Share(4, 4), Share(3, 4), None, Share(2, 10)]
    assert poor_classes(shares) == [3]  # 0.2 < (1 + 0.75 + 0.2) / 3 / 2
    assert poor_classes([Share(1, 2), Share(1, 1)]) == [] and poor_classes([None]) == []


def test_split_takes_a_share_of_each_class_by_number():
    labels = np.repeat([0, 1, 2], [1, 10, 31])
    held = split(labels, 0.5, seed=3)
    assert [int(held[labels == label].sum()) for label in range(3)] == [0, 5, 15]
    assert (split(labels, 0.5, seed=3) == held).all() and (split(labels, 0.5, seed=4) != held).any()
    mixed = np.array([2, 0, 1] * 5)  # a part of a class is drawn, not its beginning
    assert [int(split(mixed, 0.4, 0)[mixed == label].sum()) for label in range(3)] == [2, 2, 2]


def test_pictures_are_cut_as_pillow_does():
    picture = np.asarray(Image.effect_mandelbrot((90, 60), (-2, -1.5, 1, 1.5), 60).convert("RGB"))
    left, top, width, height = center_box(60, 90, (32, 32))
    theirs = Image.fromarray(picture).resize(
        (32, 32), Image.Resampling.BILINEAR, (left, top, left + width, top + height)
    )
    assert np.abs(cut([picture], 32)[0].astype(int) - np.asarray(theirs)).max() <= 1
