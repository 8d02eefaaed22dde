"""What comes out of the loader, and what it refuses; expected pictures come from Pillow, NumPy and torchvision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import COUNT, METHODS, POOL, SIZE, digests, loader_of, make_arrays, make_photos
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, ToTensor

import fastmix
from fastmix import DataLoader, FastmixError
from fastmix.engine import level_table
from fastmix.rng import Key

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def pictures(loader: DataLoader) -> Any:
    """All pictures of an epoch, (N, H, W, 3) uint8, from a loader with output="uint8"."""
    return torch.cat([images for images, _ in loader]).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("name", ["plain", "pixmix"])
def test_normalised_as_torchvision_does(photos: Path, name: str) -> None:
    levels = pictures(loader_of(photos, mix=METHODS[name], output="uint8"))
    floats = torch.cat([images for images, _ in loader_of(photos, mix=METHODS[name])])
    transform = Compose([ToTensor(), Normalize(MEAN, STD)])
    want = torch.stack([transform(picture) for picture in levels])
    assert floats.dtype == torch.float32
    np.testing.assert_array_equal(floats, want)


@pytest.mark.parametrize(("output", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_half_precision_and_layouts(photos: Path, output: str, dtype: torch.dtype, memory_format: Any) -> None:
    floats = loader_of(photos, mix=METHODS["cutmix"], batch_size=32)
    halves = loader_of(photos, mix=METHODS["cutmix"], batch_size=32, output=output, memory_format=memory_format)
    (want, _), (found, _) = next(iter(floats)), next(iter(halves))
    assert found.dtype == dtype and found.shape == want.shape
    assert found.is_contiguous(memory_format=memory_format)
    assert torch.equal(found, want.to(dtype))


def test_own_mean_and_std() -> None:
    table = level_table("float32", (0.5, 0.0, 1.0), (0.5, 1.0, 2.0))
    np.testing.assert_allclose(table[:, [0, 255]], [[-1, 1], [0, 1], [-0.5, 0]], atol=1e-7)


def test_random_resized_pixels_are_pillows(photos: Path) -> None:
    loader = loader_of(photos, shuffle=False, output="uint8")
    flips = []
    for row, picture in enumerate(pictures(loader)):
        told = loader.explain(row, 0)
        left, top, width, height = told.box
        assert told.path is not None
        with Image.open(told.path) as file:
            box = (left, top, left + width, top + height)
            want = np.asarray(file.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box), np.int16)
        want = want[:, ::-1] if told.flip else want
        flips.append(told.flip)
        # Beyond 6 times the output the file is decoded at half size, which is a little softer.
        assert np.abs(picture - want).mean() <= 1.0
        if min(width, height) < 6 * SIZE:
            assert np.abs(picture - want).max() <= 1
    assert 0 < sum(flips) < COUNT


def test_pad4_is_a_window_in_the_padded_picture() -> None:
    images, labels = make_arrays(50, 16)
    loader = loader_of((images, labels), shuffle=False, crop="pad4", size=16, output="uint8")
    seen = set()
    for row, picture in enumerate(pictures(loader)):
        told = loader.explain(row, 0)
        left, top = int(told.box[0]) + 4, int(told.box[1]) + 4
        want = np.pad(images[row], ((4, 4), (4, 4), (0, 0)))[top : top + 16, left : left + 16]
        np.testing.assert_array_equal(picture, want[:, ::-1] if told.flip else want)
        seen.add((left, top, told.flip))
    assert {flip for _, _, flip in seen} == {False, True} and len(seen) > 40


@pytest.mark.parametrize(("hflip", "low", "high"), [(None, 0, 0), (0.0, 0, 0), (0.5, 60, 140), (1.0, 200, 200)])
def test_pictures_as_they_are(hflip: float | None, low: int, high: int) -> None:
    images, labels = make_arrays(200, 8)
    loader = loader_of((images, labels), shuffle=False, crop=None, size=8, hflip=hflip, output="uint8")
    found = pictures(loader)
    mirrored = [np.array_equal(picture, image[:, ::-1]) for picture, image in zip(found, images, strict=True)]
    plain = [np.array_equal(picture, image) for picture, image in zip(found, images, strict=True)]
    assert sum(mirrored) + sum(plain) == 200 and low <= sum(mirrored) <= high


def test_center_is_a_box_of_the_short_side(photos: Path) -> None:
    """Resize(64) and CenterCrop(56) in one step: the centre's box of 56 / 64 of the short side."""
    loader = loader_of(photos, shuffle=False, crop="center", size=56, output="uint8")
    files = [path for path, _ in ImageFolder(photos).samples]
    for picture, file in zip(pictures(loader), files, strict=True):
        with Image.open(file) as image:
            side = min(image.size) * 56 / 64
            left, top = (image.width - side) / 2, (image.height - side) / 2
            box = (left, top, left + side, top + side)
            want = np.asarray(image.convert("RGB").resize((56, 56), Image.Resampling.BILINEAR, box=box), np.int16)
        assert np.abs(picture - want).mean() <= 1.0
        if side < 6 * 56:
            assert np.abs(picture - want).max() <= 1


