"""What saliency costs: `python -m benchmarks.saliency` (about 2 minutes on 2 cores).

The methods that mix by saliency against our own plain crops, taking turns on one loader, and the batched Otsu threshold
against one call of scikit-image's a map, in turns as well.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.filters import threshold_otsu
from tqdm import tqdm

from benchmarks.baselines import picture_sets
from benchmarks.must_show import Contender, ratio, time_passes
from benchmarks.own import PLAIN, Turn, own_loader
from benchmarks.report import FIGURE_HEAD, Figure, circumstances, table
from fastmix import GuidedMixup, Method, SaliencyMix, SGMix, SpectralResidual
from fastmix.kernels import backend_for
from fastmix.saliency import otsu, spectral_maps

METHODS: dict[str, Method | None] = {
    PLAIN: None,
    "sgmix": SGMix(),
    "saliencymix": SaliencyMix(),
    "guidedmixup": GuidedMixup(),
}
MUST = {"sgmix": 0.75, "saliencymix": 0.80, "guidedmixup": 0.80}


def loader_figures(photos: Path, rounds: int, tell: Callable[[str], None]) -> list[Figure]:
    """Each method ÷ plain, both directions of a pass."""
    loader = own_loader(photos, maps=SpectralResidual())
    contenders = {name: Contender(Turn(loader, mix), 8) for name, mix in METHODS.items()}
    orders = [names for _ in range(rounds) for names in ([*METHODS], [*METHODS][::-1])]
    passes = time_passes(contenders, orders, tell)
    return [ratio(passes, name, PLAIN, must, must, f"{name} ÷ own plain") for name, must in MUST.items()]


def otsu_figures(photos: Path, rounds: int) -> list[Figure]:
    """128 saliency maps of photographs, as float32 and as levels: scikit-image's time by ours, each on one core."""
    images, _ = next(iter(own_loader(photos, output="uint8")))
    small = spectral_maps(np.ascontiguousarray(images.permute(0, 2, 3, 1)))
    maps, backend = np.empty((len(small), 224, 224), np.float32), backend_for(small)
    backend.enlarge(small, maps, 0, len(maps))
    levels = np.empty(maps.shape, np.uint8)
    backend.quantise(maps, levels, 0, len(maps))
    return [
        Figure(f"otsu, 128 {name} maps of 224²: scikit-image ÷ ours", _otsu_ratios(given, rounds), 10)
        for name, given in (("float32", maps), ("uint8", levels))
    ]


def _otsu_ratios(maps: NDArray[Any], rounds: int) -> list[float]:
    ratios: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        expected = [threshold_otsu(each) for each in maps]
        middle = time.perf_counter()
        found = otsu(maps)
        ratios.append((middle - start) / (time.perf_counter() - middle))
        if maps.dtype == np.uint8 and not np.array_equal(found, expected):
            raise RuntimeError("the thresholds differ")
    return ratios[1:]


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4, help="passes there and back")
    parser.add_argument("--sets", type=Path, help="folder where the pictures are kept; default: cut anew")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, expected at least 1")
    with tempfile.TemporaryDirectory() as folder, tqdm(unit="step") as bar:

        def tell(what: str) -> None:
            bar.update()
            bar.set_description(f"{what:20}")

        known = circumstances()
        photos, _ = picture_sets(options.sets or Path(folder))
        figures = [*loader_figures(photos, options.rounds, tell), *otsu_figures(photos, 2 * options.rounds)]
    print("\n".join(f"{name}: {value}" for name, value in known.items()))
    print(table(FIGURE_HEAD, [figure.row() for figure in figures], False))


if __name__ == "__main__":
    main()
