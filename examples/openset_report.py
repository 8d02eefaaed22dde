"""What `gradmix_openset.py` makes of its figures: a table, a plot, what the control shows, and pictures of a step."""

import argparse
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import fastmix

FIGURES = ("auroc", "aupr_in", "aupr_out", "fpr95", "oscr", "accuracy", "auroc_maha")
SHOWN = 8  # samples in a picture


def spread(values: list[float]) -> tuple[float, float | None]:
    """Mean and standard deviation, which one value does not have."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def told(values: list[float], signed: bool = False) -> str:
    """Mean ± deviation of shares, in points."""
    mean, deviation = spread([100 * value for value in values])
    return f"{mean:{'+' if signed else ''}.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def by_way(rows: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """The values of each way, in the order of its seeds."""
    return {way: [row[name] for row in rows if row["way"] == way] for way in {row["way"]: None for row in rows}}


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["{:8}".format("way") + "".join(f"{name:>13}" for name in FIGURES) + f"{'s a step':>10}"]
    columns = [by_way(rows, name) for name in FIGURES]
    for way, seconds in by_way(rows, "step_s").items():
        lines.append(f"{way:8}" + "".join(f"{told(each[way]):>13}" for each in columns))
        lines[-1] += f"{statistics.fmean(seconds):10.3f}"
    return "\n".join(lines)


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """What the control shows: differences of the same seeds, beside their spread."""
    lines = []
    for way, name in ((way, name) for way in ("fresh", "cached") for name in ("auroc", "auroc_maha")):
        values = {(row["way"], row["seed"]): row[name] for row in rows}
        control = {seed: value for (other, seed), value in values.items() if other == "random"}
        points = [values[way, seed] - value for seed, value in control.items() if (way, seed) in values]
        if points:
            lines.append(f"{way} - random: {told(points, signed=True)} points of {name} {judgement(points)}")
    return lines


def judgement(points: list[float]) -> str:
    """How far differences, one a seed, can be believed."""
    mean, deviation = spread(points)
    if deviation is None:
        return "with one seed: there is no spread to compare it with, so it shows nothing"
    if abs(mean) <= deviation:
        return f"over {len(points)} seeds: no difference beyond the spread"
    side = "better" if mean > 0 else "worse"
    few = "" if len(points) >= 5 else ", but five seeds or more should tell"
    return f"over {len(points)} seeds: maps are {side} than random windows by more than the spread{few}"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """A dot for each seed, and mean and deviation of each way."""
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    for axis, name in zip(axes, ("auroc", "auroc_maha", "oscr", "accuracy"), strict=True):
        for height, values in enumerate(by_way(rows, name).values()):
            mean, deviation = spread([100 * value for value in values])
            axis.plot([100 * value for value in values], [height] * len(values), "o", color="tab:gray", alpha=0.5)
            axis.errorbar(mean, height, xerr=deviation, fmt="D", color="tab:blue", capsize=3)
        axis.set(title=f"{name}, %", yticks=range(height + 1), yticklabels=list(by_way(rows, name)))
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=120)


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """All that is known, as results.json has it."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    machine = {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "system": platform.platform()}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    summary = {
        way: {name: dict(zip(("mean", "std"), spread(by_way(rows, name)[way]), strict=True)) for name in FIGURES}
        for way in by_way(rows, "way")
    }
    return {
        "machine": {**machine, "threads": torch.get_num_threads(), "device": options.device},
        "versions": {**versions, "fastmix": fastmix.__version__},
        "arguments": {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()},
        "rows": rows,
        "summary": summary,
        "verdicts": verdicts(rows),
    }


def sheet(images: Tensor, maps: Tensor | None, mixed: Tensor | None, boxes: Tensor | None) -> Tensor:
    """(3, H, W) for TensorBoard: clean first views; then maps, windows and mixed views, where there are any.

    images, maps, mixed, boxes: A row each for the first views, then others.  boxes: y0, y1, x0, x1 of the windows.
    """
    clean = images[:SHOWN] / 2 + 0.5
    rows = [clean]
    if maps is not None:
        grey = torch.nn.functional.interpolate(maps[:SHOWN, None], clean.shape[2:])
        rows.append((grey / grey.amax((2, 3), keepdim=True).clamp(min=1e-12)).expand_as(clean))
    if mixed is not None:
        mixed = mixed[:SHOWN] / 2 + 0.5
        windows = changed(clean, mixed) if boxes is None else boxes[:SHOWN].tolist()
        framed = clean.clone()
        for picture, (top, bottom, left, right) in zip(framed, windows, strict=True):
            if top < bottom:
                red = picture.new_tensor([1.0, 0.0, 0.0])[:, None, None]
                inner = picture[:, top + 1 : bottom - 1, left + 1 : right - 1].clone()
                picture[:, top:bottom, left:right] = red
                picture[:, top + 1 : bottom - 1, left + 1 : right - 1] = inner
        rows += [framed, mixed]
    return torch.cat([torch.cat(list(row), 2) for row in rows], 1).clamp(0, 1)


def changed(clean: Tensor, mixed: Tensor) -> list[tuple[int, int, int, int]]:
    """The boxes in which pictures differ: y0, y1, x0, x1.  What is black in both does not, so they may be too small."""
    boxes = []
    for differs in (clean != mixed).any(1):
        down, across = (differs.any(axis).nonzero()[:, 0].tolist() or [0, -1] for axis in (1, 0))
        boxes.append((down[0], down[-1] + 1, across[0], across[-1] + 1))
    return boxes
