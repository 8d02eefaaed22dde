"""The loaders fastmix is compared with, and the stopwatch.

All baselines are plain torchvision, Pillow and torch: an ImageFolder (or pictures in memory), per-sample programs, and
`torch.utils.data.DataLoader` with worker processes.  Of fastmix they use only the photographs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from benchmarks.papers import CIFAR_NORM, AugMix, IPMix, LayerMix, Picture, PixMix, Plain, seed_worker
from fastmix.photos import cut_patches, cut_photos

Pictures = NDArray[np.uint8]
Program = Callable[..., torch.Tensor]  # (picture) or (picture, mixing picture) to float32 (3, S, S)

TRAIN_CROP = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip()])
MIXING_CROP = T.Compose([T.Resize(256), T.RandomCrop(224)])
GREY_CROP = T.Compose(
    [MIXING_CROP, T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.Grayscale(num_output_channels=3)]
)
CIFAR_CROP = T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(32, padding=4)])


class InMemory(Dataset[tuple[Picture, int]]):
    """Decoded pictures, (N, H, W, 3) uint8, with labels: what torchvision's CIFAR classes are."""

    def __init__(self, images: Pictures, labels: NDArray[np.int64] | None, transform: Callable[[Picture], Picture]):
        self.images, self.transform = images, transform
        self.labels = np.zeros(len(images), np.int64) if labels is None else labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Picture, int]:
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


class Programmed(Dataset[tuple[torch.Tensor, int]]):
    """A dataset seen through a program, with one random picture of `mixing` a sample where the program mixes one in."""

    def __init__(self, pictures: Any, program: Program, mixing: Any = None):
        self.pictures, self.program, self.mixing = pictures, program, mixing

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, label = self.pictures[index]
        if self.mixing is None:
            return self.program(picture), label
        # Read for every sample, used or not, as published.
        return self.program(picture, self.mixing[np.random.choice(len(self.mixing))][0]), label  # noqa: NPY002


def torch_loader(dataset: Any, batch_size: int = 128, workers: int = 2) -> DataLoader[Any]:
    """A shuffling DataLoader whose worker processes stay alive between epochs."""
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
        worker_init_fn=seed_worker,
    )


def imagenet_loaders(folder: Path, fractals: Path, **options: Any) -> dict[str, Callable[[], DataLoader[Any]]]:
    """Factories of the 224 x 224 baselines over an ImageFolder of JPEGs; mixing pictures come from a second one.

    "torchvision" is the plain crop; the others are the papers' programs with their ImageNet settings.  `options` go to
    `torch_loader`.
    """

    def loader(program: Program, mixing_crop: Any = None) -> Callable[[], DataLoader[Any]]:
        def make() -> DataLoader[Any]:
            mixing = ImageFolder(fractals, mixing_crop) if mixing_crop else None
            return torch_loader(Programmed(ImageFolder(folder, TRAIN_CROP), program, mixing), **options)

        return make

    return {
        "torchvision": loader(Plain()),
        "paper pixmix": loader(PixMix(), MIXING_CROP),
        "paper ipmix": loader(IPMix(), MIXING_CROP),
        "paper layermix": loader(LayerMix(), GREY_CROP),
        "paper augmix": loader(AugMix()),
    }


def cifar_loaders(
    images: Pictures, labels: NDArray[np.int64], fractals: Pictures, **options: Any
) -> dict[str, Callable[[], DataLoader[Any]]]:
    """Factories of the 32 x 32 baselines, all pictures in memory; fractals are (M, 36, 36, 3), resized beforehand."""
    options = {"batch_size": 512, **options}

    def loader(program: Program, mixes: bool) -> Callable[[], DataLoader[Any]]:
        def make() -> DataLoader[Any]:
            mixing = InMemory(fractals, None, T.RandomCrop(32)) if mixes else None
            return torch_loader(Programmed(InMemory(images, labels, CIFAR_CROP), program, mixing), **options)

        return make

    return {
        "torchvision": loader(Plain(CIFAR_NORM), False),
        "paper pixmix": loader(PixMix(beta=3, severity=3, finish=CIFAR_NORM), True),
    }


def julia(count: int, side: int, seed: int = 0) -> Pictures:
    """(count, side, side, 3) uint8 dense coloured Julia sets: stand-ins for the papers' fractal art."""
    random = np.random.default_rng(seed)
    out = np.empty((count, side, side, 3), np.uint8)
    for picture in out:
        angle, zoom = random.uniform(0, 2 * np.pi), random.uniform(0.6, 1.5)
        c = 0.7885 * np.exp(1j * angle)
        axis = np.linspace(-zoom, zoom, side, dtype=np.float32)
        z = (axis[None, :] + 1j * axis[:, None]).astype(np.complex64)
        smooth = np.zeros((side, side), np.float32)
        for _ in range(40):
            inside = np.abs(z) < 4
            z = np.where(inside, z * z + np.complex64(c), z)
            smooth += np.exp(-np.abs(z))
        phase = random.uniform(0, 2 * np.pi, 3) + smooth[..., None] * random.uniform(0.5, 2, 3)
        picture[:] = 127.5 + 127.5 * np.sin(phase)
    return out


