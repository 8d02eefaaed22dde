"""Every figure that fastmix promises, in one run: `python -m benchmarks.must_show` (about 7 minutes on 2 cores).

Loaders take turns (see README.md); a ratio is taken within a pass, and its median over the passes is the figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.baselines import Round, cifar_loaders, cifar_sets, imagenet_loaders, picture_sets, run_round
from benchmarks.own import METHODS, PLAIN, Turn, own_loader
from benchmarks.promises import Memory, digests, memory
from benchmarks.report import FIGURE_HEAD, Figure, circumstances, table
from fastmix import PixMix

TORCHVISION = "torchvision"
PAPERS = ("paper pixmix", "paper layermix", "paper ipmix")
KEEPING = [name for name, mix in METHODS.items() if mix is not None and mix.label_preserving]
MIXING = [name for name, mix in METHODS.items() if mix is not None and not mix.label_preserving]
SMALL, PAPER_SMALL = "pixmix 32²", "paper pixmix 32²"
EVERYONE = (*METHODS, TORCHVISION, *PAPERS, SMALL, PAPER_SMALL)
WATCHED = (PLAIN, "mixup", "ipmix")  # the ways to use memory: nothing extra, crops that wait, most layers
FLAT = 1.02  # peak of all epochs by peak of the first: pages of the pool that were not drawn from before

Pass = dict[str, Round]


@dataclass(frozen=True)
class Contender:
    """A loader, and how many batches (in whole epochs) a timing of it takes."""

    loader: Iterable[Any]
    batches: int


def large_contenders(photos: Path, fractals: Path) -> dict[str, Contender]:
    """224²: ours plain and with each method, torchvision plain, the papers' programs."""
    theirs = imagenet_loaders(photos, fractals)
    loader = own_loader(photos)
    return {
        **{name: Contender(Turn(loader, mix), 8) for name, mix in METHODS.items()},
        **{name: Contender(theirs[name](), 8) for name in (TORCHVISION, *PAPERS)},
    }


def small_contenders() -> dict[str, Contender]:
    """32², everything in memory: our PixMix and the paper's."""
    images, labels, fractals = cifar_sets()
    half = (0.5, 0.5, 0.5)
    options = {"batch_size": 512, "crop": "pad4", "size": 32, "mean": half, "std": half, "mix": PixMix.cifar()}
    theirs = cifar_loaders(images, labels, fractals)["paper pixmix"]()
    return {SMALL: Contender(own_loader((images, labels), **options), 50), PAPER_SMALL: Contender(theirs, 10)}


def large_orders(rounds: int) -> list[list[str]]:
    """Who runs in which pass: ours and torchvision with one paper's program, then ours alone, backwards."""
    return [
        names for _ in range(rounds) for paper in PAPERS for names in ([*METHODS, TORCHVISION, paper], [*METHODS][::-1])
    ]


def time_passes(
    contenders: dict[str, Contender], orders: Sequence[Sequence[str]], tell: Callable[[str], None]
) -> list[Pass]:
    """Time each pass, after one epoch of everyone that is not timed.  tell: called with what runs next."""
    for name, contender in contenders.items():
        tell(f"warm-up {name}")
        run_round(contender.loader, 1)
    timed: list[Pass] = []
    for order in orders:
        timed.append({})
        for name in order:
            tell(name)
            timed[-1][name] = run_round(contenders[name].loader, contenders[name].batches)
    return timed


def ratio(passes: Sequence[Pass], name: str, base: str, must: float, aim: float, title: str | None = None) -> Figure:
    """How many times as fast `name` is as `base`, in each pass that has both."""
    both = [(p[name], p[base]) for p in passes if name in p and base in p]
    rates = [own.rate / other.rate for own, other in both]
    cpu = median(other.cpu_ms / own.cpu_ms for own, other in both)
    return Figure(title or f"own {name} ÷ {base}", rates, must, aim, cpu)


def speed_figures(passes: Sequence[Pass]) -> list[Figure]:
    """The promised ratios."""
    own_plain, theirs = "own plain", f"{TORCHVISION} plain"
    return [
        *(ratio(passes, name, PLAIN, 0.8, 0.9, f"own {name} ÷ {own_plain}") for name in KEEPING),
        *(ratio(passes, name, PLAIN, 0.95, 0.98, f"own {name} ÷ {own_plain}") for name in MIXING),
        ratio(passes, PLAIN, TORCHVISION, 2.3, 3, f"{own_plain} ÷ {theirs}"),
        *(ratio(passes, name, TORCHVISION, 1.8, 2.5, f"own {name} ÷ {theirs}") for name in ("pixmix", "layermix")),
        *(ratio(passes, paper.removeprefix("paper "), paper, 6, 10) for paper in PAPERS),
        ratio(passes, SMALL, PAPER_SMALL, 20, 50),
    ]


