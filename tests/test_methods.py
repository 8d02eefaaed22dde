"""What every method keeps: shapes, labels, inputs, replay, permutation, switches and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastmix import mixing
from fastmix.kernels import Backend, Clip, Mode, Op, Source
from fastmix.methods.augmix import AugMix
from fastmix.methods.cutmix import CutMix
from fastmix.methods.ipmix import IPMix
from fastmix.methods.layermix import LayerMix
from fastmix.methods.mixup import MixUp
from fastmix.methods.pixmix import PixMix
from fastmix.rng import Key
from fastmix.types import Batch, Params, Pool, Targets

RNG = np.random.default_rng(11)
POOL = Pool(RNG.integers(0, 256, (5, 40, 37, 3), dtype=np.uint8))
KEY = Key(7, 2)
SIZES = [(1, 1), (1, 7), (5, 3), (32, 32)]
MIXERS: list[Any] = [
    MixUp(),
    MixUp(mode="elem", alpha=0.3, group=5),
    CutMix(),
    CutMix(mode="elem", alpha=0.3, group=5),
]
KEEPERS: list[Any] = [
    AugMix(),
    AugMix(width=2, depth=2, all_ops=True),
    PixMix.cifar(pool=POOL),
    IPMix(pool=POOL),
    IPMix.imagenet(pool=POOL, all_ops=True, overflow="clip"),
    LayerMix.cifar(pool=POOL),
    LayerMix(pool=POOL, grey=False, min_bits=0),
]
METHODS = MIXERS + KEEPERS


def name(method: Any) -> str:
    """A short test id."""
    return f"{type(method).__name__}-{METHODS.index(method)}" if method in METHODS else type(method).__name__


every_method = pytest.mark.parametrize("method", METHODS, ids=name)


def batch(count: int, size: tuple[int, int] = (8, 6), labels: Any = None) -> Batch:
    """A batch of noise."""
    images = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return Batch.of(images, np.arange(count) % 4 if labels is None else labels, np.arange(count) * 3 + 100)


def rows(params: Params, order: Any) -> list[Any]:
    """What was drawn, sample by sample, in the order of `order`."""
    program = params.program
    return [array[order] for array in (program.ops, program.steps, program.finish, params.weight)]


def assert_same(ours: Any, theirs: Any) -> None:
    """Equality of lists of arrays."""
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def run(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Batch]:
    """`mixing.mix` on the backend under test."""
    monkeypatch.setattr(mixing, "backend_for", lambda _: backend)
    return mixing.mix


@every_method
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 17, 33])
def test_any_batch_and_picture_size(run: Any, method: Any, count: int, size: tuple[int, int]) -> None:
    """Any size works, inputs stay as they are, and the result replays exactly."""
    given = batch(count, size)
    before = given.images.tobytes(), given.targets.a.tobytes(), given.targets.w.tobytes()
    mixed, again = run(method, given, KEY), run(method, given, KEY)
    assert before == (given.images.tobytes(), given.targets.a.tobytes(), given.targets.w.tobytes())
    assert mixed.images.shape == given.images.shape and mixed.images.dtype == np.uint8
    assert not np.shares_memory(mixed.images, given.images)
    np.testing.assert_array_equal(mixed.images, again.images)
    np.testing.assert_array_equal(mixed.targets.w, again.targets.w)
    np.testing.assert_array_equal(mixed.targets.ids, given.targets.ids)
    np.testing.assert_allclose(mixed.targets.soft(4).sum(axis=1), 1, atol=1e-6)
    assert mixed.targets.w.dtype == np.float32 and ((mixed.targets.w >= 0) & (mixed.targets.w <= 1)).all()


@every_method
def test_batch_of_one_keeps_its_label(run: Any, method: Any) -> None:
    """A sample without mates keeps its label; mixers leave its picture too."""
    given = batch(1)
    mixed = run(method, given, KEY)
    assert mixed.targets.w[0] == 1 and mixed.targets.b[0] == given.targets.a[0]
    if not method.label_preserving:
        np.testing.assert_array_equal(mixed.images, given.images)


@every_method
def test_switched_off_is_the_identity(run: Any, method: Any) -> None:
    """enabled=False changes nothing, needs no pool, and can be flipped on an existing method."""
    given = batch(17, (32, 32))
    off = replace(method)
    off.enabled = False
    if hasattr(off, "pool"):
        off.pool = None
    mixed = run(off, given, KEY)
    np.testing.assert_array_equal(mixed.images, given.images)
    np.testing.assert_array_equal(mixed.targets.w, 1)
    assert (run(method, given, KEY).images != given.images).any()
    params = off.draw(KEY, given)
    assert (params.program.steps["mode"] == Mode.END).all() and (params.partner == np.arange(17)).all()


@pytest.mark.parametrize(
    "method",
    [AugMix(width=0), PixMix(k=0, pool=POOL), IPMix(width=0, pool=POOL), IPMix(depth=0, pool=POOL)],
    ids=["augmix", "pixmix", "ipmix-width", "ipmix-depth"],
)
def test_strength_zero_is_the_identity(run: Any, method: Any) -> None:
    """Methods with a natural zero do nothing at it."""
    given = batch(33)
    np.testing.assert_array_equal(run(method, given, KEY).images, given.images)


@pytest.mark.parametrize("method", KEEPERS, ids=name)
def test_permuting_the_batch_permutes_the_draws(run: Any, method: Any) -> None:
    """A label-preserving method depends on ids alone, so pictures move with their rows."""
    given = batch(33, (32, 32))
    order = np.random.default_rng(3).permutation(33)
    moved = Batch.of(given.images[order], given.targets.a[order], given.targets.ids[order])
    np.testing.assert_array_equal(run(method, moved, KEY).images, run(method, given, KEY).images[order])
    assert_same(rows(method.draw(KEY, moved), slice(None)), rows(method.draw(KEY, given), order))


@pytest.mark.parametrize("method", MIXERS, ids=name)
def test_permuting_inside_groups_permutes_partners(run: Any, method: Any) -> None:
    """A mixer depends on the ids of its mix groups."""
    given, group = batch(33), method.group
    rng = np.random.default_rng(4)
    order = np.concatenate([rng.permutation(part) for part in np.split(np.arange(33), range(group, 33, group))])
    moved = Batch.of(given.images[order], given.targets.a[order], given.targets.ids[order])
    here, there = run(method, given, KEY), run(method, moved, KEY)
    np.testing.assert_array_equal(there.images, here.images[order])
    np.testing.assert_array_equal(there.targets.b, here.targets.b[order])
    np.testing.assert_array_equal(there.targets.w, here.targets.w[order])


@every_method
def test_cutting_the_batch_changes_nothing(run: Any, method: Any) -> None:
    """Whole mix groups can be drawn anywhere: the first 16 (or 15) and the rest give the same pictures."""
    given = batch(33)
    cut = 15 if getattr(method, "group", 16) == 5 else 16
    parts = [
        Batch.of(given.images[part], given.targets.a[part], given.targets.ids[part])
        for part in (slice(0, cut), slice(cut, None))
    ]
    whole = run(method, given, KEY).images
    np.testing.assert_array_equal(np.concatenate([run(method, part, KEY).images for part in parts]), whole)


@every_method
def test_draws_see_no_pixel_and_touch_no_global_generator(method: Any) -> None:
    """Draws are a function of the key and the ids; another epoch, seed or view draws anew."""
    given = batch(17, (32, 32))
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr, index]  # noqa: NPY002
    params = method.draw(KEY, given)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # type: ignore[index]  # noqa: NPY002
    blank = replace(given, images=np.zeros_like(given.images))
    assert_same(rows(method.draw(KEY, blank), slice(None)), rows(params, slice(None)))
    for other in (Key(7, 3), Key(8, 2), Key(7, 2, view=1)):
        drawn = rows(method.draw(other, given), slice(None))
        assert any(not np.array_equal(a, b) for a, b in zip(drawn, rows(params, slice(None)), strict=True))


@pytest.mark.parametrize("method", KEEPERS[2:], ids=name)
def test_views_share_the_pool_picture(method: Any) -> None:
    """The papers draw one mixing picture a sample for both views."""
    given = batch(400, (32, 32))
    seen = []
    for view in (1, 2):
        layers = method.draw(Key(7, 2, view), given).program.layers
        pool = layers["source"] == Source.POOL
        windows = np.where(pool, layers["index"] * 10000 + layers["top"] * 100 + layers["left"], -1).max(axis=1)
        seen.append(windows)
    both = (seen[0] >= 0) & (seen[1] >= 0)
    assert both.sum() > 50
    np.testing.assert_array_equal(seen[0][both], seen[1][both])


@pytest.mark.parametrize("mode", ["batch", "elem"])
@pytest.mark.parametrize("size", [(1, 7), (5, 3), (32, 32)])
def test_cutmix_weight_is_the_realised_share(run: Any, mode: str, size: tuple[int, int]) -> None:
    """Every picture is one colour, so the shares of its pixels can be counted."""
    given = batch(33, size)
    images = np.ascontiguousarray(np.broadcast_to(np.arange(33, dtype=np.uint8)[:, None, None, None], (33, *size, 3)))
    given = replace(given, images=images, targets=Targets.of(given.targets.ids, np.arange(33)))
    mixed = run(CutMix(mode=mode, group=8), given, KEY)
    for row in range(33):
        own, other = (mixed.images[row] == mixed.targets.a[row]), (mixed.images[row] == mixed.targets.b[row])
        assert (own | other).all()
        assert abs(own.mean() - mixed.targets.w[row]) < 1e-6


@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_mixup_weight_is_the_weight_of_the_pixels(run: Any, mode: str) -> None:
    """White on black shows the weight in the level; the program holds the very same float32."""
    given = batch(33)
    method = MixUp(mode=mode, group=8)
    params = method.draw(KEY, given)
    step = params.program.steps[:, 0]
    np.testing.assert_array_equal(step["a"], params.weight)
    np.testing.assert_array_equal(step["b"], 1 - params.weight)
    for row in range(33):
        images = np.zeros_like(given.images)
        images[row] = 255
        mixed = run(method, replace(given, images=images), KEY).images[row]
        np.testing.assert_array_less(np.abs(mixed - 255 * float(params.weight[row])), 0.501)


@pytest.mark.parametrize("method", MIXERS, ids=name)
def test_labels_of_every_kind(run: Any, method: Any) -> None:
    """Integer, soft and multi-hot labels mix linearly with the partner's."""
    integers = np.array([0, 1, 2, 3, 1, 0])
    soft = np.random.default_rng(0).dirichlet(np.ones(4), 6)
    several = np.array([[0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0] * 5])
    for labels in (integers, integers.astype(np.uint8), soft, soft.astype(np.float16), several):
        given = batch(6, labels=labels)
        mixed, params = run(method, given, KEY), method.draw(KEY, given)
        one_hot = np.eye(4)[labels] if labels.ndim == 1 else labels.astype(np.float64)
        w = params.weight[:, None]
        np.testing.assert_allclose(mixed.targets.soft(4), w * one_hot + (1 - w) * one_hot[params.partner], atol=1e-6)