def write_jpegs(pictures: Pictures, folder: Path) -> Path:
    """Write pictures as an ImageFolder of one class, JPEG quality 85 (70-80 KB at 512 px); returns the folder."""
    (folder / "0").mkdir(parents=True)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "0" / f"{number:06d}.jpg", quality=85)
    return folder


def picture_sets(folder: Path) -> tuple[Path, Path]:
    """Folders of 1024 ImageNet-like JPEGs and of 64 mixing pictures (512 px JPEGs) under `folder`, made if missing."""
    photos, fractals = folder / "photos", folder / "fractals"
    if not photos.exists():
        cut_photos(photos, 1024)
    return photos, fractals if fractals.exists() else write_jpegs(julia(64, 512), fractals)


def cifar_sets() -> tuple[Pictures, NDArray[np.int64], Pictures]:
    """In memory: 5120 photo patches of 32 px, their labels, and 64 mixing pictures of 36 px."""
    images, labels = cut_patches(5120)
    fractals = [Image.fromarray(p).resize((36, 36), Image.Resampling.BILINEAR) for p in julia(64, 128)]
    return images, labels, np.stack([np.asarray(picture) for picture in fractals])


@dataclass(frozen=True)
class Round:
    """One timing: how many images, in what time (s), with how much CPU time of this process and its children (s)."""

    images: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds an image."""
        return 1000 * self.cpu_s / self.images


def run_round(loader: Iterable[Any], batches: int) -> Round:
    """Time whole epochs until at least `batches` batches are through.

    Worker processes and threads prefetch: a part of an epoch would be paid for by the one before or left to the next.
    Over whole epochs everything that is made is counted, and so is filling the pipeline at the start of each.
    """
    images = done = 0
    cpu, start = _cpu_s(), time.perf_counter()
    while done < batches:
        before = done
        for batch in loader:
            images += len(batch[0])
            done += 1
        if done == before:
            raise ValueError(f"the loader gave no batch, expected at least 1 an epoch: {loader!r}")
    return Round(images, time.perf_counter() - start, _cpu_s() - cpu)


def measure_rounds(
    loaders: Mapping[str, Callable[[], Iterable[Any]]], rounds: int, batches: int
) -> dict[str, list[Round]]:
    """Time loaders against each other: A, B, C, A, B, C, ... in one process, so that a slow minute hits all of them.

    Every loader is made once and runs one untimed epoch first: workers are started, files are in the page cache,
    kernels are compiled, buffers exist.  Between its rounds a loader is idle (whole epochs leave nothing in flight).
    """
    made = {name: make() for name, make in loaders.items()}
    for loader in made.values():
        run_round(loader, 1)
    results: dict[str, list[Round]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, loader in made.items():
            results[name].append(run_round(loader, batches))
    return results


def measure(loaders: Mapping[str, Callable[[], Iterable[Any]]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Images per second of every round of every loader; see `measure_rounds`."""
    return {name: [r.rate for r in timed] for name, timed in measure_rounds(loaders, rounds, batches).items()}


def ratios(rates: Mapping[str, list[float]], base: str) -> dict[str, float]:
    """Median over the rounds of the rate relative to `base` in the same round."""
    return {name: median(r / b for r, b in zip(rate, rates[base], strict=True)) for name, rate in rates.items()}


def table(results: Mapping[str, list[Round]], base: str) -> str:
    """Markdown: median images/s, median CPU ms an image, and the median ratio to `base` of the same round."""
    ratio = ratios({name: [r.rate for r in timed] for name, timed in results.items()}, base)
    lines = [f"| loader | images/s | ÷ {base} | CPU ms an image |", "|---|---|---|---|"]
    for name, timed in results.items():
        rate, cpu = median(r.rate for r in timed), median(r.cpu_ms for r in timed)
        lines.append(f"| {name} | {rate:.0f} | {ratio[name]:.2f} | {cpu:.2f} |")
    return "\n".join(lines)


def _cpu_s() -> float:
    process = psutil.Process()
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def main() -> None:
    """Measure the baselines alone, on a set that is cut on first use: `python -m benchmarks.baselines FOLDER`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the picture sets are kept")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    photos, fractals = picture_sets(options.folder)
    large, small = imagenet_loaders(photos, fractals), cifar_loaders(*cifar_sets())
    print(table(measure_rounds(large, options.rounds, batches=8), "torchvision"))
    print(table(measure_rounds(small, options.rounds, batches=10), "torchvision"))


if __name__ == "__main__":
    main()
