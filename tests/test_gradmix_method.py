"""GradMix and Attentive CutMix on maps that come with the batch, and the op that shrinks a partner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from checks import SIZES, picture, run_op
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

from fastmix import mixing, windows
from fastmix.kernels import OP, Backend, Mode, Op, Program, Source, reference
from fastmix.methods._cells import best_windows, peak_windows
from fastmix.methods.attentivecutmix import AttentiveCutMix
from fastmix.methods.gradmix import GradMix
from fastmix.rng import Key, Stream
from fastmix.types import Batch, Method, Params, Targets
from fastmix.words import tell_layer, tell_steps

KEY = Key(7, 2)
CROPS = [(1, 1), (1, 7), (5, 3), (32, 32)]
METHODS: list[Any] = [
    GradMix(),
    GradMix.repo(group=5),
    GradMix(fallback="random", size_range=(0.3, 1.0)),
    GradMix(locate="random"),
    AttentiveCutMix(),
    AttentiveCutMix(k=2, group=5),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:40])
Ints = NDArray[np.int64]


def some_maps(count: int, shape: tuple[int, int] = (7, 7), seed: int = 0) -> NDArray[np.float32]:
    """Numbers with many equal ones; every fourth map has unknown cells, every fifth has no others."""
    rng = np.random.default_rng(seed)
    maps = (rng.integers(0, 9, (count, *shape)) / 8).astype(np.float32)
    maps[::4][rng.random(maps[::4].shape) < 0.4] = np.nan
    maps[3::5] = np.nan
    return maps


def batch(count: int, size: tuple[int, int] = (8, 6), maps: Any = "some") -> Batch:
    images = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    made = Batch.of(images, np.arange(count) % 4, np.arange(count) * 3 + 100)
    return replace(made, maps=some_maps(count) if isinstance(maps, str) else maps)


def picked(given: Batch, rows: Any) -> Batch:
    made = Batch.of(given.images[rows], given.targets.a[rows], given.targets.ids[rows])
    return replace(made, maps=given.maps[rows])  # type: ignore[index]


@pytest.fixture
def run(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Batch]:
    """`mixing.mix` on the backend under test."""
    monkeypatch.setattr(mixing, "backend_for", lambda _: backend)
    return mixing.mix


# ------------------------------------------------------------------ the op


def shrink(top: int, left: int, bottom: int, right: int) -> Any:
    op = np.zeros((), OP)
    op["code"], op["p"][:4] = Op.SHRINK, (top, left, bottom, right)
    return op


def check_shrink(backend: Backend, image: Any, box: tuple[int, int, int, int]) -> None:
    """Pillow's resize on black, within a level, and to the bit what `crop_resize` of the backend makes."""
    top, left, bottom, right = box
    made = run_op(backend, image, shrink(*box))
    inside = np.zeros(image.shape[:2], bool)
    inside[top:bottom, left:right] = True
    assert (made[~inside] == 0).all()
    if inside.any():
        size = right - left, bottom - top
        pillow = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)).astype(np.int64)
        assert np.abs(made[top:bottom, left:right] - pillow).max() <= 1
        out, whole = np.full((1, *size[::-1], 3), 77, np.uint8), [[0, 0, image.shape[1], image.shape[0]]]
        backend.crop_resize([image], np.array(whole, np.float64), np.array([False]), out, 0, 1)
        np.testing.assert_array_equal(made[top:bottom, left:right], out[0])


def test_shrink_is_pillows_resize(backend: Backend) -> None:
    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    @given(st.integers(0, 99), st.sampled_from(SIZES), st.tuples(*[st.floats(0, 1)] * 4))
    def check(seed: int, size: tuple[int, int], at: tuple[float, ...]) -> None:
        top, bottom = sorted(round(v * size[0]) for v in at[:2])
        left, right = sorted(round(v * size[1]) for v in at[2:])
        check_shrink(backend, picture(seed, size), (top, left, bottom, right))

    check()


def test_shrink_to_all_of_the_picture_copies(backend: Backend) -> None:
    image = picture(1, (13, 9))
    np.testing.assert_array_equal(run_op(backend, image, shrink(0, 0, 13, 9)), image)


