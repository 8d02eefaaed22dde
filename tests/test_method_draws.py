"""The draws of the methods against samples of the published programs' own draws (tests/data/README_methods.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fastmix.kernels import Mode, Op, Source, Where
from fastmix.methods._blend import simplex
from fastmix.methods.augmix import AugMix
from fastmix.methods.cutmix import CutMix
from fastmix.methods.ipmix import IPMix
from fastmix.methods.layermix import LayerMix
from fastmix.methods.mixup import MixUp
from fastmix.methods.pixmix import PixMix
from fastmix.rng import Key
from fastmix.types import Batch, Method, Params, Pool

with np.load(Path(__file__).parent / "data" / "method_draws.npz") as _file:
    RECORDED: dict[str, Any] = dict(_file)

COUNT = 20000
KEY = Key(2024, 3)
POOL = Pool(np.zeros((7, 36, 40, 3), np.uint8))
WEAKEST = 1e-4  # p value
WARPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def draw(method: Method, size: int = 32, count: int = COUNT) -> Params:
    """Params of many samples."""
    return method.draw(KEY, Batch.of(np.zeros((count, size, size, 3), np.uint8), np.zeros(count, np.int64)))


def same_law(sample: Any, name: str) -> None:
    """Two-sample Kolmogorov-Smirnov test against the 512 recorded quantiles."""
    quantiles, recorded = RECORDED[f"{name}_quantiles"], int(RECORDED[f"{name}_n"])
    ours = np.searchsorted(np.sort(np.asarray(sample, np.float64)), quantiles, side="right") / len(sample)
    distance = np.abs(ours - (np.arange(512) + 0.5) / 512).max()
    # The recorded distribution function is known to one step of the quantiles.
    assert distance < 2.2 * np.sqrt(1 / len(sample) + 1 / recorded) + 1 / 512, (name, distance)


def same_shares(ours: dict[Any, int], theirs: dict[Any, float]) -> None:
    """Chi-squared test that two tables of counts come from one distribution."""
    labels = sorted(set(ours) | set(theirs), key=str)
    table = np.array([[ours.get(label, 0) for label in labels], [theirs.get(label, 0) for label in labels]])
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > WEAKEST, (labels, table)


def recorded_counts(name: str) -> dict[Any, int]:
    """A recorded table of counts."""
    labels = RECORDED.get(f"{name}_labels")
    values = RECORDED[f"{name}_values"] if labels is None else labels
    return dict(zip(values.tolist(), RECORDED[f"{name}_counts"].tolist(), strict=True))


def counts(values: Any) -> dict[Any, int]:
    """A table of counts."""
    found, number = np.unique(np.asarray(values), return_counts=True)
    return dict(zip(found.tolist(), number.tolist(), strict=True))


def blend_names(steps: Any) -> Any:
    """The published names of blend steps."""
    masked = np.where(steps["where"] == Where.PIXELS, "random_pixels", "random_elems")
    plain = np.where(steps["mode"] == Mode.ARITHMETIC, "add", "multiply")
    return np.where(steps["where"] == Where.EVERYWHERE, plain, masked)


def conic_law(steps: Any, name: str) -> None:
    """Weights of add and multiply, in both branches."""
    conic = np.isin(steps["mode"], (Mode.ARITHMETIC, Mode.GEOMETRIC))
    a, b = steps["a"][conic], steps["b"][conic]
    same_shares(counts(b >= 0), dict(zip((True, False), RECORDED[f"{name}_branch_counts"].tolist(), strict=True)))
    for branch, rows in (("both_positive", b >= 0), ("second_negative", b < 0)):
        same_law(a[rows], f"{name}_{branch}_a")
        same_law(b[rows], f"{name}_{branch}_b")
        assert abs(np.corrcoef(a[rows], b[rows])[0, 1]) < 0.03


def by_kind(table: dict[str, int], float_ops: bool) -> dict[str, int]:
    """Counts of ops by kernel op: five of them are warps, and LayerMix has two posterizes and two solarizes."""
    found: dict[str, int] = {}
    for name, number in table.items():
        kind = "warp" if name in WARPS else name.removesuffix("_increasing") if float_ops else name
        found[kind] = found.get(kind, 0) + number
    return found


def op_counts(records: Any) -> dict[str, int]:
    """Counts of the drawn ops by kernel op."""
    used = counts(records["code"][records["code"] != Op.NONE])
    return {Op(code).name.lower().removeprefix("float_"): number for code, number in used.items()}


@pytest.mark.parametrize("beta", [3, 4])
def test_pixmix(beta: int) -> None:
    """Start, rounds, sources, blends, weights and ops."""
    program = draw(PixMix(beta=beta, all_ops=True, pool=POOL)).program
    steps, rows = program.steps, np.arange(COUNT)[:, None]
    rounds = np.isin(steps["mode"], (Mode.ARITHMETIC, Mode.GEOMETRIC))
    start = np.where(steps["mode"][:, 0] == Mode.SET, "augmented original", "original")
    source = program.layers["source"][rows, steps["layer"]]
    same_shares(counts(start), recorded_counts("pixmix_start"))
    same_shares(counts(rounds.sum(axis=1)), recorded_counts("pixmix_number_of_rounds_k4"))
    names = np.where(source[rounds] == Source.POOL, "mixing picture", "augmented original")
    same_shares(counts(names), recorded_counts("pixmix_round_source"))
    same_shares(counts(blend_names(steps[rounds])), recorded_counts("pixmix_round_blend"))
    uses = ((source == Source.POOL) & rounds).any(axis=1)
    same_shares(counts(uses.astype(int)), recorded_counts("pixmix_run_uses_mixing_picture_k4"))
    same_shares(op_counts(program.ops), by_kind(recorded_counts("pixmix_op_extended_list"), False))
    conic_law(steps, f"pixmix_ab_beta{beta}")


def test_augmix() -> None:
    """Weights, depths and ops."""
    program = draw(AugMix()).program
    steps = program.steps
    m = 1 - steps["a"][:, 0]
    same_law(m, "augmix_m")
    weights = np.sort(steps["b"] / m[:, None], axis=1)
    for column, name in enumerate(("smallest", "middle", "largest")):
        same_law(weights[:, column], f"augmix_chain_weight_{name}")
    same_shares(counts((program.ops["code"] != Op.NONE).sum(axis=2)), recorded_counts("augmix_depth"))
    same_shares(op_counts(program.ops), by_kind(recorded_counts("augmix_op_base_list"), False))
    np.testing.assert_array_equal((draw(AugMix(depth=2), count=50).program.ops["code"] != Op.NONE).sum(axis=2), 2)


def chains_of(steps: Any) -> Any:
    """IPMix steps as (chain kind, number of patches) of all chains that are not empty."""
    starts = steps["mode"] == Mode.SET
    starts &= (steps["where"] == Where.EVERYWHERE) & (steps["clip"] == 0)
    image = steps["layer"][starts] != 0
    patches = np.cumsum(~starts & (steps["clip"] != 0), axis=1)
    row, column = np.nonzero(starts)
    end = np.array([np.flatnonzero(steps["mode"][r, c:] == Mode.SUM)[0] + c for r, c in zip(row, column, strict=True)])
    return image, patches[row, end] - patches[row, column]


def test_ipmix_chains() -> None:
    """Weights, kinds, lengths, blends and ops."""
    program = draw(IPMix(pool=POOL)).program
    steps = program.steps
    full = (steps["mode"] == Mode.SUM).sum(axis=1) == 4
    share = np.sort(steps["a"][full][steps["mode"][full] == Mode.SUM].reshape(-1, 4)[:, 1:], axis=1)
    same_law(share.sum(axis=1), "ipmix32_m")
    for column, name in enumerate(("smallest", "middle", "largest")):
        same_law(share[:, column] / share.sum(axis=1), f"ipmix32_branch_weight_{name}")
    image, patches = chains_of(steps)
    same_shares(counts(np.where(image, "image", "patch")), recorded_counts("ipmix32_branch_kind"))
    links = (program.ops["code"][:, 2:] != Op.NONE).sum(axis=2)
    for kind, lengths in (("image", links[links > 0]), ("patch", patches[~image])):
        theirs = recorded_counts(f"ipmix32_steps_{kind}_branch_t3")
        same_shares(counts(lengths), {length: number for length, number in theirs.items() if length})
        idle = 3 * COUNT - len(image)
        same_shares({0: idle, 1: len(image)}, {0: theirs[0], 1: sum(theirs.values()) - theirs[0]})
    patch = steps[steps["clip"] != 0]
    same_shares(counts(blend_names(patch)), recorded_counts("ipmix32_patch_blend"))
    same_law(patch["rate"][patch["where"] != Where.EVERYWHERE], "ipmix32_mask_ratio")
    conic_law(patch, "ipmix_ab_beta3")
    kinds = recorded_counts("ipmix32_chain_op")
    same_shares(op_counts(program.ops), by_kind(kinds, False))


def test_ipmix_boxes() -> None:
    """Box sides over all patch sizes, and every box inside the picture."""
    steps = draw(IPMix(pool=POOL)).program.steps
    patch = steps[steps["clip"] != 0]
    sizes, expected = recorded_counts("ipmix32_patch_size"), dict.fromkeys(range(2, 33), 0)
    for side, number in sizes.items():
        rectangles = recorded_counts(f"ipmix32_rectangle_width_patch{side}")
        for width, many in rectangles.items():
            expected[width] += many
        expected[side] += number - sum(rectangles.values())
    same_shares(counts(patch["right"] - patch["left"]), expected)
    same_shares(counts(patch["bottom"] - patch["top"]), expected)
    assert patch["left"].min() >= 0 and patch["right"].max() <= 32
    assert patch["top"].min() >= 0 and patch["bottom"].max() <= 32


@pytest.mark.parametrize("side", [4, 8, 16])
def test_ipmix_box_positions(side: int) -> None:
    """Left and top of the boxes of one patch size."""
    steps = draw(IPMix(pool=POOL, patch_sizes=(side,))).program.steps
    patch = steps[steps["clip"] != 0]
    for edge in ("left", "top"):
        same_shares(counts(patch[edge]), recorded_counts(f"ipmix32_{edge}_patch{side}"))


def test_ipmix_either_source() -> None:
    """The ImageNet program takes half of its patches from the picture itself, through one op."""
    program = draw(IPMix(pool=Pool(np.zeros((2, 224, 224, 3), np.uint8)), patch_source="either")).program
    patch = program.steps["clip"] != 0
    source = program.layers["source"][np.arange(COUNT)[:, None], program.steps["layer"]][patch]
    names = np.where(source == Source.POOL, "mixing picture", "augmented original")
    same_shares(counts(names), recorded_counts("ipmix224_patch_source"))


@pytest.mark.parametrize("beta", [3, 4])
def test_layermix(beta: int) -> None:
    """Depths, ops, blends at both places, ratios and weights."""
    program = draw(LayerMix(beta=beta, pool=POOL)).program
    steps = program.steps
    depth = (steps["mode"] != Mode.END).sum(axis=1)
    same_shares(counts(depth), recorded_counts("layermix_depth"))
    same_shares(op_counts(program.ops[:, 0]), by_kind(recorded_counts("layermix_op"), True))
    assert (program.ops["code"][depth > 1, 0] == program.ops["code"][depth > 1, 1]).all(axis=1).all()
    np.testing.assert_array_equal(program.finish["code"], np.where(depth == 3, program.ops["code"][:, 0, 0], 0))
    first, second = steps[depth > 1, 1], steps[depth > 2, 2]
    same_shares(counts(blend_names(first)), recorded_counts("layermix_blend_of_two_op_results"))
    same_shares(counts(blend_names(second)), recorded_counts("layermix_blend_with_mixing_picture"))
    both = np.concatenate([first, second])
    same_law(both["rate"][both["where"] != Where.EVERYWHERE], "layermix_mask_ratio")
    conic_law(both, f"layermix_ab_plain_beta{beta}")


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_mixup_weight_is_beta(alpha: float, mode: str) -> None:
    """Beta(alpha, alpha), one a sample or one a mix group."""
    params = draw(MixUp(alpha=alpha, mode=mode))
    weight = params.weight if mode == "elem" else params.weight[::16]
    grid = np.linspace(0.01, 0.99, 99)  # closer to 1, float32 itself is too coarse for small alpha
    ours = np.searchsorted(np.sort(weight), grid, side="right") / len(weight)
    assert np.abs(ours - stats.beta(alpha, alpha).cdf(grid)).max() < 2.2 / np.sqrt(len(weight))
    groups = params.weight.reshape(-1, 16)
    assert (groups == groups[:, :1]).all() == (mode == "batch")


@pytest.mark.parametrize("size", [32, 7])
def test_cutmix_boxes_follow_the_paper(size: int) -> None:
    """Areas and edges of 20000 boxes against the paper's procedure run with NumPy's own generator."""
    rng = np.random.default_rng(5)
    ratio = np.sqrt(1 - rng.beta(1, 1, COUNT))
    half = (size * ratio).astype(int) // 2
    centre = rng.integers(0, size, (2, COUNT))
    low, high = np.clip(centre - half, 0, size), np.clip(centre + half, 0, size)
    params = draw(CutMix(mode="elem"), size)
    step = params.program.steps[:, 0]
    ours = (step["bottom"] - step["top"]) * (step["right"] - step["left"])
    theirs = (high[0] - low[0]) * (high[1] - low[1])
    assert stats.ks_2samp(ours, theirs).pvalue > WEAKEST
    same_shares(counts(step["left"]), counts(low[1]))
    same_shares(counts(step["bottom"]), counts(high[0]))
    np.testing.assert_allclose(params.weight, 1 - ours / size**2, atol=1e-6)


def test_pool_windows_are_uniform() -> None:
    """Every picture and every window of the pool is equally likely."""
    layer = draw(LayerMix(pool=POOL)).program.layers[:, 2]
    for field, options in (("index", 7), ("top", 5), ("left", 9)):
        found = np.bincount(layer[field], minlength=options)
        assert len(found) == options and stats.chisquare(found).pvalue > WEAKEST


def test_simplex_is_flat_dirichlet() -> None:
    """Marginals of Dirichlet(1, 1, 1) are Beta(1, 2)."""
    weights = simplex(np.random.default_rng(1).random((COUNT, 3)))
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    for column in range(3):
        assert stats.kstest(weights[:, column], stats.beta(1, 2).cdf).pvalue > WEAKEST
