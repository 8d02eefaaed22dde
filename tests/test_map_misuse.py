"""Maps of any scale, and what is told to whoever makes or asks for maps of the wrong kind."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import loader_of, make_arrays
from PIL import Image
from scipy.spatial.distance import cdist

from fastmix import FastmixError, MapBank, MapFile, SGMix, SpectralResidual
from fastmix.datasets import open_source
from fastmix.mapfile import content_digest
from fastmix.maps import Geometry
from fastmix.saliency import distances, object_levels, object_masks, otsu, spectral_maps, stretched

CELLS = (3, 4)
BROKEN = 2  # the number of the broken file


def ones(images: Any, _ids: Any) -> Any:
    return np.ones((len(images), *CELLS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six pictures of noise in one class; one of them is a JPEG whose last bytes are missing."""
    rng = np.random.default_rng(0)
    root = tmp_path / "data" / "a"
    root.mkdir(parents=True)
    for number in range(6):
        picture = Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8))
        picture.save(root / f"{number}.png")
    (root / f"{BROKEN}.png").unlink()
    data = io.BytesIO()
    picture.save(data, "JPEG")
    (root / f"{BROKEN}.jpg").write_bytes(data.getvalue()[:-900])
    return root.parent


# ------------------------------------------------------------------ maps of any scale


SCALES = [1e-300, 1e-40, 1e-9, 2.0**-24, 1e-3, 1.0, 6e4, 7e4, 1e30, 1e300]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kept", ["file", "bank"])
def test_any_scale_will_do(kept: str, scale: float, tmp_path: Path) -> None:
    """Ratios inside a map are as float16 has them at best, whatever its neighbours are like."""
    maps = np.random.default_rng(1).uniform(0.25, 1, (3, 4, 4))
    maps[0] *= scale
    maps[1] *= -scale
    found = through(kept, maps, tmp_path).astype(np.float64)
    for map_, like in zip(found, maps, strict=True):
        np.testing.assert_allclose(map_ / map_[0, 0], like / like[0, 0], rtol=2.1 * 2.0**-11)