@pytest.mark.parametrize("mixer", [MixUp(), CutMix()], ids=["mixup", "cutmix"])
def test_labels_are_mixed_once(run: Any, mixer: Any) -> None:
    """A mixed batch can be augmented further, and mixed again only from soft labels."""
    mixed = run(mixer, batch(17, (32, 32)), KEY)
    kept = run(PixMix(pool=POOL), mixed, KEY)
    assert kept.targets is mixed.targets
    with pytest.raises(ValueError, match="mixed once"):
        run(mixer, mixed, Key(7, 3))
    soft = replace(mixed, targets=Targets.of(mixed.targets.ids, mixed.targets.soft(4)))
    np.testing.assert_allclose(run(mixer, soft, Key(7, 3)).targets.soft().sum(axis=1), 1, atol=1e-6)


def test_layermix_black_pictures(run: Any) -> None:
    """Only min_bits=0, the released code, ever posterizes a picture to black."""
    given = batch(400, (4, 4))
    code = LayerMix(magnitude=1.0, min_bits=0, pool=POOL)
    black = (run(code, given, KEY).images == 0).all(axis=(1, 2, 3)).mean()
    assert 0.02 < black < 0.12
    bits = LayerMix.imagenet(pool=POOL).draw(KEY, given).program
    posterized = bits.ops[bits.ops["code"] == Op.FLOAT_POSTERIZE]
    assert posterized["p"][:, 0].min() == 1
    assert code.draw(KEY, given).program.ops["p"][..., 0][bits.ops["code"] == Op.FLOAT_POSTERIZE].min() == 0


