"""What a loader costs while it runs, and that nothing of it is left: measured in processes of their own.

Each measurement is a function of this file that is called in a new interpreter and returns figures.  Kernels are
compiled and loaded there before the first figure is taken.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from loading import loader_of, make_photos

from fastmix import AugMix, CutMix, DataLoader, PixMix, Pool, SGMix, SpectralResidual

MIB = 1 << 20
SIDE, BATCH = 192, 32  # batches of 13.5 MiB, so that one too many shows
EPOCHS, WARM = 50, 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def measure(name: str, *args: Any) -> Any:
    """What function `name` of this file returns in a new process."""
    here = Path(__file__).parent
    code = (
        "import json, sys, test_memory; name, args = json.loads(sys.argv[1]); "
        "json.dump(getattr(test_memory, name)(*args), sys.stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([name, args])],
        cwd=here.parent,
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parent}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def rss() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


@contextmanager
def highest() -> Iterator[list[int]]:
    """A list whose only item is the highest RSS so far, looked at every millisecond."""
    seen, done = [rss()], threading.Event()

    def watch() -> None:
        process = psutil.Process()
        while not done.wait(0.001):
            seen[0] = max(seen[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


class Files:
    """`count` encoded files of two classes, read anew each time: the photographs again and again, some of them cut."""

    def __init__(self, photos: str, count: int, cut: int = 0):
        self.files, self.count, self.cut = sorted(Path(photos).rglob("*.jpg")), count, cut
        self.classes = ["even", "odd"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        data = self.files[index % len(self.files)].read_bytes()
        return data[:4000] if self.cut and index % self.cut == 0 else data, index % 2


def method(name: str) -> Any:
    """A method of that name, with a pool in memory that has to be made smaller for SIDE."""
    pool = np.arange(48 * 256 * 256 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 256, 256, 3)
    others = {"plain": None, "cutmix": CutMix(), "augmix": AugMix(), "sgmix": SGMix()}
    return PixMix(pool=Pool(pool)) if name == "pixmix" else others[name]


def epoch(loader: DataLoader, pause: float = 0.0, most: int = sys.maxsize) -> int:
    """Run through some batches, each dropped for the next; how many places in memory they had."""
    places = set()
    for _, (images, _labels) in zip(range(most), loader, strict=False):
        places.add(images.data_ptr())
        time.sleep(pause)
    return len(places)


def left() -> dict[str, Any]:
    """What a loader must give back."""
    gc.collect()
    process = psutil.Process()
    shared = [part.path for part in process.memory_maps() if part.path.startswith("/dev/shm")]
    return {"threads": process.num_threads(), "files": process.num_fds(), "shared": shared}


def bound(photos: str, name: str, prefetch: int) -> dict[str, Any]:
    """Four epochs, the last with a slow consumer."""
    options: dict[str, Any] = {"num_workers": 2, "prefetch_factor": prefetch, "maps": SpectralResidual()}
    mix = method(name)
    epoch(loader_of(Files(photos, 20), mix=mix, size=40, **options))
    loader = loader_of(Files(photos, 256), mix=mix, size=SIDE, batch_size=BATCH, **options)
    before, start, ends = left(), rss(), []
    with highest() as peak:
        for pause in (0, 0, 0, 0.1):
            places = epoch(loader, pause)
            ends.append(rss() - start)
    after, most = left(), loader.memory_bound()
    return {"bound": most, "peak": peak[0] - start, "ends": ends, "places": places, "before": before, "after": after}


@pytest.mark.parametrize(
    ("name", "prefetch"), [("plain", 2), ("pixmix", 2), ("cutmix", 2), ("cutmix", 4), ("sgmix", 2)]
)
def test_memory_stays_within_the_bound_that_is_stated(photos: Path, name: str, prefetch: int) -> None:
    """Whether batches are taken at once or ten a second; and it does not grow after the first epoch."""
    found = measure("bound", str(photos), name, prefetch)
    batch = BATCH * SIDE * SIDE * 3 * 4
    assert (prefetch + 1) * batch <= found["peak"] <= found["bound"] * 1.1
    assert max(found["ends"]) - found["ends"][0] <= 4 * MIB
    assert found["places"] <= prefetch + 2
    assert found["before"] == found["after"]


def repeated(photos: str, name: str, cut: int, most: int) -> dict[str, Any]:
    """Many short epochs; the RSS after each of them."""
    warnings.simplefilter("ignore")  # the list of bad files
    dataset = Files(photos, 60, cut)
    loader = loader_of(dataset, mix=method(name), size=64, batch_size=10, num_workers=2, on_error="replace")
    for _ in range(WARM):
        epoch(loader, most=most)
    before, seen = left(), []
    for _ in range(EPOCHS):
        epoch(loader, most=most)
        seen.append(rss())
    return {"rss": seen, "bad": len(loader.bad), "before": before, "after": left()}


@pytest.mark.parametrize(("name", "cut", "most"), [("augmix", 0, 6), ("cutmix", 10, 6), ("pixmix", 0, 3)])
def test_many_epochs_leave_nothing_behind(photos: Path, name: str, cut: int, most: int) -> None:
    """Whole epochs, a tenth of the files damaged, and leaving at the third batch; after five epochs to warm up."""
    found = measure("repeated", str(photos), name, cut, most)
    seen = np.array(found["rss"]) / MIB
    slope = np.polyfit(np.arange(EPOCHS), seen, 1)[0]
    assert slope <= 0.1
    assert seen[-1] - seen[0] <= 10 and seen.max() - seen[-1] <= 10
    assert found["bad"] == (6 if cut else 0)
    assert found["before"] == found["after"]