@pytest.mark.parametrize("change", [(1, 0, 1, 0), (0, 0, 0, -1), (0, 1, 0, 0)])
def test_a_wrong_shrink_is_noticed(change: tuple[int, ...]) -> None:
    def op(images: Any, ops: Any, out: Any, lo: int, hi: int) -> None:
        ops = ops.copy()
        ops["p"][:, :4] += change
        reference.op(images, ops, out, lo, hi)

    wrong = cast(Backend, SimpleNamespace(**{**vars(reference), "op": op}))
    check_shrink(reference, picture(2, (20, 20)), (3, 4, 15, 12))  # type: ignore[arg-type]
    with pytest.raises((AssertionError, ValueError)):
        check_shrink(wrong, picture(2, (20, 20)), (3, 4, 15, 12))


@pytest.mark.parametrize("rows", [(0, 20), (5, 9), (0, 4), (16, 20), (7, 20)])
def test_any_rows_of_a_shrunk_layer(backend: Backend, rows: tuple[int, int]) -> None:
    """A step that asks for other rows than the box has, after an op and before one."""
    images = np.stack([picture(3, (20, 24)), picture(4, (20, 24))])
    program = Program.empty(np.arange(2), KEY.words, (20, 24), layers=1, chain=3, steps=1)
    program.layers["source"], program.layers["index"] = Source.MATE, [[1], [0]]
    program.ops[:, 0, 1] = shrink(4, 6, 16, 20)
    program.ops["code"][:, 0, [0, 2]] = Op.FLIP, Op.INVERT
    program.steps["mode"] = Mode.SET
    program.steps["top"], program.steps["bottom"] = rows
    out, expected = np.full_like(images, 77), images.copy()
    backend.mix(images, images[:0], program, out, 0, 2)
    for row in range(2):
        small = run_op(backend, np.ascontiguousarray(images[1 - row][::-1]), shrink(4, 6, 16, 20))
        expected[row, slice(*rows)] = 255 - small[slice(*rows)]
    np.testing.assert_array_equal(out, expected)


# ------------------------------------------------------------------ windows


