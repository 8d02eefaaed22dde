"""Threads, memory and errors: what a loader leaves behind, and how it goes on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from loading import COUNT, METHODS, POOL, SIZE, digest, digests, loader_of, make_arrays, make_photos
from PIL import Image

import fastmix
from fastmix import FastmixError
from fastmix.engine import Buffers

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


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


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastmix")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 1
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == []


# Threads.


def test_nothing_starts_before_the_first_batch(photos: Path) -> None:
    loader = loader_of(photos, num_workers=2)
    batches = iter(loader)
    assert threads() == []
    next(batches)
    assert threads() == ["fastmix-0", "fastmix-1"]
    del batches
    assert threads() == []


@pytest.mark.parametrize("name", ["plain", "cutmix", "pixmix"])
def test_threads_leave_on_break_error_and_deletion(photos: Path, name: str) -> None:
    loader = loader_of(photos, mix=METHODS[name], num_workers=3, batch_size=2)
    want = digests(loader_of(photos, mix=METHODS[name], batch_size=2))
    for _ in range(3):
        for _ in loader:
            break
        assert threads() == []
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0  # noqa: B018
    gc.collect()  # the traceback held the iterator
    assert threads() == []
    loader.set_epoch(0)
    assert digests(loader) == want
    assert threads() == []
    batches = iter(loader)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert threads() == [] and list(batches) == []


def test_many_short_epochs(photos: Path) -> None:
    loader = loader_of(photos, num_workers=2, batch_size=1, mix=METHODS["mixup"])
    for _ in range(100):
        next(iter(loader))
    assert threads() == []


def test_two_loaders_in_two_threads(photos: Path) -> None:
    want, found = digests(loader_of(photos, mix=METHODS["layermix"])), []

    def run() -> None:
        found.extend(digests(loader_of(photos, mix=METHODS["layermix"], num_workers=2)))

    runners = [threading.Thread(target=run) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert found == want * 2


def test_two_iterators_of_one_loader(photos: Path) -> None:
    one, two = digests(loader_of(photos), 2)
    loader = loader_of(photos, num_workers=1)
    pairs = list(zip(loader, loader, strict=True))
    assert [digest(batches) for batches in zip(*pairs, strict=True)] == [one, two]


def test_worker_init_fn_runs_in_each_thread(photos: Path) -> None:
    seen: dict[int, str] = {}

    def init(number: int) -> None:
        seen[number] = threading.current_thread().name

    want = digests(loader_of(photos))
    assert digests(loader_of(photos, num_workers=3, worker_init_fn=init)) == want
    assert seen == {number: f"fastmix-{number}" for number in range(3)}

    def fail(number: int) -> None:
        raise OSError(f"no device {number}")

    with pytest.raises(FastmixError, match="stage worker_init_fn: OSError: no device 0"):
        next(iter(loader_of(photos, num_workers=1, worker_init_fn=fail)))


class Sleepy:
    """Samples that take no time, but for one."""

    def __init__(self, slow: int, seconds: float):
        self.slow, self.seconds, self.free = slow, seconds, threading.Event()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == self.slow:
            self.free.wait(self.seconds)
        return np.full((4, 4, 3), index, np.uint8), index


def test_timeout_names_the_samples_that_are_missing() -> None:
    dataset = Sleepy(7, 60)
    loader = loader_of(dataset, size=4, crop=None, shuffle=False, batch_size=4, num_workers=2, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"no batch in 0\.2 s: still waiting for samples \[7\]"):
        list(loader)
    dataset.free.set()


def test_a_slow_sample_holds_up_its_own_batch_only() -> None:
    """Batches come in order; the threads go on with those behind."""
    dataset = Sleepy(1, 0.3)
    loader = loader_of(dataset, size=4, crop=None, shuffle=False, batch_size=2, num_workers=2)
    assert [labels.tolist() for _, labels in loader] == [[i, i + 1] for i in range(0, 12, 2)]


def test_samples_of_a_batch_are_made_at_the_same_time() -> None:
    """Both threads must be inside the dataset, or nobody gets on."""
    meeting = threading.Barrier(2, timeout=30)

    class Meeting(Sleepy):
        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            meeting.wait()
            return super().__getitem__(index)

    loader = loader_of(Meeting(-1, 0), size=4, crop=None, shuffle=False, batch_size=12, num_workers=2)
    assert [labels.tolist() for _, labels in loader] == [list(range(12))]


_SCRIPT = """
import sys, threading, time
from loading import loader_of, make_arrays, METHODS
loader = loader_of(make_arrays(2000), size=32, num_workers=4, mix=METHODS[{name!r}], num_classes=10)
batches = iter(loader)
next(batches)
"""


def run_script(code: str, **options: Any) -> subprocess.Popen[str]:
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}", "PYTHONWARNINGS": "ignore"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=tests.parent, env=env, **pipes, **options)


def test_the_interpreter_exits_with_an_epoch_under_way() -> None:
    process = run_script(_SCRIPT.format(name="cutmix"))
    assert process.communicate(timeout=100) == ("", "")
    assert process.returncode == 0


def test_ctrl_c() -> None:
    code = _SCRIPT.format(name="pixmix") + (
        "sys.stdout.write('ready'); sys.stdout.flush()\n"
        "try:\n"
        "    while True:\n"
        "        for _ in loader: pass\n"
        "except KeyboardInterrupt:\n"
        "    sys.stdout.write(f' caught {len(list(loader))}')\n"
    )
    process = run_script(code)
    assert process.stdout is not None and process.stdout.read(5) == "ready"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=100) == (" caught 250", "")
    assert process.returncode == 0


# Memory.


def test_a_batch_that_is_kept_is_not_overwritten() -> None:
    loader = loader_of(make_arrays(), size=32, mix=METHODS["mixup"], num_workers=2, labels="pair")
    kept = [batch for _ in range(4) for batch in loader]
    want = [digest([batch]) for batch in kept]
    digests(loader, 3)
    assert [digest([batch]) for batch in kept] == want
    rows = [batch[0][3, :, 4:9].numpy() for batch in loader]  # parts of batches, as arrays
    copies = [row.copy() for row in rows]
    digests(loader, 2)
    np.testing.assert_array_equal(rows, copies)


@pytest.mark.parametrize(("workers", "prefetch", "most"), [(0, None, 2), (2, 1, 3), (2, 2, 4), (1, 4, 6)])
@pytest.mark.parametrize("name", ["plain", "mixup"])
def test_a_batch_that_is_dropped_is_used_again(workers: int, prefetch: int | None, most: int, name: str) -> None:
    loader = loader_of(make_arrays(80), size=32, mix=METHODS[name], num_workers=workers, prefetch_factor=prefetch,
                       labels="pair")  # fmt: skip
    places = set()
    for _ in range(3):
        for images, _ in loader:
            places.add(images.data_ptr())
            del images
    assert len(places) <= most


def test_buffers() -> None:
    buffers = Buffers(2, np.uint8)
    first = buffers.lend(10)
    place = first.ctypes.data
    view = torch.from_numpy(first[2:4].reshape(1, 2))
    del first
    second = buffers.lend(10)
    assert second.ctypes.data != place  # the view still uses the first
    del view
    again = buffers.lend(8)
    assert again.ctypes.data == place
    del second
    assert buffers.lend(20).size == 20 and len(buffers) == 2  # too large: takes the place of the free one
    third = buffers.lend(10)
    fourth, fifth = buffers.lend(20), buffers.lend(10)
    assert len({a.ctypes.data for a in (again, third, fourth, fifth)}) == 4 and len(buffers) == 2


def test_memory_stays_within_its_bound(photos: Path) -> None:
    loader = loader_of(photos, size=(300, 200), num_workers=2, mix=METHODS["cutmix"], batch_size=6)
    picture = 300 * 200 * 3
    bound = loader.memory_bound()
    assert 4 * 6 * picture * 4 + 2 * 2 * 6 * picture < bound < 4 * 6 * picture * 4 + 2 * 2 * 6 * picture + 50_000_000
    pooled = loader_of(photos, mix=METHODS["pixmix"])
    assert pooled.memory_bound() > POOL.images.nbytes + loader_of(photos).memory_bound()
    digests(loader)  # compiles, opens, allocates
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(4):
        for batch in loader:
            del batch
    assert process.memory_info().rss - before < 0.1 * bound


def test_files_stay_closed(photos: Path) -> None:
    loader = loader_of(photos, num_workers=2)
    digests(loader)
    before = psutil.Process().num_fds()
    kept = [batch for _ in range(3) for batch in loader]
    assert psutil.Process().num_fds() <= before and len(kept) == 9


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
