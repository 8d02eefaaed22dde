"""The checks can fail: each wrong kernel below is caught by the very function that the real tests call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from checks import (
    cases,
    check_blend,
    check_box,
    check_masked,
    check_paste,
    check_pillow_case,
    check_random_mask,
    check_rounding,
    check_torchvision_case,
    check_translate,
)
from checks_saliency import (
    check_distances,
    check_enlarge,
    check_join,
    check_otsu,
    check_quantise,
    check_quantise_otsu,
    check_residual,
    check_share,
    check_windows,
    few_levels,
)

from fastmix.kernels import Backend, Mode, Op, Program, Where, reference


def wrong(**kernels: Callable[..., None]) -> Backend:
    """The reference with some kernels replaced."""
    return cast(Backend, SimpleNamespace(**{**vars(reference), **kernels}))


def _changed(program: Program, name: str, change: Callable[[Any], Any]) -> Program:
    steps = program.steps.copy()
    steps[name] = change(steps[name])
    return replace(program, steps=steps)


def _wide_box(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    width = images.shape[2]
    reference.mix(images, pool, _changed(program, "right", lambda v: np.minimum(v + 1, width)), out, lo, hi)


def _high_box(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    reference.mix(images, pool, _changed(program, "top", lambda v: np.maximum(v - 1, 0)), out, lo, hi)


def _next_stream(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    reference.mix(images, pool, _changed(program, "stream", lambda v: v + 1), out, lo, hi)


def _truncating(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        out[i] = np.clip(reference.fold(images, pool, program, i), 0, 255)


def _half_down(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        out[i] = np.clip(np.ceil(reference.fold(images, pool, program, i) - 0.5), 0, 255)


def _inverse_mask(images: Any, pool: Any, program: Program, out: Any, lo: int, hi: int) -> None:
    reference.mix(images, pool, replace(program, masks=255 - program.masks), out, lo, hi)


def _paste_below(images: Any, partner: Any, source_boxes: Any, boxes: Any, out: Any, lo: int, hi: int) -> None:
    reference.paste(
        images, partner, source_boxes, np.minimum(np.add(boxes, [1, 0, 1, 0]), images.shape[1]), out, lo, hi
    )


def _paste_from_right(images: Any, partner: Any, source_boxes: Any, boxes: Any, out: Any, lo: int, hi: int) -> None:
    reference.paste(images, partner, np.add(source_boxes, [1, 0, 0, 0]), boxes, out, lo, hi)


def _warp_by_one(images: Any, matrices: Any, out: Any, lo: int, hi: int) -> None:
    reference.warp(images, np.add(matrices, [0, 0, 1, 0, 0, 0]), out, lo, hi)


def _residual_of_one_row_below(images: Any, out: Any, lo: int, hi: int) -> None:
    reference.spectral_residual(np.roll(images, -1, 1), out, lo, hi)


def _squared_magnitude(images: Any, out: Any, lo: int, hi: int) -> None:
    reference.spectral_residual(images, out, lo, hi)
    out[lo:hi] **= 2


def _enlarge_between_corners(maps: Any, out: Any, lo: int, hi: int) -> None:
    """The centres of the outermost cells at the centres of the outermost pixels."""
    for i in range(lo, hi):
        picture = maps[i]
        for axis, pixels in ((1, out.shape[2]), (0, out.shape[1])):
            at = np.arange(picture.shape[axis])
            places = np.linspace(0, at[-1], pixels)
            picture = np.apply_along_axis(lambda line, p=places, c=at: np.interp(p, c, line), axis, picture)
        out[i] = picture


def _quantise_by_255(maps: Any, out: Any, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        out[i] = np.floor((maps[i] - maps[i].min()) * (255 / np.ptp(maps[i])))


def _otsu_always_first(levels: Any, _middle: bool, out: Any, lo: int, hi: int) -> None:
    reference.otsu(levels, False, out, lo, hi)


def _otsu_last_of_ties(levels: Any, middle: bool, out: Any, lo: int, hi: int) -> None:
    """The first of ties of the negative, seen from its other end."""
    reference.otsu(255 - levels, middle, out, lo, hi)
    for i in range(lo, hi):
        lower = levels[i][levels[i] <= 254 - out[i]]
        out[i] = lower.max() if lower.size else 255


def _otsu_of_the_row_before(maps: Any, middle: bool, levels: Any, out: Any, lo: int, hi: int) -> None:
    reference.quantise_otsu(maps, middle, levels, out, lo, hi)
    out[lo + 1 : hi] = out[lo : hi - 1].copy()


def _join_at_thresholds(levels: Any, thresholds: Any, *rest: Any) -> None:
    reference.join_masks(levels, thresholds - 1, *rest)


def _join_swaps_areas(
    levels: Any, thresholds: Any, partner: Any, union: bool, out: Any, areas: Any, *rows: int
) -> None:
    reference.join_masks(levels, thresholds, partner, union, out, areas, *rows)
    areas[slice(*rows), :2] = areas[slice(*rows), 1::-1]


def _join_the_other_way(levels: Any, thresholds: Any, partner: Any, union: bool, *rest: Any) -> None:
    reference.join_masks(levels, thresholds, partner, not union, *rest)


def _share_of_partner(maps: Any, partner: Any, out: Any, sums: Any, lo: int, hi: int) -> None:
    reference.share_masks(maps, partner, out, sums, lo, hi)
    out[lo:hi] = 255 - out[lo:hi]
    sums[lo:hi] = out[lo:hi].sum((1, 2), np.int64)


def _share_one_level_down(maps: Any, partner: Any, out: Any, sums: Any, lo: int, hi: int) -> None:
    reference.share_masks(maps, partner, out, sums, lo, hi)
    out[lo:hi] -= out[lo:hi] > 0
    sums[lo:hi] = out[lo:hi].sum((1, 2), np.int64)


def _sum_of_a_row(maps: Any, partner: Any, out: Any, sums: Any, lo: int, hi: int) -> None:
    reference.share_masks(maps, partner, out, sums, lo, hi)
    sums[lo:hi] = out[lo:hi, 0].sum(1, np.int64)


def _last_best_window(levels: Any, sides: Any, out: Any, lo: int, hi: int) -> None:
    reference.best_windows(levels[:, ::-1, ::-1], sides, out, lo, hi)
    out[lo:hi] = np.array(levels.shape[1:]) - sides[lo:hi] - out[lo:hi]


def _distance_without_last(maps: Any, others: Any, out: Any, lo: int, hi: int) -> None:
    reference.distances(maps[:, :-1], others[:, :-1], out, lo, hi)


def _op_with(code: Op, step: float, number: int) -> Callable[..., None]:
    """The ops with one parameter of one op off by `step`."""

    def op(images: Any, ops: Any, out: Any, lo: int, hi: int) -> None:
        ops = ops.copy()
        ops["p"][:, number] += step * (ops["code"] == code)
        reference.op(images, ops, out, lo, hi)

    return op


def _cases(name: str, op: str) -> list[dict[str, Any]]:
    return [case for case in cases(name) if case["op"] == op]


def _all(check: Callable[..., None], name: str, op: str) -> Callable[[Backend], None]:
    def run(backend: Backend) -> None:
        for case in _cases(name, op):
            check(backend, case)

    return run


FAULTS: dict[str, tuple[Backend, Callable[[Backend], None]]] = {
    "box one column too wide": (wrong(mix=_wide_box), lambda b: check_box(b, (2, 3, 5, 7))),
    "box one row too high": (wrong(mix=_high_box), lambda b: check_box(b, (2, 3, 5, 7))),
    "fold truncates": (wrong(mix=_truncating), check_rounding),
    "fold rounds half down": (wrong(mix=_half_down), check_rounding),
    "fold truncates a blend": (wrong(mix=_truncating), lambda b: check_blend(b, "pixmix_add", Mode.ARITHMETIC, 0)),
    "fold truncates a power": (wrong(mix=_truncating), lambda b: check_blend(b, "pixmix_multiply", Mode.GEOMETRIC, 0)),
    "mask upside down": (wrong(mix=_inverse_mask), lambda b: check_masked(b, "ipmix_pixel", 0)),
    "draws of another stream": (wrong(mix=_next_stream), lambda b: check_random_mask(b, Where.PIXELS, 0.5)),
    "paste one row below": (wrong(paste=_paste_below), lambda b: check_paste(b, (2, 3, 5, 7), (3, 2))),
    "paste from one column right": (wrong(paste=_paste_from_right), lambda b: check_paste(b, (2, 3, 5, 7), (3, 2))),
    "warp by one pixel": (wrong(warp=_warp_by_one), lambda b: check_translate(b, (2, -3))),
    "translate by one pixel": (wrong(op=_op_with(Op.WARP, 1, 2)), lambda b: check_translate(b, (2, -3))),
    "float translate by one pixel": (wrong(op=_op_with(Op.FLOAT_WARP, 1, 2)), lambda b: check_translate(b, (2, -3))),
    "recorded translate": (wrong(op=_op_with(Op.WARP, 1, 2)), _all(check_pillow_case, "pillow_cases", "translate_x")),
    "solarize threshold": (wrong(op=_op_with(Op.SOLARIZE, 1, 0)), _all(check_pillow_case, "pillow_cases", "solarize")),
    "enhance factor": (wrong(op=_op_with(Op.COLOR, 1e-2, 0)), _all(check_pillow_case, "pillow_cases", "color")),
    "float shift by 1/20 pixel": (
        wrong(op=_op_with(Op.FLOAT_WARP, 0.05, 5)),
        _all(check_torchvision_case, "torchvision_cases", "translate_y"),
    ),
    "residual of one row below": (
        wrong(spectral_residual=_residual_of_one_row_below),
        lambda b: check_residual(b, (61, 90), (16, 21)),
    ),
    "residual squared": (
        wrong(spectral_residual=_squared_magnitude),
        lambda b: check_residual(b, (61, 90), (16, 21)),
    ),
    "enlarged between corners": (wrong(enlarge=_enlarge_between_corners), lambda b: check_enlarge(b, (5, 3), (37, 29))),
    "255 bins": (wrong(quantise=_quantise_by_255), lambda b: check_quantise(b, (37, 29))),
    "otsu knows no middle": (
        wrong(otsu=_otsu_always_first),
        lambda b: check_otsu(b, True, few_levels(60, (6, 6))),
    ),
    "otsu takes the last of ties": (
        wrong(otsu=_otsu_last_of_ties),
        lambda b: check_otsu(b, False, few_levels(60, (6, 6))),
    ),
    "threshold of another map": (
        wrong(quantise_otsu=_otsu_of_the_row_before),
        lambda b: check_quantise_otsu(b, (37, 29)),
    ),
    "mask at its threshold": (wrong(join_masks=_join_at_thresholds), lambda b: check_join(b, True, (5, 3))),
    "areas of masks swapped": (wrong(join_masks=_join_swaps_areas), lambda b: check_join(b, True, (5, 3))),
    "union for intersection": (wrong(join_masks=_join_the_other_way), lambda b: check_join(b, False, (5, 3))),
    "share of the partner": (wrong(share_masks=_share_of_partner), lambda b: check_share(b, (5, 3), (37, 29))),
    "sum of a row": (wrong(share_masks=_sum_of_a_row), lambda b: check_share(b, (5, 3), (37, 29))),
    "share rounded down": (wrong(share_masks=_share_one_level_down), lambda b: check_share(b, (5, 3), (37, 29))),
    "last of the best windows": (wrong(best_windows=_last_best_window), lambda b: check_windows(b, (37, 29))),
    "distance without the last place": (wrong(distances=_distance_without_last), lambda b: check_distances(b, 33)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_caught(fault: str) -> None:
    backend, check = FAULTS[fault]
    check(reference)
    with pytest.raises(AssertionError):
        check(backend)