@pytest.mark.parametrize("size", [24, (24, 24), (20, 28)])
def test_sizes(photos: Path, size: Any) -> None:
    images, _ = next(iter(loader_of(photos, size=size, mix=METHODS["layermix"])))
    assert images.shape[2:] == (torch.Size(size) if isinstance(size, tuple) else torch.Size((size, size)))


def test_datasets_of_all_kinds(photos: Path) -> None:
    want = digests(loader_of(photos))
    folder = ImageFolder(photos)
    for dataset in (str(photos), folder, Subset(folder, range(COUNT)), fastmix.datasets.open_source(photos)):
        assert digests(loader_of(dataset)) == want
    images, labels = make_arrays(20)
    chw = [(torch.from_numpy(image).permute(2, 0, 1), int(label)) for image, label in zip(images, labels, strict=True)]
    want = digests(loader_of((images, labels), crop="pad4", size=32))
    assert digests(loader_of(chw, crop="pad4", size=32)) == want

    class Fetching(list[Any]):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[i] for i in indices]

    assert digests(loader_of(Fetching(chw), crop="pad4", size=32, num_workers=2)) == want


def test_inputs_are_not_changed() -> None:
    images, labels = make_arrays(20)
    before = images.tobytes()
    digests(loader_of((images, labels), size=32, crop=None, mix=METHODS["mixup"], num_classes=10), 2)
    assert images.tobytes() == before


# Labels.


def test_labels_stay_integers_while_they_are_kept() -> None:
    images, labels = make_arrays(20)
    for mix in (None, METHODS["pixmix"], fastmix.MixUp(enabled=False)):
        found = torch.cat([each for _, each in loader_of((images, labels), shuffle=False, size=32, mix=mix)])
        assert found.dtype == torch.int64
        np.testing.assert_array_equal(found, labels)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_soft_labels_and_pairs_tell_what_is_in_the_picture(name: str) -> None:
    """Picture i is black but for channel i, which is white: the share of a label is that channel's mean."""
    images = np.zeros((3, 20, 20, 3), np.uint8)
    images[range(3), :, :, range(3)] = 255
    options = {"mix": METHODS[name], "size": 20, "crop": None, "mean": (0, 0, 0), "std": (1, 1, 1)}
    given = loader_of((images, np.arange(3)), num_classes=3, **options)
    pairs = loader_of((images, np.arange(3)), labels="pair", **options)
    for _ in range(4):
        ((pixels, soft),), ((same, (a, b, w)),) = given, pairs
        assert soft.shape == (3, 3) and soft.dtype == torch.float32 and not (a == b).any()
        np.testing.assert_array_equal(pixels, same)
        np.testing.assert_allclose(pixels.mean(dim=(2, 3)), soft, atol=3e-3)
        shares = torch.zeros(3, 3).scatter_add_(1, a[:, None], w[:, None]).scatter_add_(1, b[:, None], 1 - w[:, None])
        np.testing.assert_allclose(shares, soft, atol=1e-6)


def test_soft_labels_on_request_and_from_the_dataset() -> None:
    images, labels = make_arrays(8)
    ((_, soft),) = loader_of((images, labels), size=32, shuffle=False, labels="soft", num_classes=10)
    np.testing.assert_array_equal(soft, np.eye(10)[labels])
    given = np.random.default_rng(0).dirichlet(np.ones(4), 8)
    ((_, kept),) = loader_of((images, given), size=32, shuffle=False)
    np.testing.assert_array_equal(kept, given.astype(np.float32))
    ((_, mixed),) = loader_of((images, given), size=32, mix=METHODS["mixup"])
    np.testing.assert_allclose(mixed.sum(dim=1), 1, atol=1e-6)


