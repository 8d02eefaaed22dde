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

import numpy as np
from skimage.filters import threshold_otsu
from tqdm import tqdm

from benchmarks.baselines import picture_sets
from benchmarks.must_show import Contender, ratio, time_passes
from benchmarks.own import PLAIN, Turn, own_loader
from benchmarks.report import FIGURE_HEAD, Figure, circumstances, table
from fastmix import GuidedMixup, Method, SaliencyMix, SGMix, SpectralResidual
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


def otsu_figure(rounds: int) -> Figure:
    """128 maps of 224 x 224, levels of saliency: scikit-image's time by ours, on one core each."""
    rng = np.random.default_rng(0)
    small = spectral_maps(rng.integers(0, 256, (128, 224, 224, 3), dtype=np.uint8), (224, 224))
    levels = (255 * small).astype(np.uint8)
    theirs: list[float] = []
    ours: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        expected = [threshold_otsu(one) for one in levels]
        middle = time.perf_counter()
        found = otsu(levels)
        ours.append(time.perf_counter() - middle)
        theirs.append(middle - start)
        if not np.array_equal(found, expected):
            raise RuntimeError("the thresholds differ")
    values = [a / b for a, b in zip(theirs[1:], ours[1:], strict=True)]
    return Figure("otsu, 128 x 224²: scikit-image ÷ ours", values, 10)


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
        figures = [*loader_figures(photos, options.rounds, tell), otsu_figure(2 * options.rounds)]
    print("\n".join(f"{name}: {value}" for name, value in known.items()))
    print(table(FIGURE_HEAD, [figure.row() for figure in figures], False))


if __name__ == "__main__":
    main()