def all_sums(cells: Any, side: tuple[int, int], size: tuple[int, int]) -> Any:
    """The sum of whole-numbered cells in each window, in whole parts of a pixel: by adding up the parts."""
    parts = [np.lcm(size[axis], cells.shape[axis]) for axis in (0, 1)]
    fine = cells.repeat(parts[0] // cells.shape[0], 0).repeat(parts[1] // cells.shape[1], 1)
    per_pixel = fine.reshape(size[0], parts[0] // size[0], size[1], parts[1] // size[1]).sum((1, 3))
    return np.lib.stride_tricks.sliding_window_view(per_pixel, side).sum((2, 3))


def test_the_best_window_is_the_first_of_all_with_the_largest_sum() -> None:
    @settings(deadline=None, max_examples=300, database=None, derandomize=True)
    @given(st.integers(0, 2**32), st.tuples(*[st.integers(1, 17)] * 2), st.tuples(*[st.integers(1, 8)] * 2))
    def check(seed: int, size: tuple[int, int], cells: tuple[int, int]) -> None:
        rng = np.random.default_rng(seed)
        maps = rng.integers(0, 4, (3, *cells))
        sides = np.stack([rng.integers(1, length + 1, 3) for length in size], 1)
        found = best_windows(maps.astype(np.float64), sides, size)
        for row in range(3):
            sums = all_sums(maps[row], tuple(sides[row]), size)
            np.testing.assert_array_equal(found[row], np.unravel_index(sums.argmax(), sums.shape))

    check()


@pytest.mark.parametrize(
    ("size", "cells"), [((28, 35), (7, 7)), ((32, 32), (8, 4)), ((9, 6), (3, 6)), ((5, 4), (5, 4))]
)
def test_windows_are_those_of_the_enlarged_map(size: tuple[int, int], cells: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    maps = rng.random((50, *cells)) * np.exp(rng.normal(size=(50, 1, 1)) * 9)
    sides = np.stack([rng.integers(1, length + 1, 50) for length in size], 1)
    large = torch.from_numpy(maps.repeat(size[0] // cells[0], 1).repeat(size[1] // cells[1], 2))
    boxes = windows.find_windows(large, sides).numpy()
    np.testing.assert_array_equal(best_windows(maps, sides, size), boxes[:, [0, 2]])


def test_windows_on_large_pictures_and_fine_maps() -> None:
    """One cell each; 1021 and 31 have no common divisor, and 40 cells are more than pixels."""
    maps = np.zeros((2, 31, 31))
    maps[0, 30, 2], maps[1, 0, 30] = 1e-30, 1e30
    found = best_windows(maps, np.full((2, 2), 33), (1021, 1021))
    np.testing.assert_array_equal(found, [[988, 66], [0, 988]])  # cell 2 is columns 65.87 to 98.81
    maps = np.zeros((1, 40, 40))
    maps[0, 20:22, 38:] = 1
    np.testing.assert_array_equal(best_windows(maps, np.array([[1, 1]]), (20, 20)), [[10, 19]])


def test_equal_sums_tie_and_others_do_not() -> None:
    """Maps that are their own mirror image, in cells of 20.8 pixels; and two cells that differ by 2^-25."""
    half = 1 - 0.1 * np.random.default_rng(0).random((10, 96, 48))
    left = best_windows(np.concatenate([half, half[..., ::-1]], 2), np.full((10, 2), 800), (2000, 2000))[:, 1]
    assert (left <= 600).all() and (left < 600).sum() > 7  # of two, the left one
    pair = np.array([[[1, 0, 1 + 2.0**-25]]])
    np.testing.assert_array_equal(best_windows(pair, np.array([[1, 1]]), (3, 3)), [[0, 2]])


def test_the_peaks_window_is_around_its_cell() -> None:
    maps = np.zeros((4, 7, 7))
    for row, (i, j) in enumerate([(0, 0), (3, 5), (6, 6), (2, 3)]):
        maps[row, i, j] = maps[row, 6, 6] = 1  # the first of two
    sides = np.array([[64, 64], [64, 32], [224, 224], [33, 33]])
    found = peak_windows(maps, sides, (224, 224))
    np.testing.assert_array_equal(found, [[0, 0], [80, 160], [0, 0], [64, 96]])  # centres at 16, 112, 176, 80, 112


# ------------------------------------------------------------------ what every method keeps


@every_method
@pytest.mark.parametrize("size", CROPS)
@pytest.mark.parametrize("count", [1, 2, 3, 17, 33])
def test_any_batch_and_picture_size(run: Any, method: Any, count: int, size: tuple[int, int]) -> None:
    given = batch(count, size)
    assert given.maps is not None
    before = given.images.tobytes(), given.targets.a.tobytes(), given.targets.w.tobytes(), given.maps.tobytes()
    mixed, again = run(method, given, KEY), run(method, given, KEY)
    after = given.images.tobytes(), given.targets.a.tobytes(), given.targets.w.tobytes(), given.maps.tobytes()
    assert before == after and mixed.maps is None
    np.testing.assert_array_equal(mixed.images, again.images)
    np.testing.assert_array_equal(mixed.targets.w, again.targets.w)
    np.testing.assert_allclose(mixed.targets.soft(4).sum(axis=1), 1, atol=1e-6)
    assert mixed.targets.w.dtype == np.float32 and ((mixed.targets.w >= 0) & (mixed.targets.w <= 1)).all()
    if count == 1:
        np.testing.assert_array_equal(mixed.images, given.images)
        assert mixed.targets.w[0] == 1 and mixed.targets.b[0] == given.targets.a[0]


@every_method
@pytest.mark.parametrize("size", [(1, 7), (5, 3), (32, 32)])
def test_the_weight_is_the_realised_share(run: Any, method: Any, size: tuple[int, int]) -> None:
    """Every picture is one colour, so the shares of its pixels can be counted."""
    given = batch(33, size)
    images = np.ascontiguousarray(np.broadcast_to(np.arange(33, dtype=np.uint8)[:, None, None, None], (33, *size, 3)))
    given = replace(given, images=images, targets=Targets.of(given.targets.ids, np.arange(33)))
    mixed = run(method, given, KEY)
    for row in range(33):
        own, other = (mixed.images[row] == mixed.targets.a[row]), (mixed.images[row] == mixed.targets.b[row])
        assert (own | other).all()
        assert abs(own.mean() - mixed.targets.w[row]) < 1e-6
    assert (mixed.targets.w[mixed.targets.a == mixed.targets.b] == 1).all()
    assert size != (32, 32) or (mixed.targets.w < 1).sum() > 20


@every_method
def test_permuting_inside_groups_permutes_everything(run: Any, method: Any) -> None:
    given, group = batch(33), method.group
    rng = np.random.default_rng(4)
    order = np.concatenate([rng.permutation(part) for part in np.split(np.arange(33), range(group, 33, group))])
    here, there = run(method, given, KEY), run(method, picked(given, order), KEY)
    np.testing.assert_array_equal(there.images, here.images[order])
    np.testing.assert_array_equal(there.targets.b, here.targets.b[order])
    np.testing.assert_array_equal(there.targets.w, here.targets.w[order])


@every_method
def test_cutting_the_batch_changes_nothing(run: Any, method: Any) -> None:
    given, cut = batch(33), 15 if method.group == 5 else 16
    parts = [run(method, picked(given, rows), KEY).images for rows in (slice(0, cut), slice(cut, None))]
    np.testing.assert_array_equal(np.concatenate(parts), run(method, given, KEY).images)


def drawn(params: Params) -> list[bytes]:
    program = params.program
    return [part.tobytes() for part in (program.layers, program.ops, program.steps, params.partner, params.weight)]


@every_method
def test_draws_see_ids_and_maps_alone(method: Any) -> None:
    given = batch(17, (32, 32))
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr, index]  # noqa: NPY002
    params = method.draw(KEY, given)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # type: ignore[index]  # noqa: NPY002
    assert drawn(method.draw(KEY, replace(given, images=np.zeros_like(given.images)))) == drawn(params)
    for other in (Key(7, 3), Key(8, 2), Key(7, 2, view=1)):
        assert drawn(method.draw(other, given)) != drawn(params)
    moved = drawn(method.draw(KEY, replace(given, maps=some_maps(17, seed=9))))
    assert (moved == drawn(params)) == (getattr(method, "locate", "") == "random")


@every_method
def test_switched_off_is_the_identity(run: Any, method: Any) -> None:
    given = batch(17, (32, 32))
    mixed = run(replace(method, enabled=False), given, KEY)
    np.testing.assert_array_equal(mixed.images, given.images)
    np.testing.assert_array_equal(mixed.targets.w, 1)
    assert (run(method, given, KEY).images != given.images).any()


@every_method
def test_methods_are_methods(method: Any) -> None:
    assert isinstance(method, Method) and method.uses_maps and not method.label_preserving
    layers = method.draw(Key(0), batch(16, maps=None)).program.layers
    assert (layers["source"] == Source.MATE).all()  # so that a loader knows that samples are mixed with each other


def test_programs_stay_in_bounds() -> None:
    for size in CROPS:
        for method in METHODS:
            steps = method.draw(KEY, batch(65, size)).program.steps
            assert (steps["top"] >= 0).all() and (steps["bottom"] <= size[0]).all()
            assert (steps["left"] >= 0).all() and (steps["right"] <= size[1]).all()
            assert (np.diff((steps["mode"] != Mode.END).astype(int), axis=1) <= 0).all(), "an END is followed by a step"


# ------------------------------------------------------------------ GradMix


def mixed_rows(method: GradMix, given: Batch) -> tuple[Params, Any, Ints]:
    """The params, which rows are mixed, and their boxes (top, left, bottom, right)."""
    params = method.draw(KEY, given)
    step = params.program.steps[:, 0]
    boxes = np.stack([step[side] for side in ("top", "left", "bottom", "right")], 1).astype(np.int64)
    return params, step["mode"] == Mode.SET, boxes


def test_the_window_shows_the_whole_partner(run: Any, backend: Backend) -> None:
    given = batch(33, (24, 31))
    params, mixed, boxes = mixed_rows(GradMix(), given)
    images, expected = run(GradMix(), given, KEY).images, given.images.copy()
    assert given.maps is not None
    np.testing.assert_array_equal(mixed, np.isfinite(given.maps).any((1, 2)) & (np.arange(33) < 32))  # row 32 is alone
    np.testing.assert_array_equal(params.partner != np.arange(33), mixed)
    for row in np.flatnonzero(mixed):
        top, left, bottom, right = boxes[row]
        out = np.empty((1, bottom - top, right - left, 3), np.uint8)
        source = given.images[params.partner[row]]
        backend.crop_resize([source], np.array([[0, 0, 31, 24.0]]), np.array([False]), out, 0, 1)
        expected[row, top:bottom, left:right] = out[0]
        pillow = Image.fromarray(source).resize((right - left, bottom - top), Image.Resampling.BILINEAR)
        assert np.abs(out[0].astype(np.int64) - np.asarray(pillow)).max() <= 1
    np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (32, 32), (224, 200)])
@pytest.mark.parametrize("mode", ["side", "area"])
def test_sizes_follow_the_law_of_the_training_step(mode: Any, size: tuple[int, int]) -> None:
    """That of `fastmix.windows`, for the shares that the sides of a very large picture show."""
    given = batch(200, size, some_maps(200))
    method = GradMix(size_mode=mode, size_range=(0.2, 0.6), fallback="random")
    _, mixed, boxes = mixed_rows(method, given)
    unseen = np.broadcast_to(np.uint8(0), (200, 10**8, 10**8, 3))
    fine = mixed_rows(replace(method, locate="random"), replace(given, images=unseen))[2]
    share = ((fine[:, 2] - fine[:, 0]) / 1e8) ** (1 if mode == "side" else 2)
    assert stats.kstest(share[mixed], stats.uniform(0.2, 0.4).cdf).pvalue > 1e-3
    expected = windows.window_sizes((share - 0.2) / 0.4, size, (0.2, 0.6), mode)
    np.testing.assert_array_equal((boxes[:, 2:] - boxes[:, :2])[mixed], expected[mixed])


@pytest.mark.parametrize("size", [(8, 6), (28, 28), (31, 17)])
def test_windows_are_found_on_maps_with_unknown_cells_as_zeros(size: tuple[int, int]) -> None:
    given = batch(40, size)
    _, mixed, boxes = mixed_rows(GradMix(), given)
    assert given.maps is not None and mixed.sum() > 25
    for row in np.flatnonzero(mixed):
        cells = (8 * np.nan_to_num(given.maps[row])).astype(np.int64)
        sums = all_sums(cells, tuple(boxes[row, 2:] - boxes[row, :2]), size)
        np.testing.assert_array_equal(boxes[row, :2], np.unravel_index(sums.argmax(), sums.shape))


def test_samples_without_a_map() -> None:
    """No maps at all, none of this sample, and maps that are the same everywhere."""
    maps = some_maps(32)
    maps[[0, 5]], maps[[1, 6]], maps[2], maps[7] = np.nan, 0, 0.75, np.inf
    told = np.isfinite(maps).any((1, 2))
    told[[1, 2, 6]] = False
    for case, known in ((batch(32, maps=None), np.zeros(32, bool)), (batch(32, maps=maps), told)):
        params, mixed, boxes = mixed_rows(GradMix(), case)
        np.testing.assert_array_equal(mixed, known)
        np.testing.assert_array_equal(params.weight == 1, ~known)
        fallen, every, places = mixed_rows(GradMix(fallback="random"), case)
        assert every.all() and (fallen.weight < 1).all()
        np.testing.assert_array_equal(places[known], boxes[known])
        control = mixed_rows(GradMix(fallback="random", locate="random"), case)[2]
        np.testing.assert_array_equal(places[~known], control[~known])


def test_the_random_control_differs_in_places_alone() -> None:
    given = batch(400, (32, 32))
    (ours, mixed, boxes), (control, same, places) = (
        mixed_rows(GradMix(locate=way), given) for way in ("boxsum", "random")
    )
    np.testing.assert_array_equal(mixed, same)
    np.testing.assert_array_equal(ours.partner, control.partner)
    np.testing.assert_array_equal(ours.weight, control.weight)
    assert (boxes != places).any(1).mean() > 0.5
    room = (32 - (places[:, 2:] - places[:, :2]) + 1)[mixed]
    for axis in (0, 1):  # a place is equally likely to be any
        u = (places[mixed, axis] + np.random.default_rng(axis).random(mixed.sum())) / room[:, axis]
        assert stats.kstest(u, "uniform").pvalue > 1e-3


def test_presets() -> None:
    assert GradMix.paper() == GradMix() and GradMix.repo().size_mode == "area" and GradMix.repo().locate == "peak"
    assert GradMix.repo(locate="boxsum", num_classes=3) == GradMix(size_mode="area", num_classes=3)
    _, mixed, boxes = mixed_rows(GradMix.repo(), batch(33, (32, 32)))
    maps = np.nan_to_num(some_maps(33))
    expected = peak_windows(maps.astype(np.float64), boxes[:, 2:] - boxes[:, :2], (32, 32))
    np.testing.assert_array_equal(boxes[mixed, :2], expected[mixed])


def test_in_words() -> None:
    given = batch(16, (32, 32))
    params, mixed, boxes = mixed_rows(GradMix(), given)
    row = int(np.flatnonzero(mixed)[0])
    assert tell_layer(params.program, row, 0, lambda index: f"mate {index}") == f"mate {params.partner[row]} > shrink"
    top, left, bottom, right = boxes[row]
    told = tell_steps(params.program, row, (32, 32), lambda _: "A")
    assert told == [f"x = A, {right - left}x{bottom - top} px at ({left},{top})"]


# ------------------------------------------------------------------ Attentive CutMix


@pytest.mark.parametrize("size", [(28, 35), (32, 32), (5, 3), (1, 1)])
def test_the_cells_that_the_partner_is_known_for(run: Any, size: tuple[int, int]) -> None:
    """Cell by cell in plain Python: the largest six of the partner's, the first of equal ones."""
    given = batch(33, size)
    params, mixed = AttentiveCutMix().draw(KEY, given), run(AttentiveCutMix(), given, KEY)
    assert given.maps is not None
    for row, partner in enumerate(KEY.partners(given.targets.ids, Stream.PARTNER, 16)):
        ranked = sorted((-float(given.maps[partner, i, j]), i, j) for i in range(7) for j in range(7)
                        if np.isfinite(given.maps[partner, i, j]))  # fmt: skip
        expected, covered = given.images[row].copy(), np.zeros(size, bool)
        for _, i, j in ranked[: 6 if partner != row else 0]:
            rows = slice(i * size[0] // 7, (i + 1) * size[0] // 7)
            covered[rows, j * size[1] // 7 : (j + 1) * size[1] // 7] = True
        expected[covered] = given.images[partner][covered]
        assert params.partner[row] == (partner if ranked else row)
        np.testing.assert_array_equal(mixed.images[row], expected)
        assert abs(mixed.targets.w[row] - 1 + covered.mean()) < 1e-6


def test_six_of_49_cells() -> None:
    """The paper's setting: the grid divides 224."""
    maps = np.random.default_rng(0).random((16, 7, 7))
    weight = AttentiveCutMix().draw(KEY, batch(16, (224, 224), maps)).weight
    np.testing.assert_array_equal(weight, np.float32(1 - 6 / 49))


def test_partners_with_few_cells_or_none() -> None:
    maps = np.full((16, 2, 2), np.nan)
    maps[:, 0, 1] = 0.5
    maps[:4] = np.nan
    given = batch(16, (8, 8), maps)
    partner = KEY.partners(given.targets.ids, Stream.PARTNER, 16)
    np.testing.assert_array_equal(AttentiveCutMix(k=4).draw(KEY, given).weight, np.where(partner < 4, 1, 0.75))
    assert (AttentiveCutMix().draw(KEY, batch(16, maps=None)).weight == 1).all()
    maps[:] = 1  # equal everywhere: the first cells
    steps = AttentiveCutMix(k=2).draw(KEY, batch(16, (8, 8), maps)).program.steps
    assert (steps["top"] == 0).all() and (steps["left"] == [0, 4]).all()


# ------------------------------------------------------------------ bad input


NAN = float("nan")
BAD: list[tuple[Any, dict[str, Any], str]] = [
    *((GradMix, {"size_range": pair}, r"size_range is .*\(lo, hi\), 0 < lo <= hi <= 1")
      for pair in ((0.5, 0.1), (0, 0.5), (0.1, 1.5), (NAN, 0.5), (0.1,), 0.3)),
    (GradMix, {"size_mode": "areas"}, "size_mode is 'areas', expected 'side' or 'area'"),
    (GradMix, {"locate": "least"}, "locate is 'least'"),
    (GradMix, {"fallback": None}, "fallback is None"),
    *((kind, {"group": value}, "group is") for kind in (GradMix, AttentiveCutMix) for value in (0, 2.5)),
    *((kind, {"num_classes": 0}, "num_classes is 0") for kind in (GradMix, AttentiveCutMix)),
    *((AttentiveCutMix, {"k": value}, "k is") for value in (0, 1.5)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "message"), BAD)
def test_bad_settings(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@every_method
@pytest.mark.parametrize("maps", [np.ones((3, 7, 7)), np.ones((4, 7)), np.ones((4, 0, 7)), np.full((4, 7, 7), "a")])
def test_bad_maps(method: Any, maps: Any) -> None:
    with pytest.raises(ValueError, match=r"maps are .* for 4 pictures, expected numbers \(N, h, w\)"):
        method.draw(KEY, batch(4, maps=maps))


def test_too_many_cells() -> None:
    with pytest.raises(ValueError, match="k is 5, expected k <= 4"):
        AttentiveCutMix(k=5).draw(KEY, batch(4, maps=np.ones((4, 2, 2))))
