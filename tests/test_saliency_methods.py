"""SGMix, SaliencyMix and GuidedMixup against OpenCV, scikit-image, SciPy and plain Python, on maps of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import cv2
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from skimage.filters import threshold_otsu

from fastmix import mixing, saliency
from fastmix.kernels import Backend, Mode, Source
from fastmix.methods import _saliency, guidedmixup, saliencymix, sgmix
from fastmix.methods._saliency import farthest_cycle, nearest
from fastmix.methods.guidedmixup import GuidedMixup
from fastmix.methods.saliencymix import SaliencyMix
from fastmix.methods.sgmix import Outcome, SGMix
from fastmix.rng import Key
from fastmix.types import Batch, Method, Params, Targets

KEY = Key(7, 2)
NAN = float("nan")
METHODS: list[Any] = [
    SGMix(),
    SGMix(group=5, min_area=0, max_area=1),
    SaliencyMix(),
    SaliencyMix.cifar(locate="boxsum", group=5),
    SaliencyMix(border="shift", alpha=0.5),
    GuidedMixup(),
    GuidedMixup(prob=0.6, blur=0, group=5),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:40])
both_ways = pytest.mark.parametrize("size", [(32, 32), (16, 64), (8, 8)])  # powers of two: nothing is rounded


def some_maps(count: int, shape: tuple[int, int] = (8, 8), seed: int = 0) -> Any:
    """Eighths, with one 1 and one 0 each; every fourth map has unknown cells, every fifth has no others."""
    rng = np.random.default_rng(seed)
    maps = (rng.integers(0, 9, (count, *shape)) / 8).astype(np.float32)
    maps[:, 2, 1], maps[:, 1, 2] = 0, 1
    holes = rng.random(maps[::4].shape) < 0.4
    holes[:, 1:3, 1:3] = False
    maps[::4][holes] = np.nan
    maps[3::5] = np.nan
    return maps


def batch(count: int, size: tuple[int, int] = (16, 12), maps: Any = "some") -> Batch:
    images = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    made = Batch.of(images, np.arange(count) % 4, np.arange(count) * 3 + 100)
    return replace(made, maps=some_maps(count) if isinstance(maps, str) else maps)


def picked(given: Batch, rows: Any) -> Batch:
    made = Batch.of(given.images[rows], given.targets.a[rows], given.targets.ids[rows])
    return replace(made, maps=given.maps[rows])  # type: ignore[index]


@pytest.fixture
def run(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Batch]:
    """`mixing.mix` with draw and apply on the backend under test."""
    for module in (mixing, saliency, _saliency, sgmix, saliencymix, guidedmixup):
        monkeypatch.setattr(module, "backend_for", lambda _: backend)
    return mixing.mix


def filled(maps: Any) -> Any:
    """Unknown cells as the least known one, map by map."""
    return np.stack(
        [np.where(np.isfinite(m), m, np.nanmin(np.where(np.isfinite(m), m, np.nan), initial=9)) for m in maps]
    )


def large(one: Any, size: tuple[int, int]) -> Any:
    return cv2.resize(np.ascontiguousarray(one), size[::-1], interpolation=cv2.INTER_LINEAR)


def levels(one: Any, size: tuple[int, int]) -> Any:
    """The bins, 256 equal ones, of an enlarged map whose range is in eighths."""
    big = large(one, size).astype(np.float64)
    return np.minimum(np.floor((big - big.min()) / (big.max() - big.min()) * 256), 255).astype(np.uint8)


def objects(one: Any, size: tuple[int, int]) -> Any:
    found = levels(one, size)
    return found > threshold_otsu(found)


# ------------------------------------------------------------------ what every method keeps


@every_method
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 3), (32, 32)])
@pytest.mark.parametrize("count", [1, 2, 17, 33])
def test_any_batch_and_picture_size(run: Any, method: Any, count: int, size: tuple[int, int]) -> None:
    given = batch(count, size)
    assert given.maps is not None
    before = given.images.tobytes(), given.targets.a.tobytes(), given.maps.tobytes()
    mixed, again = run(method, given, KEY), run(method, given, KEY)
    assert before == (given.images.tobytes(), given.targets.a.tobytes(), given.maps.tobytes()) and mixed.maps is None
    np.testing.assert_array_equal(mixed.images, again.images)
    np.testing.assert_array_equal(mixed.targets.w, again.targets.w)
    np.testing.assert_allclose(mixed.targets.soft(4).sum(axis=1), 1, atol=1e-6)
    assert mixed.targets.w.dtype == np.float32 and ((mixed.targets.w >= 0) & (mixed.targets.w <= 1)).all()
    if count == 1 or method.label_preserving:
        np.testing.assert_array_equal(mixed.targets.a, given.targets.a)
        assert (mixed.targets.w == 1).all() and (mixed.targets.b == given.targets.b).all()
    assert count > 1 or (mixed.images == given.images).all()
    assert count < 33 or size != (32, 32) or (mixed.images != given.images).any((1, 2, 3)).sum() > 8


@pytest.mark.parametrize("method", [m for m in METHODS if not m.label_preserving], ids=lambda m: repr(m)[:40])
@pytest.mark.parametrize("size", [(5, 3), (32, 32)])
def test_the_weight_is_the_realised_share(run: Any, method: Any, size: tuple[int, int]) -> None:
    """One picture is white and the others black: the mean of a mixed one is the share that white has in it."""
    given, shown = batch(12, size), np.zeros(12)
    for white in range(12):
        images = np.zeros_like(given.images)
        images[white] = 255
        mixed = run(method, replace(given, images=images, targets=Targets.of(given.targets.ids, np.arange(12))), KEY)
        t = mixed.targets
        expected = np.where(t.a == white, t.w, 0) + np.where(t.b == white, 1 - t.w, 0)
        np.testing.assert_allclose(mixed.images.mean((1, 2, 3)) / 255, expected, atol=1e-6)
        shown += expected
    np.testing.assert_allclose(shown, 1, atol=1e-6)
    assert size != (32, 32) or (mixed.targets.w < 1).sum() >= 2


@every_method
def test_permuting_inside_groups_permutes_everything(run: Any, method: Any) -> None:
    given, group = batch(33), method.group
    given.maps[5:8] = given.maps[16:20] = given.maps[5]  # type: ignore[index]  # with mates that are equally far
    rng = np.random.default_rng(4)
    order = np.concatenate([rng.permutation(part) for part in np.split(np.arange(33), range(group, 33, group))])
    here, there = run(method, given, KEY), run(method, picked(given, order), KEY)
    np.testing.assert_array_equal(there.images, here.images[order])
    np.testing.assert_array_equal(there.targets.b, here.targets.b[order])
    np.testing.assert_array_equal(there.targets.w, here.targets.w[order])
    parts = [run(method, picked(given, rows), KEY).images for rows in np.split(np.arange(33), [group])]
    np.testing.assert_array_equal(np.concatenate(parts), here.images)


def drawn(params: Params) -> list[bytes]:
    program = params.program
    parts = (program.layers, program.ops, program.steps, program.masks, params.partner, params.weight)
    return [part.tobytes() for part in parts]


@every_method
def test_draws_see_ids_and_maps_alone(method: Any) -> None:
    given = batch(17, (32, 32))
    params = method.draw(KEY, given)
    assert drawn(method.draw(KEY, replace(given, images=np.zeros_like(given.images)))) == drawn(params)
    assert drawn(method.draw(KEY, replace(given, maps=some_maps(17, seed=9)))) != drawn(params)
    others = [drawn(method.draw(other, given))[2:] for other in (Key(7, 3), Key(8, 2), Key(7, 2, view=1))]
    changed = [other != drawn(params)[2:] for other in others]
    assert any(changed) != isinstance(method, SGMix)  # where one comes first in a circle of two ways is all there is
    scale = 2.0 ** np.arange(-8, 9)[:, None, None]  # each map has its own
    assert drawn(method.draw(KEY, replace(given, maps=given.maps * scale))) == drawn(params)


@every_method
def test_nothing_to_mix_by_is_the_identity(run: Any, method: Any) -> None:
    given = batch(17, (32, 32))
    unknown = np.full((17, 8, 8), NAN)
    for switched, case in ((False, given), (True, replace(given, maps=None)), (True, replace(given, maps=unknown))):
        mixed = run(replace(method, enabled=switched), case, KEY)
        np.testing.assert_array_equal(mixed.images, given.images)
        np.testing.assert_array_equal(mixed.targets.w, 1)
        np.testing.assert_array_equal(mixed.targets.b, given.targets.b)


@every_method
def test_methods_are_methods(method: Any) -> None:
    assert isinstance(method, Method) and method.uses_maps and fields(method)[-1].name == "enabled"
    for maps in (None, some_maps(16)):
        layers = method.draw(Key(0), batch(16, maps=maps)).program.layers
        assert (layers["source"] == Source.MATE).all()  # so that a loader knows that samples are mixed with each other


@every_method
@pytest.mark.parametrize(
    "maps", [np.zeros((2, 8, 8)), np.zeros((3, 8)), np.zeros((3, 0, 8)), np.zeros((3, 8, 8), "U1")]
)
def test_wrong_maps(method: Any, maps: Any) -> None:
    with pytest.raises(ValueError, match=r"maps are .* \(.*\).* expected numbers \(N, h, w\)"):
        method.draw(KEY, batch(3, maps=maps))


BAD: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {"group": value}) for kind in (SGMix, SaliencyMix, GuidedMixup) for value in (0, 2.5)),
    *((kind, {"num_classes": 0}) for kind in (SaliencyMix, GuidedMixup)),
    *((kind, {"prob": value}) for kind in (SaliencyMix, GuidedMixup) for value in (-0.1, 1.5, NAN, "half")),
    *((SGMix, {"min_area": value}) for value in (-0.1, 0.95, NAN, "small")),
    *((SGMix, {"max_area": value}) for value in (0.02, 1.1, NAN, None)),
    *((SaliencyMix, {"alpha": value}) for value in (0, -1, NAN)),
    (SaliencyMix, {"border": "wrap"}),
    (SaliencyMix, {"locate": "random"}),
    *((GuidedMixup, {"blur": value}) for value in (-1, NAN, "much")),
]


@pytest.mark.parametrize(("kind", "setting"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_settings(kind: Any, setting: dict[str, Any]) -> None:
    [(field, value)] = setting.items()
    with pytest.raises(ValueError, match=r"_?\w+ is .*, expected .*: .") as error:
        kind(**setting)
    assert field in str(error.value) and repr(value) in str(error.value)


# ------------------------------------------------------------------ SGMix


@both_ways
def test_sgmix_composes_by_the_union_of_both_objects(run: Any, size: tuple[int, int]) -> None:
    """Enlarged by OpenCV, parted by scikit-image, nearest by SciPy; the maps are such that nothing is rounded."""
    given, maps = batch(32, size), filled(some_maps(32))
    known = np.array([np.ptp(m) > 0 for m in maps])
    mixed, outcome = run(SGMix(), given, KEY), SGMix().outcomes(given)
    away = cdist(maps.reshape(32, -1), maps.reshape(32, -1))
    away[:, ~known] = np.inf
    np.fill_diagonal(away, np.inf)
    for row in range(32):
        assert (outcome[row] == Outcome.NO_CONTRAST) == (not known[row])
        if outcome[row] == Outcome.UNION:
            target = away[row].argmin()
            own = objects(maps[row], size) | objects(maps[target], size)
            expected = np.where(own[..., None], given.images[row], given.images[target])
            np.testing.assert_array_equal(mixed.images[row], expected)
    assert (outcome == Outcome.UNION).sum() > 20


@pytest.mark.parametrize("size", [(224, 224), (45, 71)])
def test_sgmix_masks_at_any_size(size: tuple[int, int]) -> None:
    """As above; here a value next to the edge of a bin may fall to either side of it, and Otsu's threshold follow."""
    given, maps = batch(8, size, some_maps(8)), filled(some_maps(8))
    params, outcome = SGMix().draw(KEY, given), SGMix().outcomes(given)
    for row in np.flatnonzero(outcome == Outcome.UNION):
        target = params.program.layers["index"][row, 0]
        expected = objects(maps[row], size) | objects(maps[target], size)
        wrong = (params.program.masks[row, ..., 0] == 255) != expected
        assert wrong.mean() < 0.005
    assert (outcome == Outcome.UNION).sum() > 5