def test_layermix_grey_pool(backend: Backend) -> None:
    """With grey=True the pool picture is grey, and mirrored and flipped in half of the samples each."""
    given = batch(400, (4, 4))
    program = LayerMix(pool=POOL).draw(KEY, given).program
    deep = program.finish["code"] != Op.NONE
    program.layers[:, 0] = program.layers[:, 2]
    program.ops[:, 0] = program.ops[:, 2]
    program.steps["mode"][:, 1:], program.finish["code"] = Mode.END, Op.NONE
    out = np.zeros_like(given.images)
    backend.mix(given.images, POOL.images, program, out, 0, 400)
    for row in np.flatnonzero(deep):
        layer = program.layers[row, 2]
        window = POOL.images[layer["index"], layer["top"] : layer["top"] + 4, layer["left"] : layer["left"] + 4]
        grey = (window @ np.array([19595, 38470, 7471]) + 32768) >> 16
        codes = set(program.ops["code"][row, 2].tolist())
        grey = grey[:, ::-1] if Op.MIRROR in codes else grey
        grey = grey[::-1] if Op.FLIP in codes else grey
        np.testing.assert_array_equal(out[row], np.repeat(grey[..., None], 3, axis=-1))
    for op in (Op.MIRROR, Op.FLIP):
        assert 0.35 < (program.ops["code"][deep, 2] == op).any(axis=1).mean() < 0.65
    assert (LayerMix(pool=POOL, grey=False).draw(KEY, given).program.ops["code"][:, 2] == Op.NONE).all()


