"""Same draws in, same picture out: recorded runs of the published programs, replayed as programs on every backend.

A picture is compared in levels before it was rounded: the recorded one times 255 against our uint8 one, so that half a
level is a perfect score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import golden
import numpy as np
import pytest

from fastmix.kernels import Backend, Clip, Program

HALF = 0.5 + 1e-2  # the one rounding to uint8, and the error of float32 powers next to its edge


def differences(
    backend: Backend, method: str, size: str, build: Callable[[Any], Program], output: str = "output"
) -> tuple[list[dict[str, Any]], Any]:
    """The runs of a method and (runs, rows, columns, 3) levels between ours and theirs."""
    logs = golden.runs(method, size)
    wanted = golden.GOLDEN[f"{method}_{output}_{size}"]
    assert len(logs) == len(wanted)
    found = [
        golden.difference(backend, method, size, log, build(log), picture)
        for log, picture in zip(logs, wanted, strict=True)
    ]
    return logs, np.array(found)


@pytest.mark.parametrize("size", golden.SIZES)
@pytest.mark.parametrize(("method", "build"), [("pixmix", golden.pixmix), ("augmix", golden.augmix)])
def test_pixmix_and_augmix_everywhere(backend: Backend, method: str, build: Any, size: str) -> None:
    """All arithmetic up to the end is theirs, so only the rounding to uint8 is left."""
    _, found = differences(backend, method, size, build)
    np.testing.assert_array_less(found, HALF)


@pytest.mark.parametrize("size", golden.SIZES)
@pytest.mark.parametrize(("output", "clip"), [("output", Clip.WRAP), ("saturating", Clip.CUT)])
def test_ipmix(backend: Backend, size: str, output: str, clip: Clip) -> None:
    """A patch is cut to uint8, and the last place of a power may move a value over that edge: in at most 1e-4 of all.

    The reference backend has none such.
    """
    _, found = differences(backend, "ipmix", size, lambda log: golden.ipmix(log, clip), output)
    assert (found >= HALF).mean() <= 1e-4


def test_ipmix_wraps_where_it_was_published_to_wrap(backend: Backend) -> None:
    """Both overflow rules differ on the recorded runs, so the tests above tell them apart."""
    _, found = differences(backend, "ipmix", "32", lambda log: golden.ipmix(log, Clip.CUT), "output")
    assert (found > 1).mean() > 1e-3


@pytest.mark.parametrize("size", golden.SIZES)
def test_layermix(backend: Backend, size: str) -> None:
    """The released program keeps layers in floating point; ours are pictures, rounded to uint8.  So:

    - one layer: only the last rounding;
    - two layers: half a level each, through weights of up to 2: at most 1.1 levels;
    - three layers: the blended picture is rounded once more before the last op.  Within 2 levels but for 0.5 % of
      values: those next to a threshold of posterize or solarize, and the black edges of a warp under "multiply", whose
      slope is unbounded at 0.  Equalize redistributes its input's histogram: 6 % beyond 2 levels, 10 at most.
    """
    logs, found = differences(backend, "layermix", size, golden.layermix)
    for number, (log, levels) in enumerate(zip(logs, found, strict=True)):
        case = f"run {number}: {log['op']}, depth {log['depth']}, magnitude {log['magnitude']}"
        if log["depth"] == 1:
            assert levels.max() < HALF, case
        elif log["depth"] == 2:
            assert levels.max() < 1.1 and levels.mean() < 0.35, case
        elif log["op"] == "equalize":
            assert levels.max() < 10 and (levels > 2).mean() < 0.06 and levels.mean() < 0.6, case
        else:
            assert (levels > 2).mean() < 0.005 and (levels > 1.1).mean() < 0.04 and levels.mean() < 1, case


def test_recorded_runs_cover_every_branch() -> None:
    """All depths and ops of LayerMix, all blends of IPMix, both starts of PixMix occur in the recorded runs."""
    layermix = {(log["op"], log["depth"]) for log in golden.runs("layermix", "32")}
    assert len(layermix) == 36
    pixmix = golden.runs("pixmix", "32")
    assert {"op" in log["start"] for log in pixmix} == {True, False}
    assert {log["number_of_rounds"] for log in pixmix} == {0, 1, 2, 3, 4}
    links = [step for log in golden.runs("ipmix", "224") for branch in log["branches"] for step in branch["steps"]]
    assert {step.get("blend") for step in links} == {None, "add", "multiply", "random_pixels", "random_elems"}
    assert {step.get("source") for step in links} >= {"mixing picture", "augmented original"}