def test_sgmix_truth_table(run: Any) -> None:
    """2 x 2 maps and pictures: object of both, of one, of the other, and of neither, where the target is seen."""
    maps = np.array([[[1, 1], [0, 0]], [[1, 0], [1, 0]]], np.float32)
    images = np.stack([np.full((2, 2, 3), value, np.uint8) for value in (10, 200)])
    mixed = run(SGMix(), replace(Batch.of(images, [0, 1]), maps=maps), KEY)
    np.testing.assert_array_equal(mixed.images[..., 0], [[[10, 10], [10, 200]], [[200, 200], [200, 10]]])
    np.testing.assert_array_equal(mixed.targets.soft(2), np.eye(2))


def test_sgmix_policy() -> None:
    """Pairs of objects of so many of 100 pixels, from this pixel on: what becomes of either picture."""
    union, own, small, wide, none, alone = Outcome
    for (one, first), (other, second), expected in [
        ((30, 0), (40, 50), (union, union)),
        ((94, 0), (10, 0), (union, union)),
        ((50, 0), (50, 50), (own, own)),  # nothing but objects
        ((1, 5), (1, 5), (small, small)),
        ((2, 5), (1, 5), (union, union)),  # exactly min_area
        ((1, 0), (1, 1), (union, union)),
        ((95, 0), (10, 0), (wide, own)),  # exactly max_area
        ((99, 0), (1, 99), (wide, small)),
        ((0, 0), (5, 0), (none, alone)),
        ((100, 0), (5, 0), (none, alone)),
    ]:
        maps = np.zeros((2, 100), np.float32)
        maps[0, first : first + one], maps[1, second : second + other] = 3, 2
        given = batch(2, (10, 10), maps.reshape(2, 10, 10))
        np.testing.assert_array_equal(SGMix().outcomes(given), expected, str((one, other)))
        program = SGMix().draw(KEY, given).program
        np.testing.assert_array_equal(program.steps["mode"][:, 0] == Mode.SET, np.array(expected) <= own)
        for row in np.flatnonzero(np.array(expected) == own):
            np.testing.assert_array_equal(program.masks[row].ravel() == 255, maps[row] > 0)
    assert SGMix().outcomes(batch(1)).tolist() == [alone] and SGMix().outcomes(batch(2, maps=None)).tolist() == [
        none,
        none,
    ]
    assert SGMix(group=1).outcomes(batch(2)).tolist() == [alone, alone]


