"""Where fastmix gains little or loses: `python -m benchmarks.limits` (about 3 minutes on 2 cores).

Plain crops of 224 px beside torchvision's, two workers each, in turns: from files that take fastmix's slower ways, and
in epochs that are over at once.  Then the time to the first batch of a new process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from benchmarks.baselines import TRAIN_CROP, Programmed, measure_rounds, ratios, torch_loader
from benchmarks.own import METHODS, PLAIN, own_loader
from benchmarks.papers import Plain
from benchmarks.report import table
from fastmix.photos import cut_photos

COUNT, BATCH, ROUNDS = 256, 64, 5
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline JPEG": ("jpg", {"quality": 96}),
    "progressive JPEG": ("jpg", {"quality": 96, "progressive": True}),
    "PNG": ("png", {"compress_level": 6}),
    "WebP": ("webp", {"quality": 90}),
}


def torchvision_loader(folder: Path, batch_size: int = BATCH) -> Iterable[Any]:
    """The plain baseline."""
    return torch_loader(Programmed(ImageFolder(folder, TRAIN_CROP), Plain()), batch_size)


def written_anew(photos: list[Path], folder: Path, form: str) -> Path:
    """The photographs as files of another form."""
    ending, options = FORMS[form]
    (folder / "0").mkdir(parents=True)
    for photo in photos:
        Image.open(photo).save(folder / "0" / f"{photo.stem}.{ending}", **options)
    return folder


def versus(folder: Path, batches: int) -> list[str]:
    """Cells: images/s of ours and of torchvision, and the median ratio in a round."""
    loaders = {"own": lambda: own_loader(folder, batch_size=BATCH), "theirs": lambda: torchvision_loader(folder)}
    timed = measure_rounds(loaders, ROUNDS, batches)
    rates = {name: [r.rate for r in rounds] for name, rounds in timed.items()}
    return [*(f"{median(rate):.0f}" for rate in rates.values()), f"{ratios(rates, 'theirs')['own']:.2f}"]


def first_batch(folder: str, name: str) -> float:
    """Seconds until the first batch is there; in a new process, that is before the kernels are imported."""
    theirs = name == "torchvision"
    loader = torchvision_loader(Path(folder)) if theirs else own_loader(folder, batch_size=BATCH, mix=METHODS[name])
    start = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - start


def start_anew(folder: Path, name: str, cache: Path) -> float:
    """`first_batch` in a new process that keeps its compiled kernels in `cache`."""
    code = "import sys; from benchmarks.limits import first_batch; print(first_batch(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(folder), name]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    root = Path(__file__).parents[1]
    return float(subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    """Measure and print Markdown tables."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        photos = cut_photos(root / "photos", COUNT)
        for form in FORMS:
            rows.append([form, *versus(written_anew(photos, root / form, form), COUNT // BATCH)])
        tiny = written_anew(photos[:BATCH], root / "tiny", "baseline JPEG")
        rows.append([f"epochs of one batch ({BATCH} pictures)", *versus(tiny, 10)])
        print(table(["plain crops from", "own images/s", "torchvision images/s", "ratio"], rows, markdown=True))
        starts = []
        for name in ("torchvision", PLAIN, "layermix"):
            times = [start_anew(root / "photos", name, root / f"cache {name}") for _ in range(2)]
            starts.append([name, *(f"{seconds:.1f}" for seconds in times)])
        print()
        print(table(["first batch, s", "empty kernel cache", "again"], starts, markdown=True))


if __name__ == "__main__":
    main()
