"""Threads, memory and errors: what a loader leaves behind, and how it goes on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from loading import METHODS, POOL, Sleepy, digest, digests, loader_of, make_arrays, make_photos, threads

from fastmix import FastmixError
from fastmix.engine import Buffers

pytestmark = [
    pytest.mark.filterwarnings("ignore:num_workers is:UserWarning"),
    pytest.mark.usefixtures("no_thread_is_left"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


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


def test_timeout_names_the_samples_that_are_missing() -> None:
    dataset = Sleepy(7, 60)
    options = {"size": 4, "crop": None, "shuffle": False, "batch_size": 4, "num_workers": 2}
    digests(loader_of(Sleepy(-1, 0), **options))  # compiles
    try:
        with pytest.raises(RuntimeError, match=r"no batch in 1\.5 s: still waiting for samples \[7\]"):
            list(loader_of(dataset, timeout=1.5, **options))
    finally:
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
        # What a shell starts in the background has Ctrl-C switched off, and hands that on to its children.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.stdout.write('ready'); sys.stdout.flush()\n"
        "try:\n"
        "    while True:\n"
        "        for _ in loader: pass\n"
        "except KeyboardInterrupt:\n"
        "    sys.stdout.write(f' caught {len(list(loader))}')\n"
    )
    process = run_script(code)
    try:
        assert process.stdout is not None and process.stdout.read(5) == "ready"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=100) == (" caught 250", "")
        assert process.returncode == 0
    finally:
        process.kill()


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
    batches, decoding = 4 * 6 * picture * 4 + 2 * 2 * 6 * picture, 2 * 32 * 2**20
    assert batches + decoding < bound < batches + decoding + 10_000_000
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
