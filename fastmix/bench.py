"""How fast a data set is read and mixed on this machine: plain crops and each method, in turns."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from .datasets import Source
from .saliency import SpectralResidual
from .types import Method

__all__ = ["PLAIN", "Settings", "machine", "measure", "plot", "table", "version_of"]

PLAIN = "plain"


@dataclass(frozen=True)
class Settings:
    """What every contender gets alike.

    size: side of the crops, px.  batch_size: pictures.  workers: threads.  rounds: timed epochs each, after one that is
    not.  images: at most so many pictures an epoch, spread evenly over the data set.
    """

    size: int = 224
    batch_size: int = 128
    workers: int = 2
    rounds: int = 3
    images: int = 2048

    def __post_init__(self) -> None:
        """Check what the loader does not."""
        for name in ("rounds", "images"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")


def measure(source: Source, methods: Mapping[str, Method], settings: Settings, quiet: bool) -> list[dict[str, Any]]:
    """Read `source` through the loader, round by round and method by method.

    Returns a row {"method", "images_per_s", "ratio_to_plain"} for plain random resized crops and for each method: the
    medians over the rounds.  `quiet`: no bar on stderr.  Raises as the loader does.
    """
    from .loaders.torch import DataLoader

    count = min(len(source), settings.images)
    spread = (np.arange(count) * len(source) // count).tolist()
    size, workers = settings.size, settings.workers
    loader = DataLoader(
        source, settings.batch_size, sampler=spread, num_workers=workers, size=size, seed=0, maps=SpectralResidual()
    )
    rates: dict[str, list[float]] = {name: [] for name in (PLAIN, *methods)}
    with tqdm(total=(settings.rounds + 1) * len(rates) * count, unit="image", disable=quiet) as bar:
        for _ in range(settings.rounds + 1):
            for name, rate in rates.items():
                bar.set_description(f"{name:8}")
                loader.mix = methods.get(name)
                rate.append(_images_per_s(loader, bar))
    speeds = {name: median(rate[1:]) for name, rate in rates.items()}
    return [
        {"method": name, "images_per_s": round(speed, 1), "ratio_to_plain": round(speed / speeds[PLAIN], 3)}
        for name, speed in speeds.items()
    ]


def _images_per_s(loader: Any, bar: Any) -> float:
    """One epoch by the clock, threads' start included."""
    start, count = time.perf_counter(), 0
    for images, _ in loader:
        count += len(images)
        bar.update(len(images))
    return count / (time.perf_counter() - start)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text, a line each."""
    lines = [f"{'':12}{'images/s':>10}{'of plain':>10}"]
    lines += [f"{row['method']:12}{row['images_per_s']:10.0f}{row['ratio_to_plain']:10.2f}" for row in rows]
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw the rows as bars.  Raises ModuleNotFoundError without matplotlib, ValueError for an unknown file ending."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('--plot draws with matplotlib, not installed: pip install "fastmix[plot]"') from error
    figure = Figure(figsize=(7, 0.8 + 0.45 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh([row["method"] for row in rows], [row["images_per_s"] for row in rows], color="#4477aa")
    bars[0].set_color("#bbbbbb")
    axes.bar_label(bars, [f"{row['ratio_to_plain']:.2f}" for row in rows], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("images/s (label: share of the plain crop's speed)")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores this process may use, and versions."""
    versions = {name: version_of(name) for name in ("fastmix", "numpy", "numba", "simplejpeg", "Pillow", "torch")}
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
    }


def version_of(package: str) -> str | None:
    """The installed version, None if there is none; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