def test_programs_stay_in_bounds() -> None:
    """Layers, boxes and windows lie inside what they point at, whatever the sizes."""
    for size in SIZES:
        for method in METHODS:
            given = batch(65, size)
            params = method.draw(KEY, given)
            steps, layers = params.program.steps, params.program.layers
            live = steps["mode"] != Mode.END
            assert (steps["layer"][live] < layers.shape[1]).all()
            assert (steps["top"] >= 0).all() and (steps["bottom"] <= size[0]).all()
            assert (steps["left"] >= 0).all() and (steps["right"] <= size[1]).all()
            assert (np.diff(live.astype(int), axis=1) <= 0).all(), "an END is followed by a step"
            pool = layers["source"] == Source.POOL
            assert (layers["index"][pool] < len(POOL)).all() and (layers["top"][pool] + size[0] <= 40).all()
            assert (layers["left"][pool] + size[1] <= 37).all()
            assert (steps["stream"] < 4096).all()


def test_overflow_and_clips() -> None:
    """IPMix stores its patches as uint8, wrapping unless asked to clip; PixMix and LayerMix clip after each round."""
    given = batch(200, (32, 32))
    for overflow, clip in (("wrap", Clip.WRAP), ("clip", Clip.CUT)):
        steps = IPMix(pool=POOL, overflow=overflow).draw(KEY, given).program.steps
        assert set(steps["clip"].ravel()) == {Clip.NONE, clip}
    steps = PixMix(pool=POOL).draw(KEY, given).program.steps
    assert (steps["clip"][np.isin(steps["mode"], (Mode.ARITHMETIC, Mode.GEOMETRIC))] == Clip.UNIT).all()