@pytest.mark.parametrize("kept", ["file", "bank"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_maps_are_scaled_by_powers_of_two(kept: str, dtype: Any, tmp_path: Path) -> None:
    """So ratios of values of 11 bits are exact; within 2^-10 to 65504 nothing is scaled, nor are zeros."""
    small, whole, zero = (
        np.array([[-1024, 1], [2047, 3]]) * 2.0**-24,
        np.array([[2.0**-10, 0], [0, 65504]]),
        np.zeros((2, 2)),
    )
    maps = np.stack([small, np.minimum(whole, 2.0**-10), whole, zero]).astype(dtype)
    found = through(kept, maps, tmp_path)
    np.testing.assert_array_equal(found[1:], maps[1:])
    np.testing.assert_array_equal(found[0] * 2047, np.array([[-1024, 1], [2047, 3]]) * found[0].max())
    assert 0.5 <= found[0].max() < 1  # so that a hundred-thousandth of it is not lost


@pytest.mark.parametrize("kept", ["file", "bank"])
def test_integers_are_scaled(kept: str, tmp_path: Path) -> None:
    maps = np.array([[[-(2**63), 2**62]], [[3, -5]]])
    found = through(kept, maps, tmp_path)
    assert found[0, 0, 0] == -2 * found[0, 0, 1] and np.isfinite(found).all()
    np.testing.assert_array_equal(found[1], maps[1])


def through(kept: str, maps: Any, folder: Path) -> Any:
    """Maps that were kept in a file, or in a bank."""
    ids = np.arange(len(maps))
    if kept == "bank":
        bank = MapBank(len(maps), maps.shape[1:])
        bank.put(ids, maps, Geometry.whole(len(maps)), 0)
        return bank.take(ids, Geometry.whole(len(maps)), 1)
    return MapFile.write(folder / "maps.npy", [bytes([number]) * 32 for number in ids], maps).maps(ids)


def test_values_that_are_not_finite_have_no_part_in_the_scale(tmp_path: Path) -> None:
    maps = np.array([[[1e-9, np.nan], [np.inf, 2e-9]]])
    found = through("file", maps, tmp_path)[0]
    assert np.isnan(found[0, 1]) and np.isinf(found[1, 0]) and found[1, 1] == pytest.approx(2 * found[0, 0], rel=1e-3)


def test_gradients_of_any_size_make_the_same_composites(tmp_path: Path) -> None:
    arrays = make_arrays(16)
    made = []
    for scale in (1.0, 2.0**-40, 2.0**-140):

        def maps_of(images: Any, _ids: Any, scale: float = scale) -> torch.Tensor:
            return torch.from_numpy(spectral_maps(images, (8, 8)) * 256).double().round() * scale

        file = MapFile.make(tmp_path / "maps.npy", arrays, maps_of, size=32)
        made += [images for images, _ in loader_of(arrays, mix=SGMix(), maps=file, output="uint8", size=32)]
    plain = [images for images, _ in loader_of(arrays, output="uint8", size=32)]
    assert all(torch.equal(a, b) for a, b in zip(made[:2] * 2, made[2:], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(made[:2], plain, strict=True))


# ------------------------------------------------------------------ making a file


def told(message: str, error: Any = ValueError, **options: Any) -> int:
    """Make a file that is refused; how often maps were made before that."""
    calls = []
    maps_of = options.pop("maps_of", ones)
    given = {"path": "none", "dataset": make_arrays(20), "size": 8, "batch_size": 4, **options}
    with pytest.raises(error, match=message):
        MapFile.make(maps_of=lambda images, ids: calls.append(ids) or maps_of(images, ids), **given)  # type: ignore[func-returns-value]
    return len(calls)


@pytest.mark.parametrize(
    ("maps_of", "message"),
    [
        (lambda images, _: np.zeros((len(images), 4)), r"maps are float64 \(4, 4\), expected numbers \(4, h, w\)"),
        (lambda images, _: np.zeros((len(images), 1, 2, 2)), r"expected numbers \(4, h, w\)"),
        (lambda images, _: np.zeros((len(images) - 1, 2, 2)), r"maps are float64 \(3, 2, 2\), expected .* \(4, h, w\)"),
        (lambda images, _: np.zeros((len(images), 0, 2)), r"maps are float64 \(4, 0, 2\), expected .* \(4, h, w\)"),
        (lambda images, _: np.ones((len(images), 2, 2), bool), "maps are bool"),
        (lambda images, _: np.full((len(images), 2, 2), "a"), "maps are <U1"),
        (lambda _images, _ids: None, r"maps are object \(\), expected numbers"),
    ],
)
def test_wrong_maps_are_told_at_the_first_batch(maps_of: Any, message: str, tmp_path: Path) -> None:
    assert told(message, maps_of=maps_of, path=tmp_path / "maps.npy") == 1
    assert list(tmp_path.iterdir()) == []


def test_maps_of_another_size_are_told_at_once(tmp_path: Path) -> None:
    def maps_of(images: Any, ids: Any) -> Any:
        return np.zeros((len(images), 2, 2 + int(ids[0]) // 8))

    message = r"maps have 2 x 3 cells, expected 2 x 2 as those before"
    assert told(message, maps_of=maps_of, path=tmp_path / "maps.npy") == 3


def test_the_place_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("is a folder, expected the name of a .npy file", IsADirectoryError, path=tmp_path) == 0
    assert told("folder .*no does not exist: make it", FileNotFoundError, path=tmp_path / "no" / "maps.npy") == 0
    monkeypatch.setattr("os.access", lambda *_: False)
    assert told("folder .* is write-protected", PermissionError, path=tmp_path / "maps.npy") == 0
    assert told("expected", TypeError, path=None) == 0


@pytest.mark.parametrize("value", [0, -1, 2.5, None, "4", True])
def test_wrong_batch_sizes(value: Any, tmp_path: Path) -> None:
    message = f"batch_size is {value!r}, expected an integer >= 1"
    assert told(message, batch_size=value, path=tmp_path / "maps.npy") == 0


@pytest.mark.parametrize("value", [0, -3, (3,), (4, 5, 6), 2.5, None, "ab", (2.5, 3), (0, 4), True, (True, 4)])
def test_wrong_sizes(value: Any, tmp_path: Path) -> None:
    message = f"size is {value!r}, expected pixels >= 1: an integer or a pair (height, width)"
    assert told(re.escape(message), size=value, path=tmp_path / "maps.npy") == 0


def test_wrong_choices_and_no_pictures(tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    assert told("on_error is 'replace', expected one of", on_error="replace", path=path) == 0
    for dataset in ([], (np.empty((0, 4, 4, 3), np.uint8), np.empty(0, int))):
        assert told("the data set is empty, expected pictures", dataset=dataset, path=path) == 0


def test_numbers_of_numpy_will_do(tmp_path: Path) -> None:
    path, arrays = tmp_path / "maps.npy", make_arrays(5)
    for size in (np.int64(9), (np.int32(9), 9), [9, 9]):
        made = MapFile.make(path, arrays, lambda images, _: images[..., 0], size=size, batch_size=np.int64(2))  # type: ignore[arg-type]
        assert made.shape == (9, 9) and len(made) == 5


def test_a_broken_picture_is_named(folder: Path, tmp_path: Path) -> None:
    message = rf"sample {BROKEN} \(.*{BROKEN}.jpg\), stage decode: .*; mend or remove it, or pass on_error='skip'"
    told(message, FastmixError, dataset=folder, path=tmp_path / "maps.npy")
    pairs = [(np.zeros((4, 4, 3), np.uint8), 0), ("no picture", 1)]
    told("sample 1, stage read: .*str.*on_error='skip'", FastmixError, dataset=pairs, path=tmp_path / "maps.npy")


def test_broken_pictures_are_left_out(folder: Path, tmp_path: Path) -> None:
    """So is their number; a loader that replaces them asks for no map of theirs, any other says what it lacks."""
    asked: list[int] = []

    def maps_of(images: Any, ids: Any) -> Any:
        asked.extend(ids.tolist())
        return np.arange(6)[ids, None, None] + np.zeros((len(images), *CELLS)) + 1

    with pytest.warns(UserWarning, match=rf"pictures without a map: 1\n  {BROKEN} \(.*{BROKEN}.jpg\): "):
        file = MapFile.make(tmp_path / "maps.npy", folder, maps_of, size=16, batch_size=2, on_error="skip")
    good = np.array([0, 1, 3, 4, 5])
    assert asked == good.tolist() and len(file) == 5
    maps = file.of(open_source(folder))
    found = maps.take(good, Geometry.whole(5))
    np.testing.assert_array_equal(found, np.broadcast_to(good[:, None, None] + 1, (5, *CELLS)))
    with pytest.warns(UserWarning, match="bad samples replaced"):
        assert len(list(loader_of(folder, mix=SGMix(), maps=file, on_error="replace"))) == 1
    with pytest.raises(ValueError, match=rf"sample {BROKEN} \(.*{BROKEN}.jpg\) has no map in .*maps.npy"):
        maps.take([BROKEN], Geometry.whole(1))


def test_files_that_are_gone_have_no_map(folder: Path, tmp_path: Path) -> None:
    source = open_source(folder)
    (folder / "a" / "4.png").unlink()
    with pytest.warns(UserWarning, match=r"pictures without a map: 2\n.*\n  4 \(.*4.png\): .*No such file"):
        file = MapFile.make(tmp_path / "maps.npy", source, ones, size=16, on_error="skip")
    assert len(file) == 4


def test_nothing_but_broken_pictures(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"none of the 6 pictures can be read, .*0.png: not a picture"):
        MapFile.make(tmp_path / "maps.npy", folder, ones, on_error="skip")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_sound_pictures_give_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(MapFile.make(tmp_path / "maps.npy", make_arrays(5), ones, size=8, on_error="skip")) == 5


@pytest.mark.parametrize(
    "digests",
    [[b"a"], ["a" * 32], [bytes(32), b"b" * 48], [bytes(16), bytes(48)], bytes(2), np.zeros((2, 32), np.uint8)],
)
def test_wrong_digests(digests: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"digest [01] is .*, expected 32 bytes, as content_digest gives"):
        MapFile.write(tmp_path / "maps.npy", digests, np.zeros((len(digests), 2, 2)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind",
    [
        [("digest", "u1", (32,)), ("map", "<f8", (4, 4))],
        [("digest", "u1", (16,)), ("map", "<f2", (4, 4))],
        [("digest", "S32"), ("map", "<f2", (4, 4))],
        [("digest", "u1", (32,)), ("map", "<f2", (0, 4))],
    ],
)
def test_files_of_other_columns_are_refused(kind: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "maps.npy", np.zeros(3, kind))
    with pytest.raises(ValueError, match=r"holds .*, expected a file of MapFile.make"):
        MapFile(tmp_path / "maps.npy")


def test_the_digest_of_a_picture_is_what_write_wants(tmp_path: Path) -> None:
    file = MapFile.write(tmp_path / "maps.npy", [content_digest(b"abc")], np.ones((1, 2, 2)))
    assert file.row(content_digest(b"abc")) == 0


# ------------------------------------------------------------------ fastmix.saliency


@pytest.mark.parametrize("size", [5, (5,), (0, 4), (4, 4, 4), (2.5, 3), "ab", None, (-1, 3), (True, 4), (np.nan, 3)])
@pytest.mark.parametrize("function", [object_masks, object_levels])
def test_sizes_that_are_no_pair(function: Any, size: Any) -> None:
    with pytest.raises(ValueError, match=r"size is .*, expected pixels >= 1: a pair \(height, width\)"):
        function(np.eye(3)[None], size)


@pytest.mark.parametrize("size", [(6, 4), [6, 4], (np.int64(6), np.int32(4))])
def test_sizes_that_are_a_pair(size: Any) -> None:
    assert object_masks(np.eye(3)[None], size).shape == (1, 6, 4)


def test_distances_to_nothing() -> None:
    maps = np.random.default_rng(0).random((4, 3, 5))
    assert distances(maps, maps[:0]).shape == (4, 0)
    assert distances(maps[:0], maps).shape == (0, 4)
    assert distances(maps[:0], maps[:0]).shape == (0, 0)


@pytest.mark.parametrize("most", [3.4e38, 1e30, 1.0])
def test_the_whole_range_of_float32(most: float) -> None:
    """Beside other maps, which stay what they are."""
    unit = np.array([[[1, -1], [0, 0.5]], [[0, 1], [0.25, 1]], [[np.nan, -1], [1, np.inf]]])
    maps = (unit * np.array([most, 1, most])[:, None, None]).astype(np.float32)
    expected = np.array([[[1, 0], [0.5, 0.75]], [[0, 1], [0.25, 1]], [[0, 0], [1, 0]]])
    np.testing.assert_allclose(stretched(maps), expected, rtol=1e-6)
    flat = expected.reshape(3, 4)
    np.testing.assert_allclose(distances(maps, maps), cdist(flat, flat), rtol=1e-6)
    np.testing.assert_array_equal(object_masks(maps, (2, 2)), object_masks(expected, (2, 2)))


def test_values_beyond_float32_count_as_the_least() -> None:
    np.testing.assert_array_equal(stretched([[[1e300, -1e300], [0, 2]]]), [[[0, 0], [0, 1]]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_with_gradients(dtype: Any) -> None:
    maps = torch.arange(12, dtype=dtype).reshape(2, 2, 3)
    wanted = maps.float().numpy()
    maps.requires_grad_()
    np.testing.assert_array_equal(stretched(maps), stretched(wanted))
    np.testing.assert_array_equal(otsu(maps), otsu(wanted))
    np.testing.assert_array_equal(object_masks(maps, (6, 6)), object_masks(wanted, (6, 6)))
    np.testing.assert_array_equal(distances(maps, maps), distances(wanted, wanted))


def test_tensors_of_levels_stay_levels() -> None:
    levels = np.array([[[3, 3], [200, 90]]], np.uint8)
    np.testing.assert_array_equal(otsu(torch.from_numpy(levels)), otsu(levels))


@pytest.mark.parametrize("shape", [(2, 0, 5, 3), (2, 5, 0, 3)])
def test_pictures_without_pixels(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"images are uint8 \(2, ., ., 3\), expected .* with H, W >= 1"):
        spectral_maps(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(True, True), (8, True), (0, 3), 5, (3,), (2.5, 3), "ab", None])
def test_shapes_that_are_no_pair(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"shape is .*, expected a pair \(h, w\) of cells >= 1"):
        SpectralResidual(shape)


# ------------------------------------------------------------------ what SGMix says of itself


def test_sgmix_has_no_chance_in_it_for_a_second_mixed_view() -> None:
    ((images, _),) = loader_of(make_arrays(8), mix=SGMix(), maps=SpectralResidual(), views=3, output="uint8", size=32)
    assert torch.equal(images[8:16], images[16:]) and not torch.equal(images[:8], images[8:16])
    assert "views=3" in str(SGMix.__doc__)
