"""Files of maps: pictures are known by their content, and crops see their part of the map."""

import hashlib
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loading import loader_of, make_arrays
from PIL import Image

from fastmix import ArrayDataset, FastmixError, MapFile, SGMix
from fastmix.datasets import open_source
from fastmix.mapfile import content_digest, whole_pictures
from fastmix.maps import Geometry
from fastmix.saliency import spectral_maps

CELLS = (5, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six pictures of several shapes in two classes."""
    rng = np.random.default_rng(0)
    for number in range(6):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (30 + 5 * number, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "data"


def means(images: Any, _ids: Any) -> torch.Tensor:
    return F.adaptive_avg_pool2d(torch.from_numpy(images).float().mean(3)[:, None], CELLS)[:, 0]


def test_maps_are_made_of_whole_pictures(folder: Path, tmp_path: Path) -> None:
    """Resized as Pillow does, and found again by each sample."""
    file = MapFile.make(tmp_path / "maps.npy", folder, means, size=(20, 16), batch_size=4)
    assert len(file) == 6 and file.shape == CELLS
    source = open_source(folder)
    found = file.of(source).take(np.arange(6), Geometry.whole(6))
    for number in range(6):
        small = Image.open(str(source.path(number))).resize((16, 20), Image.Resampling.BILINEAR)
        expected = np.asarray(small, np.float64).mean(2).reshape(5, 4, 4, 4).mean((1, 3))
        np.testing.assert_allclose(found[number], expected, rtol=0, atol=0.3)  # a level of Pillow's, and float16
    assert {path.name for path in tmp_path.iterdir()} == {"maps.npy", "data"}


def test_maps_are_spectral_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    file = MapFile.make(tmp_path / "maps.npy", folder, size=32)
    images, digests = whole_pictures(open_source(folder), np.arange(6), (32, 32))
    rows = np.array([file.row(digest) for digest in digests])
    np.testing.assert_array_equal(file.maps(rows), spectral_maps(images).astype(np.float16))


def test_content_is_what_counts(folder: Path, tmp_path: Path) -> None:
    """Other names, another order and twice the same picture change nothing."""
    file = MapFile.make(tmp_path / "maps.npy", folder, means, size=20)
    before = file.of(open_source(folder)).take(np.arange(6), Geometry.whole(6))
    order = [str(open_source(folder).path(i)) for i in range(6)]
    for number, path in enumerate(order):
        for copy in ("x", "y"):
            other = tmp_path / "other" / "c" / f"{9 - number}{copy}.png"
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, other)
    after = file.of(open_source(tmp_path / "other")).take(np.arange(12), Geometry.whole(12))
    np.testing.assert_array_equal(after, np.repeat(before, 2, 0)[::-1])
    assert len(MapFile.make(tmp_path / "both.npy", tmp_path / "other", means, size=20)) == 6


def test_digests_are_sha256() -> None:
    assert content_digest(b"abc") == hashlib.sha256(b"abc").digest()
    tall, wide = np.zeros((2, 3, 3), np.uint8), np.zeros((3, 2, 3), np.uint8)
    assert content_digest(tall) != content_digest(wide) and content_digest(tall) == content_digest(tall.copy())


def test_digests_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    names = [bytes(8) + bytes([number]) + bytes(23) for number in range(5)]
    file = MapFile.write(tmp_path / "maps.npy", names[::-1], np.arange(5)[:, None, None] * np.ones((1, 2, 2)))
    assert [file.maps(np.array([file.row(name)]))[0, 0, 0] for name in names] == [4, 3, 2, 1, 0]
    assert file.row(bytes(8) + bytes([9]) + bytes(23)) == file.row(b"\xff" * 32) == -1


CUTS: list[dict[str, Any]] = [
    {"crop": "random_resized", "scale": (0.2, 0.9)},
    {"crop": "pad4", "size": 56},
    {"crop": "center", "hflip": 0.5},
    {"crop": None, "size": 56, "hflip": 0.5},
]


@pytest.mark.parametrize("options", CUTS, ids=lambda options: str(options["crop"]))
@pytest.mark.parametrize("channel", [0, 1])
def test_crops_see_their_part(options: dict[str, Any], channel: int, tmp_path: Path) -> None:
    """Of a picture whose levels are x and y, the map says in every cell of a crop what the crop shows there."""
    level = np.arange(56, dtype=np.uint8) * 4
    one = np.zeros((56, 56, 3), np.uint8)
    one[..., 0], one[..., 1], one[..., 2] = level, level[:, None], 255
    n = 16
    arrays = np.stack([one] * n), np.zeros(n, int)
    file = MapFile.make(tmp_path / "maps.npy", arrays, lambda images, _: images[:, 2::4, 2::4, channel] - 2.0, size=56)
    loader = loader_of(arrays, batch_size=n, mix=SGMix(), maps=file, output="uint8", **options)
    seen: list[Any] = []
    maps = loader._extras.maps
    take = maps.take  # type: ignore[union-attr]
    maps.take = lambda *args: seen.append(take(*args)) or seen[-1]  # type: ignore[union-attr,func-returns-value]
    ((images, _),) = loader
    assert images.shape[0] == n
    loader = loader_of(arrays, batch_size=n, output="uint8", **options)
    ((images, _),) = loader
    shown = F.adaptive_avg_pool2d(images.float(), 14)
    inner = (shown[:, 2] == 255).numpy()
    known = np.isfinite(seen[0])
    assert (known | ~inner).all()  # every cell of which nothing is padded is known
    difference = np.abs(seen[0] - shown[:, channel].numpy())[known & inner]
    assert known.mean() > 0.5 and np.median(difference) < 2 and difference.max() < 10  # flat beyond outermost centres


def test_several_threads_may_ask(folder: Path, tmp_path: Path) -> None:
    file = MapFile.make(tmp_path / "maps.npy", folder, means, size=20)
    want = file.of(open_source(folder)).take(np.arange(6), Geometry.whole(6))
    asked = file.of(open_source(folder))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: asked.take(np.arange(6), Geometry.whole(6)), range(40)))
    assert all(np.array_equal(each, want) for each in found)


def test_a_copy_opens_the_same_file(folder: Path, tmp_path: Path) -> None:
    file = MapFile.make(tmp_path / "maps.npy", folder, means, size=20)
    copy = pickle.loads(pickle.dumps(file))
    np.testing.assert_array_equal(copy.maps(np.arange(6)), file.maps(np.arange(6)))


# ------------------------------------------------------------------ bad input


def test_a_picture_without_a_map_is_named(folder: Path, tmp_path: Path) -> None:
    file = MapFile.make(tmp_path / "maps.npy", folder, means, size=20)
    Image.new("RGB", (9, 9)).save(folder / "b" / "7.png")
    loader = loader_of(folder, mix=SGMix(), maps=file)
    with pytest.raises(FastmixError, match=r"sample 6 \(.*7.png\) has no map in .*maps.npy: make the file again"):
        list(loader)
    arrays = ArrayDataset(*make_arrays(3))
    with pytest.raises(ValueError, match="sample 1 has no map"):
        file.of(arrays).take(np.array([1]), Geometry.whole(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nonsense", "cannot open the maps .*; expected a file of MapFile.make"),
        (np.zeros((3, 4)), r"holds float64 \(3, 4\), expected a file of MapFile.make"),
        (np.zeros(3, np.dtype([("digest", "u1", (32,)), ("map", "<f2")])), "expected a file of MapFile.make"),
    ],
)
def test_other_files_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(ValueError, match=message):
        MapFile(path)


def test_files_that_are_cut_off_or_missing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    MapFile.make(path, folder, means, size=20)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cannot open the maps"):
        MapFile(path)
    with pytest.raises(FileNotFoundError):
        MapFile(tmp_path / "none.npy")


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (np.zeros((2, 3, 3)), r"maps are float64 \(2, 3, 3\), expected numbers \(3, h, w\)"),
        (np.zeros((3, 3)), r"expected numbers \(3, h, w\)"),
        (np.zeros((3, 0, 2)), r"expected numbers \(3, h, w\)"),
        (np.array([["a"]]), r"expected numbers \(3, h, w\)"),
    ],
)
def test_bad_maps(maps: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        MapFile.write(tmp_path / "maps.npy", [bytes([number]) * 32 for number in range(3)], maps)
    assert list(tmp_path.iterdir()) == []


def test_unknown_values_stay_unknown(tmp_path: Path) -> None:
    maps = np.array([[[1.0, np.nan], [np.inf, 2]]])
    file = MapFile.write(tmp_path / "maps.npy", [bytes(32)], maps)
    np.testing.assert_array_equal(file.maps(np.array([0])), maps)
