"""From uniform draws to op records: the laws of the papers' own samplers, and the bookkeeping of `draw`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from checks import golden
from scipy import stats

from fastmix.kernels import OP, Op
from fastmix.ops import ALL, BASE, IPMIX, IPMIX_ALL, LAYERMIX, OpSpec, draw, draw_as, record

N_RECORDED = 20000
PROBABILITIES = (np.arange(512) + 0.5) / 512
# Largest gap between a law and the distribution function of 20000 draws (Kolmogorov, 1e-4), and half a quantile step.
GAP = 2.23 / np.sqrt(N_RECORDED) + 0.5 / 512

READ: dict[str, Callable[[Any], Any]] = {
    "rotate": lambda p: np.degrees(np.arctan2(p[..., 3], p[..., 0])),
    "shear_x": lambda p: p[..., 1],
    "shear_y": lambda p: p[..., 3],
    "translate_x": lambda p: p[..., 2],
    "translate_y": lambda p: p[..., 5],
}


def law(suite: Sequence[OpSpec], name: str, severity: float, size: int) -> Any:
    """The parameter of op `name` over an even grid of levels and both signs, read back from the records."""
    levels = (np.arange(50000) + 0.5) / 50000
    u = np.stack(np.broadcast_arrays(levels[:, None], [0.25, 0.75]), -1)
    choice = np.full(u.shape[:-1], [spec.name for spec in suite].index(name))
    p = draw_as(suite, choice, u, severity, (size, size))["p"]
    return READ.get(name, lambda p: p[..., 0])(p).ravel()


def _keys(prefix: str, ending: str) -> list[str]:
    return sorted(
        key.removesuffix(ending) for key in golden("op_draws") if key.startswith(prefix) and key.endswith(ending)
    )


def _parse(key: str) -> tuple[str, float, int]:
    """'pixmix_translate_x_translate_severity3_size32' -> ('translate_x', 3, 32)."""
    words = key.split("_")[1:]
    size = int(words.pop().removeprefix("size")) if words[-1].startswith("size") else 32
    severity = float(words.pop().removeprefix("severity").removeprefix("magnitude"))
    name = max((spec.name for spec in (*IPMIX_ALL, *LAYERMIX) if "_".join(words).startswith(spec.name)), key=len)
    return name, severity, size


def check_counts(values: Any, key: str) -> None:
    """Every recorded value is possible, and their frequencies pass a chi-square test."""
    arrays = golden("op_draws")
    possible, counts = np.unique(np.round(values), return_counts=True)
    seen = dict(zip(arrays[f"{key}_values"].tolist(), arrays[f"{key}_counts"].tolist(), strict=True))
    assert set(seen) <= set(possible.astype(int).tolist())
    observed = np.array([seen.get(int(value), 0) for value in possible])
    expected = counts / counts.sum() * observed.sum()
    assert expected.min() > 5
    if len(possible) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def check_quantiles(values: Any, quantiles: Any) -> None:
    """The recorded quantiles lie where the law puts them, and inside its range."""
    below = np.searchsorted(np.sort(values), quantiles, side="right") / len(values)
    assert np.abs(below - PROBABILITIES).max() < GAP
    room = 1e-3 * (values.max() - values.min())
    assert values.min() - room <= quantiles.min() <= quantiles.max() <= values.max() + room


@pytest.mark.parametrize("key", _keys("pixmix_", "_counts"))
def test_whole_parameters(key: str) -> None:
    name, severity, size = _parse(key)
    check_counts(law(ALL, name, severity, size), key)


@pytest.mark.parametrize("key", _keys("pixmix_", "_quantiles"))
def test_real_parameters(key: str) -> None:
    name, severity, size = _parse(key)
    check_quantiles(law(ALL, name, severity, size), golden("op_draws")[f"{key}_quantiles"])


@pytest.mark.parametrize("key", _keys("ipmix_", "_quantiles"))
def test_ipmix_cutoff(key: str) -> None:
    name, severity, size = _parse(key)
    check_quantiles(law(IPMIX_ALL, name, severity, size), golden("op_draws")[f"{key}_quantiles"])


@pytest.mark.parametrize("key", _keys("layermix_posterize", "_counts"))
def test_layermix_bits(key: str) -> None:
    name, severity, size = _parse(key)
    check_counts(law(LAYERMIX, name, severity, size), key)


@pytest.mark.parametrize("key", [key for key in _keys("layermix_", "_quantiles") if "solarize" not in key])
def test_layermix_warps(key: str) -> None:
    name, severity, size = _parse(key)
    values, quantiles = law(LAYERMIX, name, severity, size), golden("op_draws")[f"{key}_quantiles"]
    if name.startswith("translate"):
        values = -values
    check_quantiles(values, np.tan(np.radians(quantiles)) if name.startswith("shear") else quantiles)


@pytest.mark.parametrize("key", _keys("layermix_solarize", "_quantiles"))
def test_layermix_thresholds(key: str) -> None:
    """The threshold is kept as the first inverted level: compare the distribution functions at the levels."""
    name, severity, size = _parse(key)
    first, thresholds = law(LAYERMIX, name, severity, size), golden("op_draws")[f"{key}_quantiles"]
    for level in range(257):
        assert abs((first <= level).mean() - np.interp(level / 255, thresholds, PROBABILITIES, 0, 1)) < GAP


def test_suites() -> None:
    assert [len(suite) for suite in (BASE, ALL, IPMIX, IPMIX_ALL, LAYERMIX)] == [9, 13, 10, 15, 12]
    for suite in (BASE, ALL, IPMIX, IPMIX_ALL, LAYERMIX):
        assert len({spec.name for spec in suite}) == len(suite)
    assert set(BASE) < set(ALL)
    assert {spec.name for spec in IPMIX} == {spec.name for spec in BASE} - {"autocontrast"} | {"mirror", "invert"}


@pytest.mark.parametrize("suite", [BASE, ALL, IPMIX, IPMIX_ALL, LAYERMIX], ids=lambda suite: str(len(suite)))
def test_draw_is_the_scalar_rule_for_every_sample(suite: Sequence[OpSpec]) -> None:
    """Vectorised draws of any shape equal one draw a sample with plain Python arithmetic for choice, level, sign."""
    u = np.random.default_rng(1).random((4, 30, 3))
    severity, size = 3.0, (20, 33)
    made = draw(suite, u, severity, size)
    assert made.shape == (4, 30)
    assert made.dtype == OP
    seen = set()
    for row, op in zip(u.reshape(-1, 3), made.ravel(), strict=True):
        spec = suite[math.floor(row[0] * len(suite))]
        level = 0.1 + row[1] * (spec.highest(severity, size) - 0.1)
        value = float(spec.parameter(np.array(level), size))
        value = -value if spec.signed and row[2] > 0.5 else value
        assert op == record(spec, value, size)
        seen.add(spec.name)
    assert len(seen) == len(suite)


def test_choices_are_even() -> None:
    u = np.stack([(np.arange(1300) + 0.5) / 1300, np.full(1300, 0.5), np.full(1300, 0.5)], -1)
    codes = draw(ALL, u, 3.0, (32, 32))["code"]
    expected = {int(code): 100 * sum(spec.code == code for spec in ALL) for code in {spec.code for spec in ALL}}
    assert dict(zip(*(a.tolist() for a in np.unique(codes, return_counts=True)), strict=True)) == expected


def test_draws_of_permuted_samples_are_permuted() -> None:
    u, order = np.random.default_rng(2).random((50, 3)), np.random.default_rng(3).permutation(50)
    np.testing.assert_array_equal(draw(ALL, u[order], 3.0, (32, 32)), draw(ALL, u, 3.0, (32, 32))[order])


def test_draw_as_follows_the_choice() -> None:
    choice = np.array([[2, 2, 2], [7, 7, 7]])
    made = draw_as(LAYERMIX, choice, np.random.default_rng(4).random((2, 3, 2)), 8.0, (32, 32))
    np.testing.assert_array_equal(made["code"], [[Op.FLOAT_POSTERIZE] * 3, [Op.FLOAT_WARP] * 3])


def test_no_samples_give_no_records() -> None:
    assert draw(ALL, np.empty((0, 3)), 3.0, (32, 32)).shape == (0,)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (64, 16)])
def test_translations_are_thirds_of_the_own_side(size: tuple[int, int]) -> None:
    u = np.stack(np.broadcast_arrays((np.arange(1000) + 0.5) / 1000, 0.25), -1)
    for name, axis in (("translate_y", 0), ("translate_x", 1)):
        number = [spec.name for spec in ALL].index(name)
        p = draw_as(ALL, np.full(1000, number), u, 10.0, size)["p"]
        reached = READ[name](p).max()
        assert size[axis] / 3 - 1.01 <= reached <= size[axis] / 3
