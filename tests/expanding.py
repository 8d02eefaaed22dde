"""What the tests of expanded sets share: a data set whose colours tell what is what, and a set made of it by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from fastmix.manifest import MADE, NAME, write_rows

CLASSES = ["ant", "bee", "cow"]
N, SIDE, COPIES = 12, 16, 3
PLAIN: dict[str, Any] = {"crop": None, "size": SIDE, "hflip": 0.0, "output": "uint8", "shuffle": False, "batch_size": N}


def row_of(record: int, label: int, **changes: Any) -> dict[str, Any]:
    source = record // COPIES
    path = f"pictures/{CLASSES[label]}/{source}_{record % COPIES}.png"
    settings = {"strength": 0.5, "steps": 12, "scheduled_steps": 25, "guidance": 7.5, "seed": 1, "prompt": "a photo"}
    empty = ["source_path", "target", "target_path", "target_label", "mask_area", "leak_area", "distance", "saliency"]
    about = {"record": record, "status": MADE, "path": path, "source": source, "source_label": label, "weight": 1.0}
    return {**dict.fromkeys([*empty, "adapter", "tokens"]), "model": "none", **settings, **about, **changes}


def make_data(root: Path) -> Path:
    """Twelve pictures: the red of each is its number, the green its class."""
    for number in range(N):
        folder = root / CLASSES[number // 4]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number, number // 4, 0)).save(folder / f"{number:02}.png")
    return root


def expand(folder: Path, rows: list[dict[str, Any]], classes: list[str] = CLASSES) -> Path:
    """Pictures whose red is their source, whose green their class, and whose blue says which copy they are."""
    for row in rows:
        if row["status"] == MADE:
            path = folder / row["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            colour = (row["source"], row["source_label"], 1 + row["record"] % COPIES)
            Image.new("RGB", (SIDE, SIDE), colour).save(path)
    folder.mkdir(exist_ok=True)
    write_rows(folder / NAME, rows, {"classes": classes})
    return folder


def make_out(root: Path) -> Path:
    """Three copies of each, but for sample 0, of which there are two, and 1, of which nothing was made."""
    rows = [row_of(record, record // COPIES // 4) for record in range(N * COPIES)]
    rows[1] = {**rows[1], "status": "black", "path": None}
    for number in (3, 4, 5):
        rows[number] = {**rows[number], "status": "small mask", "path": None}
    return expand(root, rows)


def shown(loader: Any) -> tuple[list[int], list[int], list[int]]:
    """Red, green and blue of the pictures of an epoch."""
    ((images, _),) = loader
    return tuple(images[:, channel, 0, 0].tolist() for channel in range(3))  # type: ignore[return-value]