def test_equally_near_mates() -> None:
    away = np.array([[[NAN, 2, 2], [2, NAN, 1], [2, 1, NAN]], [[NAN, NAN, 0], [NAN] * 3, [0, NAN, NAN]]])
    np.testing.assert_array_equal(nearest(away), [[1, 2, 1], [2, 1, 0]])


# ------------------------------------------------------------------ SaliencyMix


def boxes(params: Params) -> Any:
    return np.stack([params.program.steps[side][:, 0] for side in ("top", "left", "bottom", "right")], 1)


@both_ways
def test_saliencymix_boxes_are_around_the_partners_peak(size: tuple[int, int]) -> None:
    """Both ways to meet the border, and the largest sum of all windows, for the same sizes and partners."""
    given, maps = batch(64, size, some_maps(64)), filled(some_maps(64))
    inside, clipped, best = (
        SaliencyMix(**change).draw(KEY, given)
        for change in ({"border": "shift"}, {}, {"locate": "boxsum"})  # type: ignore[arg-type]
    )
    mixed, reached = np.flatnonzero(inside.program.steps["mode"][:, 0]), 0
    np.testing.assert_array_equal(inside.partner == np.arange(64), inside.weight == 1)
    for row in mixed:
        top, left, bottom, right = boxes(inside)[row]
        map_ = maps[inside.partner[row]]
        big = large(map_, size)
        y, x = np.unravel_index(big.argmax(), size)
        half, wide = (bottom - top) // 2, (right - left) // 2
        assert (top, left) == (min(max(y - half, 0), size[0] - 2 * half), min(max(x - wide, 0), size[1] - 2 * wide))
        cut = max(y - half, 0), max(x - wide, 0), min(y + half, size[0]), min(x + wide, size[1])
        np.testing.assert_array_equal(boxes(clipped)[row], cut)
        area = (cut[2] - cut[0]) * (cut[3] - cut[1])
        assert clipped.weight[row] == np.float32(1 - area / (size[0] * size[1]))
        reached += area < (bottom - top) * (right - left)
        sums = np.lib.stride_tricks.sliding_window_view(
            levels(map_, size).astype(int), (bottom - top, right - left)
        ).sum((2, 3))
        at = np.unravel_index(sums.argmax(), sums.shape)
        np.testing.assert_array_equal(boxes(best)[row], (*at, at[0] + 2 * half, at[1] + 2 * wide))
    assert len(mixed) > 30 and reached > 10
    known = ~np.isnan(given.maps).all((1, 2))  # type: ignore[arg-type]
    assert known[inside.partner[mixed]].all()


