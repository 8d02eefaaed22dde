import random  # noqa: TID251  (its state is watched, not used)

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from fastmix import rng
from fastmix.kernels import pixel
from fastmix.rng import Key, Stream

MANY = 100_000
IDS = np.arange(MANY)

# Known answers published with the Random123 library (kat_vectors, philox4x32 10 rounds): counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def fits(sample: np.ndarray, distribution: object) -> None:
    """Kolmogorov-Smirnov at a fixed seed: the test either always passes or always fails."""
    assert stats.kstest(sample, distribution.cdf).pvalue > 1e-3


def evenly(counts: np.ndarray) -> None:
    assert stats.chisquare(counts).pvalue > 1e-3


# -- Philox ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter: str, key: str, want: str) -> None:
    k0, k1 = words(key)
    np.testing.assert_array_equal(rng.philox(np.array(words(counter), np.uint32), (k0, k1)), words(want))
    np.testing.assert_array_equal(pixel.philox4x32(*words(counter), k0, k1), words(want))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
@settings(max_examples=200, deadline=None)
def test_kernel_bits_are_host_bits(w: list[int]) -> None:
    host = rng.philox(np.array(w[:4], np.uint32), (w[4], w[5]))
    np.testing.assert_array_equal(host, pixel.philox4x32(*w))


def test_bits_have_the_documented_counter_layout() -> None:
    key, sample, stream = Key(seed=0x0123456789ABCDEF, epoch=7, view=2), 0xABCD12345678, 5
    got = key.bits(np.array([sample]), stream, 8)[0]
    for block in range(2):
        fourth = (2 * 4096 + stream) | (0xABCD << 16)
        want = pixel.philox4x32(block, 0x12345678, 7, fourth, 0x89ABCDEF, 0x01234567)
        np.testing.assert_array_equal(got[4 * block : 4 * block + 4], want)
    np.testing.assert_array_equal(key.words, [0x89ABCDEF, 0x01234567, 7])
    assert key.stream(stream) == 2 * 4096 + stream


def test_every_part_of_the_key_matters() -> None:
    ids = np.array([3])
    drawn = [
        Key(1).bits(ids, 1, 4),
        Key(2).bits(ids, 1, 4),
        Key(1 << 32).bits(ids, 1, 4),
        Key(1, epoch=1).bits(ids, 1, 4),
        Key(1, view=1).bits(ids, 1, 4),
        Key(1).bits(ids, 2, 4),
        Key(1).bits(ids + 1, 1, 4),
        Key(1).bits(ids + (1 << 32), 1, 4),
        Key(1).bits(ids, 1, 4, start=4),
    ]
    assert len(np.unique(np.concatenate(drawn))) == 4 * len(drawn)


def test_streams_do_not_overlap() -> None:
    taken = [int(s) for s in Stream] + [Stream.BETA + 1, Stream.WEIGHTS + 1]
    assert len(set(taken)) == len(taken)


# -- a draw depends on what it is for, and on nothing else ------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, ids: key.bits(ids, 3, 7),
        lambda key, ids: key.uniform(ids, 3, 5),
        lambda key, ids: key.gamma(ids, 3, 0.3, 2),
        lambda key, ids: key.beta(ids, 3, 0.2, 0.2),
        lambda key, ids: key.dirichlet(ids, 3, 1.0, 3),
    ],
)
def test_rows_do_not_depend_on_the_cut_or_the_order(draw) -> None:  # type: ignore[no-untyped-def]
    key, ids = Key(5, 2), np.arange(100, 400)
    whole = draw(key, ids)
    np.testing.assert_array_equal(np.concatenate([draw(key, part) for part in np.split(ids, [1, 4, 77])]), whole)
    order = np.random.default_rng(0).permutation(len(ids))
    np.testing.assert_array_equal(draw(key, ids[order]), whole[order])
    assert len(draw(key, ids[:0])) == 0


def test_count_and_start_cut_one_sequence() -> None:
    key, ids = Key(9), np.arange(4)
    whole = key.bits(ids, 1, 24)
    np.testing.assert_array_equal(key.bits(ids, 1, 3), whole[:, :3])
    np.testing.assert_array_equal(key.bits(ids, 1, 9, start=8), whole[:, 8:17])


def test_global_generators_are_not_touched() -> None:
    def state() -> tuple[object, ...]:
        kind, numbers, *rest = np.random.get_state()  # noqa: NPY002
        return random.getstate(), kind, numbers.tobytes(), *rest, torch.get_rng_state().numpy().tobytes()

    before = state()
    key, ids = Key(0), np.arange(64)
    first = key.beta(ids, 1, 0.5, 2.0)
    key.dirichlet(ids, 1, 1.0, 3)
    key.partners(ids, 1, 16)
    rng.shuffle(ids, 64, key, 1)
    assert state() == before
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    np.testing.assert_array_equal(key.beta(ids, 1, 0.5, 2.0), first)


