"""What the tests of refining share: real patches in folders, a quick refiner, and runs of their own that may be killed.

As a program: python refining.py DATA OUT [--die N] [--limit BYTES] [--ray], also under torchrun.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastmix.offline.expansion import Expansion
from fastmix.offline.refine import expand, expand_with_ray, ranks
from fastmix.photos import cut_patches

HIGH, WIDE = 36, 48
EXPANSION = Expansion.sgdmix(size=32, multiplier=4, candidates=6, seed=5)
BATCH = 3


@dataclass
class Dimmed:
    """Darkens pictures by their seeds, and keeps a list of what it was asked for."""

    hashes: dict[str, str | None] = field(default_factory=lambda: {"model": "dim", "adapter": None, "tokens": None})
    asked: list[Any] = field(default_factory=list)

    def check_prompts(self, prompts: Any) -> None:
        assert all("{" not in prompt for prompt in prompts)

    def refine(self, images: Any, prompts: Any, strength: float, steps: int, guidance: float, seeds: Any) -> Any:
        self.asked.append((images.copy(), list(prompts), strength, steps, guidance, list(seeds)))
        share = 0.4 + 0.6 * np.array([seed % 1000 / 1000 for seed in seeds], np.float32)
        return images.astype(np.float32) / 255 * share[:, None, None, None]


def make_patches(root: Path, count: int = 24) -> Path:
    """`count` pictures of 48 x 36 px in ten classes, in turn, as PNG."""
    patches, labels = cut_patches(count, side=WIDE)
    for number, (patch, label) in enumerate(zip(patches, labels, strict=True)):
        file = root / f"kind_{label}" / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(patch[:HIGH]).save(file)
    return root


def files_of(folder: Path) -> dict[str, bytes]:
    """All files, hidden ones too, but for the lock."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found.pop(".lock")
    return found


def start(*words: Any, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Run this file as a program, under torchrun for several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *torchrun, __file__, *map(str, words)]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}  # else Ray writes to the home folder
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=given)


def die_at(moment: int) -> None:
    """Kill this process when it is about to move its `moment`-th file into place."""
    replace, moved = Path.replace, [0]

    def counted(path: Path, target: Path) -> Path:
        moved[0] += 1
        if moved[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    Path.replace = counted  # type: ignore[method-assign,assignment]


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--die", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    if options.die is not None:
        die_at(options.die)
    if options.limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.limit, options.limit))
    if options.ray:
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        expand_with_ray(options.data, options.out, EXPANSION, Dimmed, BATCH, 2, quiet=True)
        return
    with ranks() as (rank, world):
        expand(options.data, options.out, EXPANSION, Dimmed(), BATCH, rank, world, quiet=True)


if __name__ == "__main__":
    _main()