def test_saliencymix_sizes_and_chance() -> None:
    """1 - lam is uniform for alpha 1: so is the area, sides being rounded down to even ones."""
    given = batch(2000, (64, 64), np.tile(np.eye(2, dtype=np.float32), (2000, 1, 1)))
    made = boxes(SaliencyMix(border="shift").draw(KEY, given))
    mixed = SaliencyMix(border="shift").draw(KEY, given).program.steps["mode"][:, 0] == Mode.SET
    side = np.where(mixed, made[:, 2] - made[:, 0], 0) + 2 * np.random.default_rng(0).random(2000)
    assert stats.kstest(np.minimum(side / 64, 1) ** 2, "uniform").pvalue > 1e-3
    for method in (SaliencyMix.cifar(), GuidedMixup(prob=0.5)):
        half, never = (replace(method, prob=prob).draw(KEY, given).weight < 1 for prob in (0.5, 0))
        assert 900 < half.sum() < 1100 and not never.any()
    assert SaliencyMix.cifar().prob == 0.5 and SaliencyMix.imagenet() == SaliencyMix()


# ------------------------------------------------------------------ GuidedMixup


def circle(away: Any, start: int, second: int) -> list[int]:
    """Partners along the greatest distances in plain Python, from a pair on."""
    after, at, free = {start: second}, second, set(range(len(away))) - {start, second}
    while free:
        after[at] = max(sorted(free), key=lambda k: away[at][k])
        at = after[at]
        free.remove(at)
    return [{**after, at: start}[k] for k in range(len(away))]