# -- distributions ----------------------------------------------------------------------------------------------------


def test_uniform() -> None:
    u = Key(1).uniform(IDS, 1, 3)
    for column in u.T:
        fits(column, stats.uniform)
    assert 0 < u.min() <= u.max() < 1
    assert np.abs(np.corrcoef(u.T) - np.eye(3)).max() < 0.015
    assert np.abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.015


def test_uniform_is_open_at_both_ends() -> None:
    class Ends(Key):
        def bits(self, *_: object, **__: object) -> np.ndarray:
            return np.array([[0, 2**32 - 1]], np.uint32)

    np.testing.assert_array_equal(Ends(0).uniform(np.arange(1), 1, 2), [[2.0**-33, 1 - 2.0**-33]])


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2), (1, 4), (-3, 4), (0, 100)])
def test_integers(low: int, high: int) -> None:
    drawn = rng.integers(Key(2).uniform(IDS, 1, 1)[:, 0], low, high)
    assert drawn.dtype == np.int64
    counts = np.bincount(drawn - low, minlength=high - low)
    assert len(counts) == high - low
    if high - low > 1:
        evenly(counts)


def test_integers_with_a_bound_for_each() -> None:
    high = np.array([1, 2, 5])
    edge = rng.integers(np.full(3, 1 - 2.0**-33), 0, high)
    np.testing.assert_array_equal(edge, high - 1)
    np.testing.assert_array_equal(rng.integers(np.full(3, 2.0**-33), 0, high), 0)


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.2), (1, 1), (3, 1), (1, 4)])
def test_beta(a: float, b: float) -> None:
    drawn = Key(3).beta(IDS, Stream.BETA, a, b)
    assert drawn.shape == (MANY,)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    fits(drawn, stats.beta(a, b))


@pytest.mark.parametrize("a", [0.5, 1.0, 3.0, 4.0])
def test_beta_by_inversion(a: float) -> None:
    u = Key(4).uniform(IDS, 1, 1)[:, 0]
    fits(rng.beta_a1(u, a), stats.beta(a, 1))
    fits(rng.beta_1b(u, a), stats.beta(1, a))


def test_inversion_keeps_small_values() -> None:
    np.testing.assert_allclose(rng.beta_1b(np.array([1 - 1e-12]), 4.0), stats.beta(1, 4).ppf(1e-12), rtol=1e-4)
    np.testing.assert_allclose(rng.beta_a1(np.array([1e-12]), 4.0), 1e-3, rtol=1e-12)


@pytest.mark.parametrize("shape", [0.05, 0.2, 0.5, 1.0, 2.5, 30.0])
def test_gamma_gives_logarithms(shape: float) -> None:
    drawn = Key(5).gamma(IDS, 1, shape, 1)
    assert drawn.shape == (MANY, 1)
    fits(np.exp(drawn[:, 0]), stats.gamma(shape))


def test_gamma_of_a_shape_whose_draws_underflow() -> None:
    shape = 1e-3  # half of the draws are below 1e-308: there the distribution function is x^shape / Gamma(shape + 1)
    drawn = Key(5).gamma(IDS, 1, shape)[:, 0]
    assert np.isfinite(drawn).all()
    small = np.exp(shape * drawn) / special.gamma(shape + 1)
    fits(np.where(drawn < -40, small, stats.gamma(shape).cdf(np.exp(drawn))), stats.uniform)


def test_gamma_columns_are_independent() -> None:
    both = Key(6).gamma(IDS, 1, 0.7, 2)
    for column in both.T:
        fits(np.exp(column), stats.gamma(0.7))
    assert abs(np.corrcoef(both.T)[0, 1]) < 0.015


@pytest.mark.parametrize(("alpha", "count"), [(1.0, 3), (1.0, 4), (0.3, 3), (5.0, 2)])
def test_dirichlet(alpha: float, count: int) -> None:
    drawn = Key(7).dirichlet(IDS, Stream.WEIGHTS, alpha, count)
    assert drawn.shape == (MANY, count)
    np.testing.assert_allclose(drawn.sum(1), 1, atol=1e-12)
    for column in drawn.T:
        fits(column, stats.beta(alpha, (count - 1) * alpha))
    correlation = np.corrcoef(drawn.T)[~np.eye(count, dtype=bool)]
    np.testing.assert_allclose(correlation, -1 / (count - 1), atol=0.015)


def test_tiny_shapes_give_no_nan() -> None:
    beta = Key(8).beta(IDS[:2000], 1, 1e-3, 1e-3)
    assert ((beta >= 0) & (beta <= 1)).all()
    shares = Key(8).dirichlet(IDS[:2000], 1, 1e-3, 3)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-12)


