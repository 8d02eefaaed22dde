"""Mixing by saliency in the loader: whatever makes the maps, the stream is that of the pieces put together by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import BATCH, COUNT, SIZE, digest, digests, loader_of, make_arrays, make_photos
from skimage.filters import threshold_otsu

from fastmix import AttentiveCutMix, Batch, GradMix, GuidedMixup, Key, MapBank, MapFile, SaliencyMix, SGMix, mix
from fastmix.engine.job import draw
from fastmix.maps import hidden_cells
from fastmix.methods.sgmix import Outcome
from fastmix.mixing import check_params
from fastmix.saliency import SpectralResidual, distances, object_masks, otsu, spectral_maps

pytestmark = pytest.mark.filterwarnings("ignore:num_workers is:UserWarning")
METHODS: dict[str, Any] = {
    "sgmix": SGMix(group=8),
    "saliencymix": SaliencyMix(),
    "guidedmixup": GuidedMixup(),
    "gradmix": GradMix(),
    "attentivecutmix": AttentiveCutMix(),
}
CELLS = (12, 10)
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def file(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> MapFile:
    return MapFile.make(tmp_path_factory.mktemp("maps") / "maps.npy", photos, size=64)


def crops_of(dataset: Any, **options: Any) -> tuple[Any, Any, Any]:
    """The first batch as it is before it is mixed: pictures (N, H, W, 3), labels, ids."""
    loader = loader_of(dataset, output="uint8", **options)
    images, labels = next(iter(loader))
    return np.ascontiguousarray(images.permute(0, 2, 3, 1)), labels.numpy(), loader.delivered.ids


@every_method
def test_threads_and_prefetch_change_nothing(photos: Path, name: str) -> None:
    options = {"mix": METHODS[name], "maps": SpectralResidual(CELLS)}
    want = digests(loader_of(photos, **options), 2)
    assert want[0] != want[1]
    for threads, prefetch in ((1, 1), (2, 1), (2, 4), (4, 2)):
        loader = loader_of(photos, num_workers=threads, prefetch_factor=prefetch, **options)
        assert digests(loader, 2) == want, (threads, prefetch)


@every_method
def test_the_loader_puts_the_pieces_together(photos: Path, name: str) -> None:
    crops, labels, ids = crops_of(photos)
    batch = replace(Batch.of(crops, labels, ids), maps=spectral_maps(crops, CELLS))
    expected = mix(METHODS[name], batch, Key(11))
    loader = loader_of(photos, mix=METHODS[name], maps=SpectralResidual(CELLS), output="uint8", labels="pair")
    images, (a, b, w) = next(iter(loader))
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1), expected.images)
    for have, want in zip((a, b, w), (expected.targets.a, expected.targets.b, expected.targets.w), strict=True):
        np.testing.assert_array_equal(have, want)
    assert (expected.images != crops).any()


@every_method
def test_two_views_are_mixed_by_maps_of_their_own(photos: Path, name: str) -> None:
    clean = loader_of(photos, views=2, output="uint8")
    mixed = loader_of(photos, views=2, output="uint8", mix=METHODS[name], maps=SpectralResidual(CELLS))
    (first, _), (second, labels) = next(iter(clean)), next(iter(mixed))
    np.testing.assert_array_equal(second[: 2 * BATCH], first)
    for view in (0, 1):
        crops = np.ascontiguousarray(first[view * BATCH : (view + 1) * BATCH].permute(0, 2, 3, 1))
        batch = replace(Batch.of(crops, labels, mixed.delivered.ids), maps=spectral_maps(crops, CELLS))
        expected = mix(METHODS[name], batch, Key(11, view=view)).images
        low = (2 + view) * BATCH
        np.testing.assert_array_equal(second[low : low + BATCH].permute(0, 2, 3, 1), expected)


def test_three_views_of_a_method_that_keeps_labels(photos: Path) -> None:
    """Nothing of SGMix is left to chance but the crop, so both mixed views are alike."""
    images, labels = next(iter(loader_of(photos, views=3, output="uint8", mix=SGMix(), maps=SpectralResidual(CELLS))))
    clean, first, second = images.split(BATCH)
    assert len(labels) == BATCH and torch.equal(first, second) and not torch.equal(clean, first)


def test_stopping_in_an_epoch_changes_nothing(photos: Path) -> None:
    options = {"mix": GuidedMixup(), "maps": SpectralResidual(CELLS), "num_workers": 2}
    whole = list(loader_of(photos, **options))
    stopped = loader_of(photos, **options)
    next(iter(stopped))
    again = loader_of(photos, **options)
    again.load_state_dict(stopped.state_dict())
    assert digest(again) == digest(whole[1:])


def test_small_and_plain_pictures() -> None:
    """A map has at most a cell a pixel; pictures without contrast have no object and stay."""
    for side in (1, 2, 5):
        images, labels = make_arrays(9, side)
        options = {"size": side, "crop": None, "maps": SpectralResidual((64, 64)), "num_classes": 10, "output": "uint8"}
        for method in METHODS.values():
            if not isinstance(method, AttentiveCutMix) or side > 2:
                assert len(list(loader_of((images, labels), mix=method, **options))) == 2
    black = np.zeros((9, 20, 20, 3), np.uint8)
    for batch, _ in loader_of((black, np.zeros(9, int)), mix=SGMix(), crop=None, size=20, maps=SpectralResidual()):
        assert len(batch.unique()) == 3  # black, normalised in each channel


@pytest.mark.parametrize("method", [SaliencyMix(), GuidedMixup()], ids=["saliencymix", "guidedmixup"])
def test_label_weights_are_shares_of_pixels(method: Any) -> None:
    """The green is black or white all over, so that what is left of it is the share; the red makes the maps."""
    rng = np.random.default_rng(2)
    images = np.zeros((16, 24, 24, 3), np.uint8)
    images[..., 0] = rng.integers(0, 256, (16, 24, 24))
    images[8:, ..., 1] = 255
    options = {"crop": None, "size": 24, "hflip": 0.0, "shuffle": False, "batch_size": 16, "output": "uint8"}
    loader = loader_of((images, np.arange(16)), mix=method, maps=SpectralResidual(), labels="pair", **options)
    mixed, (a, b, w) = next(iter(loader))
    white, other = a.numpy() >= 8, b.numpy() >= 8
    shown = mixed[:, 1].double().mean((1, 2)).numpy() / 255
    assert (white != other).sum() > 4 and (w < 1).all()
    expected = np.where(white, np.where(other, 1, w), np.where(other, 1 - w.double().numpy(), 0))
    np.testing.assert_allclose(shown, expected, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ other maps


def test_maps_of_a_file_steer_the_mix(tmp_path: Path) -> None:
    """Of whole pictures, so that they are what the file says, mirrored with their pictures."""
    images, labels = np.random.default_rng(1).integers(0, 256, (12, 24, 24, 3), dtype=np.uint8), np.arange(12)
    images[:, 6:12, 4:10] //= 6
    file = MapFile.make(tmp_path / "maps.npy", (images, labels), size=24)
    options = {"crop": None, "size": 24, "shuffle": False, "batch_size": 12, "output": "uint8", "maps": file}
    maps = spectral_maps(images).astype(np.float16).astype(np.float32)
    for flip in (0.0, 1.0):
        crops = images[:, :, ::-1] if flip else images
        batch = replace(Batch.of(crops, labels), maps=maps[:, :, ::-1] if flip else maps)
        ((made, _),) = loader_of((images, labels), mix=SGMix(), hflip=flip, **options)
        np.testing.assert_array_equal(made.permute(0, 2, 3, 1), mix(SGMix(), batch, Key(11)).images)
        assert (made.permute(0, 2, 3, 1).numpy() != crops).any()


def test_maps_of_a_file_and_threads(photos: Path, file: MapFile) -> None:
    want = digests(loader_of(photos, mix=SGMix(), maps=file), 2)
    assert digests(loader_of(photos, mix=SGMix(), maps=file, num_workers=3), 2) == want


def test_a_bank_is_not_told_what_a_mask_gave_away(photos: Path) -> None:
    bank = MapBank(COUNT, (6, 6))
    loader = loader_of(photos, mix=SGMix(), maps=bank, output="uint8", crop="center", hflip=0.0)
    crops, _, _ = crops_of(photos, crop="center", hflip=0.0)
    first, _ = next(iter(loader))
    np.testing.assert_array_equal(first.permute(0, 2, 3, 1), crops)  # nothing is known in the first epoch
    loader = loader_of(photos, mix=SGMix(), maps=bank, output="uint8", crop="center", hflip=0.0)
    rng = np.random.default_rng(0)
    for _ in loader:
        loader.put_maps(rng.random((len(loader.delivered.ids), 6, 6)) ** 4)
    for images, _ in loader:  # the second epoch is mixed
        hidden = loader.delivered.hidden
        assert hidden is not None and len(images) == len(hidden)
        loader.put_maps(np.ones((len(hidden), 6, 6)))
        kept = bank.written(1)
        rows = {int(number): entry for number, entry in zip(kept[0], kept[2]["map"], strict=True)}
        for number, gone in zip(loader.delivered.ids.tolist(), hidden, strict=True):
            assert (np.isnan(rows[number]) == gone).all()
            assert hidden.any() and not hidden.all()


def test_hidden_cells_are_those_of_which_less_than_half_is_left() -> None:
    images = np.zeros((2, 4, 6, 3), np.uint8)
    params = SaliencyMix().draw(Key(0), Batch.of(images, [0, 1]))
    masks = np.zeros((2, 4, 6, 1), np.uint8)
    masks[1, :2, :3] = 255  # all of a cell
    masks[1, 2:, :3] = 127  # less than half of one
    masks[1, :2, 3:] = 128  # more
    program = replace(params.program, masks=masks)
    program.steps["where"], program.steps["index"], program.steps["mode"] = 3, [[0], [1]], [[0], [1]]
    hidden = hidden_cells(replace(params, program=program), (2, 2))
    assert hidden.tolist() == [[[False, False], [False, False]], [[False, False], [True, True]]]


def test_explain_tells_of_masks(photos: Path) -> None:
    loader = loader_of(photos, mix=SGMix(), maps=SpectralResidual(CELLS), output="uint8")
    images, _ = next(iter(loader))
    row = 3
    told = loader.explain(int(loader.delivered.ids[row]), 0)
    np.testing.assert_array_equal(told.pictures[-1], images[row].permute(1, 2, 0))
    (step,) = told.steps[0]
    assert step.startswith("x = sample ") and step.endswith(f" outside of mask {row}")


# ------------------------------------------------------------------ bad input


def test_masks_that_lead_beyond_are_refused() -> None:
    class Wrong(SGMix):
        def draw(self, key: Key, batch: Batch) -> Any:
            params = super().draw(key, batch)
            program = replace(params.program, masks=params.program.masks[:, : self.rows])
            program.steps["index"] += self.shift
            return replace(params, program=program)

    images = np.random.default_rng(0).integers(0, 256, (8, 20, 20, 3), dtype=np.uint8)
    images[:, 5:10, 5:10] //= 8
    batch = replace(Batch.of(images, np.arange(8)), maps=spectral_maps(images))
    for rows, shift, message in (
        (20, 1, "masks of its steps .* run from 0 to 8, expected 0..7"),
        (19, 0, "are 19 x 20"),
    ):
        wrong = Wrong()
        wrong.rows, wrong.shift = rows, shift  # type: ignore[attr-defined]
        params = wrong.draw(Key(0), batch)
        assert (SGMix().outcomes(batch) <= Outcome.OWN).any()
        with pytest.raises(ValueError, match=message):
            check_params(params, images.shape, (0, 20, 20, 3))


@pytest.mark.parametrize("shape", [(0, 4), (4,), 7, (2.5, 4), "ab"])
def test_bad_shapes(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"shape is .*, expected a pair \(h, w\) of cells >= 1"):
        SpectralResidual(shape)


def test_there_is_no_bank_to_put_maps_into(photos: Path) -> None:
    loader = loader_of(photos, mix=SGMix(), maps=SpectralResidual(CELLS))
    next(iter(loader))
    with pytest.raises(ValueError, match="the loader has no bank for maps"):
        loader.put_maps(np.zeros((BATCH, 7, 7)))


def test_methods_are_drawn_once_a_view(photos: Path) -> None:
    """Also where there are more mixed views than crops."""
    loader = loader_of(photos, views=3, mix=SGMix(), maps=SpectralResidual(CELLS))
    recipe = loader._recipe(loader.mix)
    assert len(draw(recipe, Key(0), np.arange(4), [np.zeros((4, 3, 3), np.float32)])) == 2
    assert recipe.crop.size == (SIZE, SIZE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spectral_maps(np.zeros((8, 8, 3), np.uint8)), r"images are uint8 \(8, 8, 3\), expected a NumPy array"),
        (lambda: spectral_maps(np.zeros((1, 8, 8, 3), np.float32)), "images are float32"),
        (lambda: spectral_maps(torch.zeros(1, 8, 8, 3)), r"images are torch.float32 \(1, 8, 8, 3\)"),
        (lambda: distances(np.zeros((2, 3, 3)), np.zeros((2, 4, 4))), r"have \(3, 3\) cells and others \(4, 4\)"),
        (lambda: object_masks(np.zeros((1, 3, 3)), (0, 4)), r"size is \(0, 4\), expected pixels >= 1"),
        (lambda: otsu(np.zeros((3, 4))), r"maps are float64 \(3, 4\), expected numbers \(N, h, w\)"),
        (lambda: otsu(np.zeros((1, 3, 4)), "last"), "plateau is 'last', expected one of"),
    ],
)
def test_bad_arrays(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_thresholds_of_floats_and_of_their_levels_are_the_same() -> None:
    maps = np.random.default_rng(4).random((9, 30, 20)) ** 3
    low, high = maps.min((1, 2), keepdims=True), maps.max((1, 2), keepdims=True)
    levels = np.minimum((maps - low) / (high - low) * 256, 255).astype(np.uint8)
    expected = [threshold_otsu(each) for each in levels]
    assert otsu(levels).tolist() == expected
    assert np.abs(otsu(maps) - expected).max() <= 1  # float32 may put a value into the next bin
    assert otsu(np.array([[[10, 200]]], np.uint8), "middle").tolist() == [104]
