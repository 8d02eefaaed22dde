"""Bad samples, broken datasets and failing draws: what is told, and how the loader goes on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import COUNT, METHODS, SIZE, Sleepy, digests, loader_of, make_arrays, make_photos, threads
from PIL import Image

import fastmix
from fastmix import FastmixError

pytestmark = [
    pytest.mark.filterwarnings("ignore:num_workers is:UserWarning"),
    pytest.mark.usefixtures("no_thread_is_left"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def broken(photos: Path, tmp_path: Path) -> Path:
    """The photographs, and 4 files that cannot be read."""
    for folder in photos.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    bad = tmp_path / "zebra"
    bad.mkdir()
    whole = next(photos.rglob("*.jpg")).read_bytes()
    (bad / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (bad / "empty.jpg").write_bytes(b"")
    (bad / "text.png").write_bytes(b"this is no picture at all")
    (bad / "huge.png").write_bytes(_png_header(60_000, 60_000))
    return tmp_path


def _png_header(width: int, height: int) -> bytes:
    sizes = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + sizes + b"\x08\x02\x00\x00\x00" + bytes(4)


# Errors.


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", ["plain", "mixup", "ipmix"])
def test_errors_come_in_the_place_of_the_batch(broken: Path, workers: int, name: str) -> None:
    loader = loader_of(broken, shuffle=False, mix=METHODS[name], num_workers=workers, batch_size=6)
    good = []
    with pytest.raises(
        FastmixError, match=r"sample 21 \(.*cut.jpg\), stage decode: truncated or damaged JPEG"
    ) as caught:
        for images, _ in loader:
            good.append(images)
    assert len(good) == 3
    assert caught.value.sample_id == 21 and caught.value.path is not None and caught.value.path.endswith("cut.jpg")
    assert threads() == []
    loader.set_epoch(0)
    assert len(next(iter(loader))[0]) == 6


def test_errors_of_a_dataset_name_the_sample() -> None:
    class Failing(Sleepy):
        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            if index in (5, 6):
                raise KeyError("lost")
            return super().__getitem__(index)

    for workers in (0, 4):
        loader = loader_of(Failing(-1, 0), size=4, crop=None, shuffle=False, batch_size=12, num_workers=workers)
        for _ in range(20):  # always the first of the two
            with pytest.raises(FastmixError, match="sample 5, stage read: KeyError: 'lost'") as caught:
                next(iter(loader))
            assert isinstance(caught.value.__cause__, KeyError)


def test_errors_of_a_draw_are_told() -> None:
    class Method(fastmix.MixUp):
        def draw(self, *_: Any) -> Any:
            raise ArithmeticError("no luck")

    for workers in (0, 2):
        with pytest.raises(FastmixError, match="stage draw: ArithmeticError: no luck"):
            next(iter(loader_of(make_arrays(), size=32, mix=Method(), num_workers=workers)))


@pytest.mark.parametrize("name", ["plain", "cutmix", "augmix"])
def test_bad_files_are_replaced_alike_by_any_number_of_threads(broken: Path, name: str) -> None:
    streams = set()
    for workers in (0, 1, 2, 4):
        loader = loader_of(broken, mix=METHODS[name], num_workers=workers, on_error="replace", labels="pair")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            streams.update(digests(loader))
        assert [each.id for each in loader.bad] == [i for i in order_of(loader, 0) if i >= COUNT]
        assert {Path(each.path or "").name for each in loader.bad} == {"cut.jpg", "empty.jpg", "huge.png", "text.png"}
        reasons = " ".join(each.reason for each in loader.bad)
        assert all(words in reasons for words in ("truncated", "empty", "not a picture", "60000 x 60000"))
        (warning,) = [str(each.message) for each in told if "bad samples" in str(each.message)]
        assert "bad samples replaced in epoch 0: 4" in warning and "cut.jpg" in warning
    assert len(streams) == 1


def order_of(loader: fastmix.DataLoader, epoch: int) -> list[int]:
    from fastmix.rng import Key

    return [i for samples, _ in loader._order().batches(Key(11, epoch)) for i in samples.tolist()]


@pytest.mark.filterwarnings("ignore:bad samples replaced:UserWarning")
def test_only_bad_files_change(broken: Path, photos: Path) -> None:
    """Sound samples look as they would without the bad ones, and the stand-in is told."""
    loader = loader_of(broken, on_error="replace", shuffle=False, output="uint8", batch_size=30)
    ((images, labels),) = loader
    ((sound, _),) = loader_of(photos, shuffle=False, output="uint8", batch_size=30)
    np.testing.assert_array_equal(images[:COUNT], sound)
    told = loader.explain(COUNT, 0)
    assert told.bad is not None and told.bad.id == COUNT and told.stand_in is not None
    assert told.label == labels[COUNT] and told.stand_in != COUNT
    np.testing.assert_array_equal(told.pictures[0], images[COUNT].permute(1, 2, 0))
    in_batch = loader_of(broken, on_error="replace", shuffle=False, sampler=[0, COUNT], output="uint8", hflip=0)
    ((images, labels),) = in_batch
    assert labels.tolist() == [0, 0]  # a sampler may leave samples out: only its own batch can lend one


def test_nothing_to_replace_with(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(b"no")
    with pytest.raises(FastmixError, match="16 samples drawn to replace it are bad, too"):
        next(iter(loader_of(tmp_path, on_error="replace")))


def test_replacing_from_a_dataset_that_fetches_batches() -> None:
    class Fetching(Sleepy):
        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            if index == 5:
                raise OSError("gone")
            return super().__getitem__(index)

        def __getitems__(self, indices: list[int]) -> list[tuple[np.ndarray, int]]:
            return [self[index] for index in indices]

    options = {"size": 4, "crop": None, "shuffle": False, "batch_size": 12}
    with pytest.raises(FastmixError, match="stage read: OSError: gone"):
        next(iter(loader_of(Fetching(-1, 0), **options)))
    loader = loader_of(Fetching(-1, 0), on_error="replace", **options)
    with pytest.warns(UserWarning, match="bad samples replaced in epoch 0: 1"):
        ((_, labels),) = loader
    assert [each.id for each in loader.bad] == [5] and labels[5] != 5


def test_unreadable_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(2):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a" / f"{i}.png")
    loader = loader_of(tmp_path, shuffle=False, size=SIZE)
    (tmp_path / "a" / "0.png").unlink()
    with pytest.raises(FastmixError, match=r"sample 0 \(.*0\.png\), stage read: .*No such file"):
        next(iter(loader))