# -- partners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 16, 17, 31, 48, 100])
@pytest.mark.parametrize("group", [1, 2, 7, 16])
def test_partners_are_one_cycle_of_every_group(n: int, group: int) -> None:
    partner = Key(1).partners(np.arange(n) * 3 + 1, Stream.PARTNER, group)
    assert partner.dtype == np.int64
    np.testing.assert_array_equal(np.sort(partner), np.arange(n))
    np.testing.assert_array_equal(partner // group, np.arange(n) // group)
    for first in range(0, n, group):
        size, row, seen = min(group, n - first), first, set()
        for _ in range(size):
            seen.add(row)
            row = int(partner[row])
        assert row == first
        assert len(seen) == size


def test_alone_in_a_group_one_mixes_with_oneself() -> None:
    assert Key(1).partners(np.arange(17), Stream.PARTNER, 16)[16] == 16
    np.testing.assert_array_equal(Key(1).partners(np.arange(5), Stream.PARTNER, 1), np.arange(5))


def test_every_mate_is_equally_likely() -> None:
    group = 8
    partner = Key(11).partners(np.arange(40_000), Stream.PARTNER, group).reshape(-1, group) % group
    for row in range(group):
        counts = np.bincount(partner[:, row], minlength=group)
        assert counts[row] == 0
        evenly(np.delete(counts, row))


def test_partners_move_with_the_ids() -> None:
    ids, shaken = np.arange(1000, 1048), np.random.default_rng(2)
    order = np.concatenate([first + shaken.permutation(16) for first in (0, 16, 32)])
    before, after = (Key(3).partners(x, Stream.PARTNER, 16) for x in (ids, ids[order]))
    np.testing.assert_array_equal(ids[order][after], ids[before][order])


def test_groups_do_not_depend_on_the_batch() -> None:
    ids = np.arange(64)
    whole = ids[Key(4).partners(ids, Stream.PARTNER, 16)]
    halves = [half[Key(4).partners(half, Stream.PARTNER, 16)] for half in np.split(ids, 2)]
    np.testing.assert_array_equal(np.concatenate(halves), whole)
    assert (ids[Key(4, epoch=1).partners(ids, Stream.PARTNER, 16)] != whole).any()


# -- shuffle ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4096, 4097, 50_000])
def test_shuffle_is_a_bijection(length: int) -> None:
    moved = rng.shuffle(np.arange(length), length, Key(1), Stream.SHUFFLE)
    np.testing.assert_array_equal(np.sort(moved), np.arange(length))


def test_shuffle_of_a_large_range() -> None:
    length = 1_000_003
    positions = np.random.default_rng(0).choice(length, 20_000, replace=False)
    moved = rng.shuffle(positions, length, Key(1), Stream.SHUFFLE)
    assert 0 <= moved.min() <= moved.max() < length
    assert len(np.unique(moved)) == len(positions)
    fits(moved / length, stats.uniform)
    assert abs(stats.spearmanr(positions, moved).statistic) < 0.03


def test_shuffle_of_a_part_is_a_part_of_the_shuffle() -> None:
    whole = rng.shuffle(np.arange(101), 101, Key(6), Stream.SHUFFLE)
    some = np.array([100, 3, 50, 3])
    np.testing.assert_array_equal(rng.shuffle(some, 101, Key(6), Stream.SHUFFLE), whole[some])
    assert len(rng.shuffle(some[:0], 101, Key(6), Stream.SHUFFLE)) == 0


@pytest.mark.parametrize(("length", "epochs"), [(2, 300), (3, 300), (5, 1500), (10, 500)])
def test_shuffle_goes_everywhere_equally_often(length: int, epochs: int) -> None:
    positions = np.arange(length)
    moved = np.array([rng.shuffle(positions, length, Key(1, epoch), Stream.SHUFFLE) for epoch in range(epochs)])
    for column in moved.T:
        evenly(np.bincount(column, minlength=length))


def test_shuffle_leaves_its_argument_alone() -> None:
    positions = np.arange(9)
    rng.shuffle(positions, 9, Key(1), Stream.SHUFFLE)
    np.testing.assert_array_equal(positions, np.arange(9))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, r"seed is -1, expected 0 <= seed < 2\*\*64"),
        ({"seed": 1 << 64}, r"seed is 18446744073709551616"),
        ({"seed": 0, "epoch": 1 << 32}, r"epoch is 4294967296, expected 0 <= epoch < 2\*\*32"),
        ({"seed": 0, "epoch": -1}, r"epoch is -1"),
        ({"seed": 0, "view": 16}, r"view is 16, expected 0 <= view < 2\*\*4"),
    ],
)
def test_bad_keys(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Key(**arguments)


@pytest.mark.parametrize("bad", [-1, 1 << 48])
def test_bad_ids(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"ids run from .*{bad}.*expected 0 <= id < 2\*\*48"):
        Key(0).bits(np.array([5, bad]), 1, 1)


def test_the_largest_key_works() -> None:
    key = Key((1 << 64) - 1, (1 << 32) - 1, 15)
    assert len(np.unique(key.bits(np.array([0, (1 << 48) - 1]), 4095, 4))) == 8
    assert key.words.tolist() == [0xFFFFFFFF] * 3