def test_the_circle_along_the_greatest_distances() -> None:
    """The published example; any distances, with rows left out; and maps that are all the same."""
    features = np.array([[0.0], [1], [5], [10]])
    away = cdist(features, features)[None]
    away[:, range(4), range(4)] = NAN
    np.testing.assert_array_equal(farthest_cycle(away), [[3, 2, 0, 1]])
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 7, 16):
        some = rng.integers(0, 9, (50, count, 2)).astype(float)
        some[::5] = 4
        absent = rng.random((50, count)) < 0.3
        distance = np.stack([cdist(each, each) for each in some])
        distance[:, range(count), range(count)] = NAN
        distance[absent] = NAN
        distance.swapaxes(1, 2)[absent] = NAN
        found = farthest_cycle(distance)
        for group in range(50):
            rows = np.flatnonzero(~absent[group])
            expected = np.arange(count)
            if len(rows) > 1:
                inner = np.where(np.isnan(d := distance[group][np.ix_(rows, rows)]), -1, d)
                expected[rows] = rows[circle(inner.tolist(), *np.unravel_index(inner.argmax(), inner.shape))]  # type: ignore[arg-type]
                assert (expected[rows] != rows).all() and sorted(expected[rows]) == rows.tolist()
            np.testing.assert_array_equal(found[group], expected)


