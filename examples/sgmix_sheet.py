"""Contact sheets of mixing by saliency, to be looked at: python examples/sgmix_sheet.py FOLDER SGMIX.jpg OTHERS.jpg

FOLDER has one subfolder a class.  The first sheet takes SGMix apart; the second one shows SaliencyMix and GuidedMixup.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fastmix import GuidedMixup, Key, Method, SaliencyMix, SGMix, mix
from fastmix.mixing import apply
from fastmix.saliency import object_masks, spectral_maps
from fastmix.show import Cell, Row, batch_of, grid, pick
from fastmix.types import Batch

SIZE, COUNT, SEED = 128, 7, 12


def load(folder: str) -> tuple[Batch, list[str]]:
    """Centres of some pictures, one of a class after the other, with their maps; and the names of their classes."""
    files = pick(folder, 40, SEED)
    one_each = list({file.parent.name: file for file in files}.values())[:COUNT]
    batch = batch_of(one_each, SIZE)
    return replace(batch, maps=spectral_maps(batch.images)), [file.parent.name for file in one_each]


def grey(levels: np.ndarray) -> list[np.ndarray]:
    """(N, H, W) numbers in 0..255 as pictures."""
    return [np.repeat(each.astype(np.uint8)[..., None], 3, 2) for each in levels]


def sgmix_sheet(batch: Batch, names: list[str]) -> Image.Image:
    """Source, map, own mask, target, joint mask and composite."""
    method = SGMix(group=COUNT)
    params = method.draw(Key(SEED), batch)
    target = params.program.layers["index"][:, 0]
    maps = [
        255 * np.asarray(Image.fromarray(each).resize((SIZE, SIZE), Image.Resampling.BILINEAR)) for each in batch.maps
    ]
    own = object_masks(batch.maps, (SIZE, SIZE))
    made = apply(batch, params, None, np.empty_like(batch.images)).images
    outcome = [method.outcomes(batch)[i] for i in range(COUNT)]
    joint = params.program.masks[..., 0]
    rows = {
        "source": zip(batch.images, names, strict=True),
        "map": ((each, "") for each in grey(np.stack(maps))),
        "its object": ((each, f"{share:.0%}") for each, share in zip(grey(own), own.mean((1, 2)) / 255, strict=True)),
        "target": ((batch.images[j], names[j]) for j in target),
        "kept": ((each, f"{share:.0%}") for each, share in zip(grey(joint), joint.mean((1, 2)) / 255, strict=True)),
        "composite": (
            (each, kind.name if hasattr(kind, "name") else "") for each, kind in zip(made, outcome, strict=True)
        ),
    }
    title = "SGMix by spectral residual: white is kept of the source, black becomes the target"
    return grid(title, [Row(name, [Cell(picture, text) for picture, text in cells]) for name, cells in rows.items()])


def others_sheet(batch: Batch, names: list[str]) -> Image.Image:
    """The same pictures by the methods that share labels, with the share of the own one."""
    rows = [Row("source", [Cell(*pair) for pair in zip(batch.images, names, strict=True)])]
    methods: dict[str, Method] = {"SaliencyMix": SaliencyMix(), "GuidedMixup": GuidedMixup()}
    for name, method in methods.items():
        mixed = mix(method, batch, Key(SEED))
        partner = [names[int(b)] for b in mixed.targets.b]
        cells = [
            Cell(picture, f"{weight:.2f} {own}, {1 - weight:.2f} {other}")
            for picture, weight, own, other in zip(mixed.images, mixed.targets.w, names, partner, strict=True)
        ]
        rows.append(Row(name, cells))
    return grid("SaliencyMix and GuidedMixup by spectral residual, and what the labels become", rows)


if __name__ == "__main__":
    batch, names = load(sys.argv[1])
    for make, path in ((sgmix_sheet, sys.argv[2]), (others_sheet, sys.argv[3])):
        page = make(batch, names)
        page.thumbnail((1000, 2000))
        page.save(Path(path), quality=80)