def promise_figures(different: dict[str, int], watched: dict[str, Memory]) -> list[Figure]:
    """The promises that are not about speed; the worst method counts."""
    of_bound, flat = (max(map(key, watched.values())) for key in (lambda m: m.of_bound, lambda m: m.after_first))
    return [
        Figure("digests over threads 0, 1, 2, 4 x prefetch 1, 2, 4", [max(different.values())], 1, at_most=True),
        Figure("peak memory of 3 epochs ÷ memory_bound()", [of_bound], 1.1, at_most=True),
        Figure("peak memory of 3 epochs ÷ of the first", [flat], FLAT, at_most=True),
    ]


def rate_rows(passes: Sequence[Pass]) -> list[list[str]]:
    """Loader, median images/s, median CPU ms an image, timings."""
    timed = {name: [p[name] for p in passes if name in p] for name in EVERYONE}
    return [
        [name, f"{median(r.rate for r in rs):.0f}", f"{median(r.cpu_ms for r in rs):.3f}", str(len(rs))]
        for name, rs in timed.items()
    ]


def measure(sets: Path, rounds: int) -> dict[str, Any]:
    """Run everything; returns circumstances, passes, figures, digests and memory."""
    torch.set_num_threads(1)  # the torch workers do so themselves; our threads call no torch op
    known = circumstances()
    with tqdm(desc="pictures", unit="step", file=sys.stderr) as bar:

        def tell(what: str) -> None:
            bar.update()
            bar.set_description(f"{what:20}")

        photos, fractals = picture_sets(sets)
        watched: dict[str, Memory] = {}
        different: dict[str, int] = {}
        seen: set[str] = set()
        for name in WATCHED:
            tell(f"memory {name}")
            watched[name] = memory(photos, name)
        for name in METHODS:
            tell(f"digests {name}")
            made = digests(photos, name)
            different[name] = len(made)
            seen |= made
        if len(seen) < len(METHODS):
            raise RuntimeError(f"{len(METHODS)} methods gave {len(seen)} digests: they do not look at what they should")
        passes = time_passes(small_contenders(), [[SMALL, PAPER_SMALL], [PAPER_SMALL, SMALL]] * rounds, tell)
        passes = [*time_passes(large_contenders(photos, fractals), large_orders(rounds), tell), *passes]
    return {
        "circumstances": known,
        "passes": passes,
        "figures": [*speed_figures(passes), *promise_figures(different, watched)],
        "digests": different,
        "memory": watched,
    }


def text(result: dict[str, Any], markdown: bool) -> str:
    """The report."""
    mib = 2**20
    digest = ", ".join(f"{name} {'equal' if count == 1 else 'NOT EQUAL'}" for name, count in result["digests"].items())
    memories = [
        [name, *(f"{b / mib:.0f}" for b in (m.before, *m.peaks, m.bound)), f"{m.of_bound:.2f}"]
        for name, m in result["memory"].items()
    ]
    bullet = "- " if markdown else ""
    return "\n\n".join(
        [
            "\n".join(f"{bullet}{name}: {value}" for name, value in result["circumstances"].items()),
            table(FIGURE_HEAD, [figure.row() for figure in result["figures"]], markdown),
            table(["loader", "images/s", "CPU ms an image", "timings"], rate_rows(result["passes"]), markdown),
            f"Digests: {digest}",
            table(["MiB resident", "before", "epoch 1", "2", "3", "memory_bound()", "share"], memories, markdown),
        ]
    )


def as_json(result: dict[str, Any]) -> str:
    """Everything, every timing included."""
    return json.dumps(
        {
            **result,
            "passes": [{name: asdict(timed) for name, timed in p.items()} for p in result["passes"]],
            "figures": [figure.as_json() for figure in result["figures"]],
            "memory": {name: asdict(m) for name, m in result["memory"].items()},
        },
        indent=1,
        ensure_ascii=False,
    )


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="timings of a paper's program, 6 of ours for each")
    parser.add_argument("--sets", type=Path, help="folder where the pictures are kept; default: cut anew")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every timing here")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, expected at least 1")
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.sets or Path(folder), options.rounds)
    if options.json:
        options.json.write_text(as_json(result))
    print(text(result, options.markdown))


if __name__ == "__main__":
    main()
