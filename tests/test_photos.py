"""Cutting small picture sets from installed photographs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastmix import photos


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return photos.cut_photos(tmp_path_factory.mktemp("photos"), 200, seed=7)


def test_writes_a_balanced_folder_a_class(cut: list[Path]) -> None:
    folder = cut[0].parent.parent
    counts = {child.name: len(list(child.iterdir())) for child in folder.iterdir()}
    assert counts == dict.fromkeys(photos._CLASSES, 20)
    assert sorted(cut) == sorted(folder.rglob("*.jpg"))


def test_files_are_like_imagenets(cut: list[Path]) -> None:
    sizes, kilobytes = [], []
    for path in cut:
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.layer[0][1:3] == (2, 2), "4:2:0"  # luma has twice the samples both ways
            assert "progression" not in image.info
            sizes.append(image.size)
        kilobytes.append(path.stat().st_size / 1000)
    width, height = np.array(sizes).T
    assert 0.5 < np.mean((width == 500) & (height == 375)) < 0.7
    assert 0.08 < np.mean((width == 375) & (height == 500)) < 0.2
    assert set(np.maximum(width, height)) == {500} and np.minimum(width, height).min() >= 333
    assert 95 < np.mean(kilobytes) < 116


def test_pictures_differ_within_a_class(cut: list[Path]) -> None:
    assert len({path.read_bytes() for path in cut}) == len(cut)


def test_a_seed_names_the_set(tmp_path: Path, cut: list[Path]) -> None:
    again = photos.cut_photos(tmp_path / "again", 20, seed=7)
    other = photos.cut_photos(tmp_path / "other", 20, seed=8)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in cut[:20]]
    assert not {p.read_bytes() for p in again} & {p.read_bytes() for p in other}


def test_a_crop_shows_its_photograph() -> None:
    # A crop of all of a photograph at its own size is the photograph: checks the box convention and the source.
    flower = photos._photographs()["flower"][0]
    whole = photos._Cut(flower, (0, 0, flower.width, flower.height), flower.size)
    np.testing.assert_array_equal(np.asarray(whole.picture()), np.asarray(flower))
    part = photos._Cut(flower, (10, 20, 110, 70), (100, 50))
    np.testing.assert_array_equal(np.asarray(part.picture()), np.asarray(flower)[20:70, 10:110])


def test_crops_stay_inside() -> None:
    sources = photos._photographs()
    draws = np.random.default_rng(0).choice([1e-9, 0.3, 0.7, 1 - 1e-9], (200, 8))
    for number, u in enumerate(draws):
        pictures = list(sources.values())[number % len(sources)]
        for one in (photos._imagenet_cut(pictures, u), photos._square_cut(pictures, u, 32)):
            left, top, right, bottom = one.box
            assert 0 <= left < right <= one.photo.width and 0 <= top < bottom <= one.photo.height
            assert abs((right - left) / (bottom - top) - one.size[0] / one.size[1]) < 1e-6


def test_progress_sees_every_picture(tmp_path: Path) -> None:
    seen: list[int] = []
    photos.cut_photos(tmp_path, 3, progress=lambda numbers: (seen.append(n) or n for n in numbers))
    assert seen == [0, 1, 2]


def test_patches_are_labelled_pictures_in_memory() -> None:
    images, labels = photos.cut_patches(25, seed=1)
    assert images.shape == (25, 32, 32, 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.arange(25) % 10)
    assert (images.std(axis=(1, 2, 3)) > 2).mean() > 0.9
    np.testing.assert_array_equal(images, photos.cut_patches(25, seed=1)[0])
    assert (images != photos.cut_patches(25, seed=2)[0]).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("count", [0, -1])
def test_refuses_an_empty_set(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"count is {count}, expected at least 1"):
        photos.cut_photos(tmp_path, count)
    with pytest.raises(ValueError, match=f"count is {count}"):
        photos.cut_patches(count)


def test_a_missing_extra_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(photos, "find_spec", lambda name: None if name == "skimage" else object())
    with pytest.raises(ModuleNotFoundError, match=r'skimage, not installed: pip install "fastmix\[demo\]"'):
        photos.cut_photos(tmp_path, 1)


def test_import_loads_no_extra() -> None:
    code = "import sys, fastmix.photos; print({'PIL', 'sklearn', 'skimage', 'torch'} & set(sys.modules))"
    root = Path(__file__).parents[1]
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert made.stdout.strip() == "set()"
