"""Tar shards as a data set: the same batches as from files in a folder, and one clear error for each bad shard."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import METHODS, digest, digests, loader_of, make_photos
from torch.utils.data import DistributedSampler

import fastmix
from fastmix.datasets import open_source

webdataset = pytest.importorskip("webdataset")
from webdataset import shardlists, tariterators  # noqa: E402

from fastmix.loaders.webdataset import Shards  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:num_workers is:UserWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The photographs in the folder's order, eight a shard, as a pattern."""
    root, source = tmp_path_factory.mktemp("shards"), open_source(photos)
    with webdataset.ShardWriter(f"{root}/train-%06d.tar", maxcount=8, verbose=0) as writer:
        for number in range(len(source)):
            item = source.read(number)
            writer.write({"__key__": f"{'long/' * 30}{number:06d}", "jpg": item.data, "cls": item.label})
    return f"{root}/train-{{000000..000002}}.tar"


def write(path: Path, *samples: dict[str, Any]) -> Path:
    with webdataset.TarWriter(str(path), encoder=False) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def sample(key: str, **files: bytes) -> dict[str, Any]:
    return {"__key__": key, **(files or {"jpg": b"picture", "cls": b"1"})}


@pytest.mark.parametrize("method", ["plain", "cutmix", "pixmix"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_a_folder(photos: Path, shards: str, method: str, workers: int) -> None:
    options = {"mix": METHODS[method], "num_workers": workers, "num_classes": 10}
    assert digests(loader_of(Shards(shards), **options), 2) == digests(loader_of(photos, **options), 2)


def test_samples_are_those_that_webdataset_streams(shards: str) -> None:
    with ExitStack() as stack:  # WebDataset itself would leave the files open
        names = shardlists.expand_urls(shards)
        streams = [{"url": name, "stream": stack.enter_context(Path(name).open("rb"))} for name in names]
        samples = list(tariterators.group_by_keys(tariterators.tar_file_expander(streams)))
    want = [(each["jpg"], int(each["cls"])) for each in samples]
    data = Shards(shards)
    assert len(data) == len(want) == 21
    assert [data[i] for i in range(21)] == want
    assert data[-1] == want[-1]
    assert data.path(8).endswith(f"train-000001.tar: {'long/' * 30}000008.jpg")
    with pytest.raises(IndexError):
        data[21]


def test_resume_in_the_middle(shards: str) -> None:
    whole = [digest([batch]) for batch in loader_of(Shards(shards), batch_size=4)]
    loader = loader_of(Shards(shards), batch_size=4, num_workers=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = loader_of(Shards(shards), batch_size=4)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [digest([batch]) for batch in again] == whole[3:]


def test_two_ranks_share_the_samples(shards: str) -> None:
    data = Shards(shards.replace("2}", "1}"))  # 16 samples
    seen: list[list[int]] = []
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, seed=3)  # type: ignore[arg-type, var-annotated]
        loader = loader_of(data, sampler=sampler, shuffle=None, batch_size=3)
        loader.set_epoch(1)
        seen.append([int(each) for _ in loader for each in loader.delivered.ids])
        assert len(loader) == 3
    assert sorted(seen[0] + seen[1]) == list(range(16))
    assert len(seen[0]) == len(seen[1])


def test_a_hundred_samples_are_four_batches(tmp_path: Path, photos: Path) -> None:
    picture = open_source(photos).read(0).data
    write(tmp_path / "a.tar", *(sample(f"{i:03d}", jpg=bytes(picture), cls=b"%d" % i) for i in range(100)))
    loader = loader_of(Shards(tmp_path / "a.tar"), batch_size=32, size=16)
    for _ in range(3):
        labels = [labels for _, labels in loader]
        assert [len(each) for each in labels] == [32, 32, 32, 4]
        assert sorted(torch.cat(labels).tolist()) == list(range(100))


def test_explain_and_replacement_name_the_shard(tmp_path: Path, shards: str) -> None:
    first = Shards(shards.replace("2}", "0}"))
    good = [sample(f"{i}", jpg=bytes(first[i][0]), cls=b"0") for i in range(3)]
    data = Shards(write(tmp_path / "a.tar", *good, sample("bad", jpg=b"no picture", cls=b"0")))
    with pytest.raises(fastmix.FastmixError, match=r"sample 3 .*a\.tar: bad\.jpg.*stage decode"):
        list(loader_of(data))
    loader = loader_of(data, on_error="replace")
    with pytest.warns(UserWarning, match=r"a\.tar: bad\.jpg"):
        assert [len(labels) for _, labels in loader] == [4]
    assert [each.id for each in loader.bad] == [3]
    assert loader.explain(1, 0).path == f"{tmp_path}/a.tar: 1.jpg"


def test_a_pickled_copy_reads_the_same(shards: str) -> None:
    data = Shards(shards, target=lambda number: number + 1)
    assert [each for each in pickle.loads(pickle.dumps(data))] == list(data)  # noqa: C416 (by numbers, to IndexError)


def test_no_handle_is_left(shards: str) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    data = Shards(shards)
    for workers in (0, 2):
        digests(loader_of(data, num_workers=workers))
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_memory_holds_no_pictures(shards: str) -> None:
    data = Shards(shards)
    assert len(pickle.dumps(data)) < 10_000 < sum(len(picture) for picture, _ in data)


def test_labels_of_other_kinds(tmp_path: Path) -> None:
    meta = write(tmp_path / "json.tar", *(sample(f"{i}", PNG=b"x", json=b'{"label": %d}' % i) for i in range(3)))
    data = Shards(meta, label="json", target=lambda value: value["label"])
    assert [data[i] for i in range(3)] == [(b"x", i) for i in range(3)]
    assert data.targets.dtype == np.int64
    soft = Shards(meta, label="cls;json", target=lambda value: [value["label"], 0.5])
    np.testing.assert_array_equal(soft[2][1], np.float32([2, 0.5]))
    with pytest.raises(TypeError, match=r"json\.tar.*sample '0'.*pass target="):
        Shards(meta, label="json")
    with pytest.raises(
        ValueError, match=r"json\.tar: 1\.PNG: the label has shape \(2,\), that of the first sample \(\)"
    ):
        Shards(meta, label="json", target=lambda value: [0, 1] if value["label"] else 0)


def test_the_first_extension_named_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", sample("0", jpg=b"jpg", png=b"png", cls=b"1"), sample("__meta__/0", jpg=b"no"))
    assert Shards(path, image="png;jpg")[0] == (b"png", 1)
    assert Shards(path, image="jpg;png")[0] == (b"jpg", 1)


def test_other_places_are_copied_first(tmp_path: Path, shards: str) -> None:
    local = shards.replace("2}", "0}")
    with pytest.raises(ValueError, match=r"pipe:cat .*expected cache_dir="):
        Shards(f"pipe:cat {local}")
    copied = Shards(f"pipe:cat {local}", cache_dir=tmp_path / "cache")
    assert list(copied) == list(Shards(local)) == list(Shards(f"file:{local}"))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(write(path, sample("0"), sample("1")).read_bytes()[:size])


def spoil(path: Path) -> None:
    data = bytearray(write(path, sample("0"), sample("1")).read_bytes())
    data[2048:2060] = b"x" * 12  # in the header of the second sample
    path.write_bytes(data)


def compress(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(__file__, "0.jpg")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda path: write(path, sample("7", jpg=b"x")),
            ValueError,
            "sample '7' has no label, only jpg; expected cls",
        ),
        (
            lambda path: write(path, sample("7", cls=b"1")),
            ValueError,
            "sample '7' has no image, only cls; expected jpg or",
        ),
        (
            lambda path: write(path, sample("7", tiff=b"", cls=b"1")),
            ValueError,
            "has no image, only cls, tiff;.*by image=",
        ),
        (lambda path: write(path, sample("7", jpg=b"", cls=b"cat")), ValueError, r"sample '7'.*label b'cat' in \.cls"),
        (lambda path: write(path, sample("7"), sample("8"), sample("7")), ValueError, "sample '7' comes again"),
        (
            lambda path: write(path, sample("7"), sample("7")),
            ValueError,
            r"sample '7' has two files \.\w+, expected one",
        ),
        (lambda path: write(path), ValueError, "is empty, expected samples"),
        (lambda path: path.write_bytes(b""), ValueError, "truncated or no tar"),
        (compress, ValueError, "truncated or no tar .*not compressed"),
        (cut(700), ValueError, "truncated"),
        (cut(2048), ValueError, "truncated or damaged at byte 2048"),
        (cut(2148), ValueError, "truncated or damaged at byte 2048"),
        (spoil, ValueError, "truncated or damaged at byte 2048"),
        (lambda _: None, FileNotFoundError, "does not exist"),
    ],
)
def test_bad_shards(make: Callable[[Path], Any], error: type[Exception], words: str, tmp_path: Path) -> None:
    make(tmp_path / "bad.tar")
    with pytest.raises(error, match=rf"bad\.tar'.*{words}"):
        Shards(tmp_path / "bad.tar")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([],), ValueError, r"urls is \[\] and names no shard"),
        (("a.tar::a.tar",), ValueError, "'a.tar' is named twice"),
        (("*.tar",), FileNotFoundError, "list the files with glob"),
        (("a.tar", "jpg;;png"), ValueError, "'jpg;;png' was given as extensions"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Shards(*arguments)


def test_a_shard_that_changed_is_refused(tmp_path: Path) -> None:
    data = Shards(write(tmp_path / "a.tar", sample("0")))
    write(tmp_path / "a.tar", *(sample(f"{i}") for i in range(20)))
    with pytest.raises(OSError, match=r"a\.tar' has \d+ bytes, not \d+ as when listed"):
        data[0]
