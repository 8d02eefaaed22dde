"""Shared by the tests of the jitter and of two views: files in order, and a drawn jitter carried out by torchvision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.transforms.functional as F
from PIL import Image

from fastmix.kernels import Op, Program

TORCHVISION: dict[Op, Callable[[Image.Image, float], Image.Image]] = {
    Op.BRIGHTNESS: F.adjust_brightness,
    Op.CONTRAST: F.adjust_contrast,
    Op.COLOR: F.adjust_saturation,
    Op.HUE: F.adjust_hue,
    Op.GRAYSCALE: lambda image, _: F.rgb_to_grayscale(image, 3),
}


def files(folder: Path) -> list[Path]:
    """In the order of the dataset."""
    return sorted(folder.rglob("*.jpg"))


def ops_of(program: Program, row: int) -> list[tuple[Op, float]]:
    """The ops of a row that are applied, with their factors."""
    if not program.steps["mode"][row, 0]:
        return []
    return [(Op(op["code"]), float(op["p"][0])) for op in program.ops[row, 0] if op["code"]]


def in_torchvision(image: Any, ops: list[tuple[Op, float]]) -> Any:
    """The picture (H, W, 3) after the ops."""
    made = Image.fromarray(np.ascontiguousarray(image))
    for code, value in ops:
        made = TORCHVISION[code](made, value)
    return np.asarray(made)