def expected_shares(maps: Any, blur: float) -> Any:
    """Maps blurred by OpenCV, with mean 1."""
    made = [cv2.GaussianBlur(m, (7, 7), blur, borderType=cv2.BORDER_REPLICATE) if blur else m for m in maps]
    return np.stack([m / m.mean() if m.any() else np.ones_like(m) for m in made]).astype(np.float32)


@pytest.mark.parametrize("size", [(32, 32), (45, 71)])
@pytest.mark.parametrize("blur", [3.0, 0.8, 0])
def test_guidedmixup_pairs_and_masks(run: Any, size: tuple[int, int], blur: float) -> None:
    """Partners by SciPy and plain Python, masks by OpenCV; within a level, for sums are rounded in another order."""
    given = batch(16, size)
    mixed, params = run(GuidedMixup(blur=blur), given, KEY), GuidedMixup(blur=blur).draw(KEY, given)
    known = np.flatnonzero(~np.isnan(given.maps).all((1, 2)))  # type: ignore[arg-type]
    shares = expected_shares(filled(some_maps(16)[known]), blur)
    away = cdist(shares.reshape(len(known), -1), shares.reshape(len(known), -1))
    one, other = np.unravel_index(away.argmax(), away.shape)
    partners = [known[circle(away.tolist(), *pair)].tolist() for pair in ((one, other), (other, one))]  # type: ignore[arg-type]
    assert params.partner[known].tolist() in partners
    unknown = np.setdiff1d(np.arange(16), known)
    np.testing.assert_array_equal(params.partner[unknown], unknown)
    np.testing.assert_array_equal(mixed.images[unknown], given.images[unknown])
    for row, share in zip(known, shares, strict=True):
        own, its = (large(s, size) + 1e-6 for s in (share, shares[known.tolist().index(params.partner[row])]))
        mask = params.program.masks[row, ..., 0]
        np.testing.assert_allclose(mask, 255 * own / (own + its), atol=0.51)
        assert params.weight[row] == np.float32(mask.astype(np.float64).mean() / 255)
        part = mask[..., None] / 255
        blend = part * given.images[row] + (1 - part) * given.images[params.partner[row]]
        np.testing.assert_allclose(mixed.images[row], blend, atol=0.501)


def test_guidedmixup_of_maps_without_contrast() -> None:
    """Black and constant maps are 1 everywhere, so each picture has half; values below 0 are as good as 0."""
    maps = np.zeros((4, 4, 4), np.float32)
    maps[1], maps[3] = 7, NAN
    maps[2, 1, 1] = -5
    params = GuidedMixup().draw(KEY, batch(4, (8, 8), maps))
    np.testing.assert_array_equal(params.program.masks[:3], 128)  # 127.5, rounded half up
    np.testing.assert_array_equal(params.weight, np.float32([128 / 255] * 3 + [1]))
    assert sorted(params.partner[:3]) == [0, 1, 2] and (params.partner != np.arange(4)).tolist() == [True] * 3 + [False]