def test_number_of_classes_comes_from_the_dataset_then_the_method(photos: Path) -> None:
    assert next(iter(loader_of(photos, mix=METHODS["mixup"])))[1].shape == (8, 10)
    assert next(iter(loader_of(photos, mix=METHODS["mixup"], num_classes=12)))[1].shape == (8, 12)
    mix = fastmix.MixUp(num_classes=11)
    assert next(iter(loader_of(make_arrays(), size=32, mix=mix)))[1].shape == (8, 11)
    with pytest.raises(FastmixError, match="stage label: num_classes is unknown"):
        next(iter(loader_of(make_arrays(), size=32, mix=METHODS["mixup"])))
    with pytest.raises(FastmixError, match=r"stage label: labels run from .*, expected 0..2 \(num_classes=3\)"):
        next(iter(loader_of(list(zip(*make_arrays(), strict=True)), size=32, num_classes=3)))
    mixed = [(np.zeros((4, 4, 3), np.uint8), 1), (np.zeros((4, 4, 3), np.uint8), [0.5, 0.5])]
    with pytest.raises(FastmixError, match=r"stage label: .* shapes \[\(\), \(2,\)\]"):
        next(iter(loader_of(mixed, size=4)))


def test_three_views() -> None:
    images, labels = make_arrays(10)
    options = {"size": 32, "crop": "pad4", "shuffle": False, "batch_size": 10}
    method = fastmix.PixMix(pool=POOL)
    ((stacked, kept),) = loader_of((images, labels), views=3, mix=method, **options)
    ((clean, _),), ((mixed, _),) = (
        loader_of((images, labels), **options),
        loader_of((images, labels), mix=method, **options),
    )
    assert stacked.shape == (30, 3, 32, 32)
    np.testing.assert_array_equal(kept, labels)
    np.testing.assert_array_equal(stacked[:10], clean)
    np.testing.assert_array_equal(stacked[10:20], mixed)
    assert sum(not torch.equal(a, b) for a, b in zip(stacked[10:20], stacked[20:], strict=True)) >= 7
    loader = loader_of((images, labels), views=3, mix=method, **options)
    loader.mix.enabled = False
    ((off, _),) = loader
    np.testing.assert_array_equal(off, torch.cat([clean] * 3))


# explain


@pytest.mark.parametrize(
    ("name", "views"),
    [*((name, 1) for name in METHODS), *((name, 3) for name, mix in METHODS.items() if mix and mix.label_preserving)],
)
def test_explain_replays_a_row(photos: Path, name: str, views: int) -> None:
    method = METHODS[name]
    loader = loader_of(photos, mix=method, output="uint8", labels="pair", views=views, num_workers=2)
    loader.set_epoch(2)
    numbers = loader_of(photos, labels="pair")  # the order of a plain loader, to learn which row is which sample
    for (images, (a, b, w)), samples in zip(loader, orders(numbers, 2), strict=True):
        for row in (0, len(samples) - 1):
            told = loader.explain(int(samples[row]), 2)
            assert (told.id, told.epoch, told.label) == (samples[row], 2, a[row])
            assert told.weight == w[row] and told.path is not None and told.path.endswith(".jpg")
            rows = images.permute(0, 2, 3, 1).reshape(views, len(samples), SIZE, SIZE, 3)[:, row]
            np.testing.assert_array_equal(told.pictures, rows)
            if told.partner is not None:
                assert b[row] == loader.explain(told.partner, 2).label
    assert len(told.steps) == {1: 0 if method is None else 1, 3: 2}[views]


def orders(loader: DataLoader, epoch: int) -> list[np.ndarray]:
    return [samples for samples, _ in loader._order().batches(Key(11, epoch))]


def test_explain_in_words(photos: Path) -> None:
    loader = loader_of(photos, mix=fastmix.CutMix(mode="elem"))
    (words,) = loader.explain(3, 0).steps
    assert re.fullmatch(r"x = sample \d+, \d+x\d+ px at \(\d+,\d+\)", words[0])
    (words,) = loader_of(photos, mix=fastmix.MixUp()).explain(3, 0).steps
    assert re.fullmatch(r"x = 0\.\d+ x \+ 0\.\d+ sample \d+", words[0])
    loader.mix = METHODS["layermix"]
    told = [word for i in range(COUNT) for word in loader.explain(i, 0).steps[0]]
    assert any("pool picture" in word for word in told) and any(word.startswith("x > ") for word in told)
    assert loader_of(photos, mix=fastmix.AugMix(enabled=False)).explain(3, 0).steps == ()


def test_explain_refuses_what_it_cannot_know(photos: Path) -> None:
    for wrong in (COUNT, -1, 0.5):
        with pytest.raises(IndexError, match=rf"id is {wrong}, expected the number of a sample, 0..{COUNT - 1}"):
            loader_of(photos).explain(wrong, 0)
    with pytest.raises(ValueError, match="known to its sampler alone"):
        loader_of(photos, mix=METHODS["mixup"], shuffle=False, sampler=list(range(COUNT))).explain(1, 0)
    with pytest.raises(ValueError, match="in no batch of epoch 0: drop_last"):
        loader = loader_of(photos, mix=METHODS["mixup"], drop_last=True)
        for i in range(COUNT):
            loader.explain(i, 0)
