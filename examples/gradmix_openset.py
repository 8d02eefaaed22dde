"""Open-set recognition with GradMix: six ways to train a contrastive encoder, judged by one detector.

    sudo apt-get install dataset-fashion-mnist
    pip install ".[examples]"
    python examples/gradmix_openset.py --quick
    tensorboard --logdir openset/tensorboard

Six classes of Fashion-MNIST, drawn by the seed, are known.  An encoder is trained on two views of their pictures, with
SupCon + NT-Xent and, in all ways but the first, the mixed NT-Xent, weighed by the share of each picture that another
one covers.  Then its features have to tell the test pictures of the known classes from those of the other four.

    none     no mixed views
    mixup    MixUp of each view, in the loader
    cutmix   CutMix of each view, in the loader
    random   GradMix's windows at random places: its sizes and weights without its maps, the control
    fresh    GradMixStep.paper(), with maps of the batch itself, in the training step
    cached   GradMix in the loader, on maps that the ordinary backward of an epoch left for the next one

All ways have the same pictures, crops, jitter and order of samples, the same network and first weights, number of
steps, detector and k.  What only GradMix's maps can bring is the difference of fresh and random, or of cached and
random; the last lines print it.  Maps of `fresh` are those of NT-Xent, maps of `cached` those of the whole loss, and in
the first epoch, which has no maps yet, the windows of `cached` are random, too.

The detector is Algorithm 1 of GradMix, whose score is the share of one class among all.  With known classes that are
alike, an unknown one that is near to a single class gets the larger share, and AUROC may fall below 50 % where
distances still tell them apart.  auroc_maha judges the same features by their Mahalanobis distance; believe no
difference that only one of the two shows.

--data takes any folder with one subfolder a class as well; half of each class is drawn for the test then.
--quick shows that all works, in three minutes on two cores; its figures say nothing about the ways, with one seed and
so few steps.  The full setting takes days on two cores without a GPU.  On the CPU the same command gives the same
figures again, whatever --workers is.

DIR/results.json has a row for each way and seed, DIR/results.png the figures as a plot, DIR/tensorboard the losses and
pictures of views, maps, windows and mixed views.
"""

import argparse
import json
import math
import statistics
import time
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from openset_data import DEFAULT, SIZE, OpenSet, divide, open_pictures
from openset_report import FIGURES, plot, report, sheet, table, verdicts
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import fastmix
from fastmix.attribution import AttributionHook
from fastmix.learn import GradMixStep, openset

WAYS = ("none", "mixup", "cutmix", "random", "fresh", "cached")
LAYERS, CELLS = ("layer2", "layer3"), (8, 8)  # whose maps are fused, and their size
NORMALISED = {"mean": (0.5,) * 3, "std": (0.5,) * 3}

# What --quick changes; pictures are counted for each class, None: all.
FULL = {"seeds": 5, "epochs": 20, "batch_size": 256, "lr": 1e-3, "width": 32, "depth": 2, "train": None, "test": None}
QUICK = {"seeds": 1, "epochs": 6, "batch_size": 64, "lr": 4e-3, "width": 12, "depth": 1, "train": 300, "test": 150}
HELP = {
    "train": "pictures of a class, ",
    "test": "pictures of a class, ",
    "width": "channels, ",
    "depth": "layers of a stage, ",
}


@dataclass
class Step:
    """Of a training step: the loss, and what can be shown of it.

    covered: (2N,) share that another picture covers.  boxes: (2N, 4) y0, y1, x0, x1 of the windows, where known.
    """

    loss: float
    mixed: Tensor | None = None
    covered: Tensor | None = None
    maps: Tensor | None = None
    boxes: Tensor | None = None


def network(width: int, depth: int) -> nn.Sequential:
    """An encoder with three stages of `depth` convolutions, 8 x 8 cells at their end, and a projection head."""

    def stage(inputs: int, outputs: int, stride: int, depth: int = depth) -> nn.Sequential:
        parts: list[nn.Module] = []
        for number in range(depth):
            first = (inputs, stride) if number == 0 else (outputs, 1)
            conv = nn.Conv2d(first[0], outputs, 3, first[1], padding=1, bias=False)
            parts += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts)

    wide = 4 * width
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 128))
    stages = {"stem": stage(3, width, 1, 1), "layer1": stage(width, width, 2), "layer2": stage(width, 2 * width, 2)}
    return nn.Sequential(OrderedDict(**stages, layer3=stage(2 * width, wide, 1), head=head))


def training_loader(way: str, train: Any, seed: int, options: argparse.Namespace) -> fastmix.DataLoader:
    """Batches of (view 1, view 2), with (mixed 1, mixed 2) behind them where the loader mixes."""
    mixes = {
        "mixup": fastmix.MixUp.cifar(),
        "cutmix": fastmix.CutMix.cifar(),
        "cached": fastmix.GradMix.paper(fallback="random"),
    }
    maps = {"maps": fastmix.MapBank(len(train), shape=CELLS, views=2)} if way == "cached" else {}
    return fastmix.DataLoader(
        train,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        views=2,
        mix=mixes.get(way),
        crop="random_resized",
        scale=(0.2, 1.0),
        size=SIZE,
        jitter=fastmix.ColorJitter(),
        seed=seed,
        **NORMALISED,
        **maps,
    )


def train_step(
    way: str, model: nn.Module, loader: fastmix.DataLoader, images: Tensor, labels: Tensor, key: fastmix.Key
) -> Step:
    """Loss and gradients of one batch.  All ways that mix run clean and mixed views apart, as BatchNorm sees it."""
    gradmix = GradMixStep.paper(layers=LAYERS, locate="random" if way == "random" else "boxsum")
    if way in ("random", "fresh"):
        out = gradmix.step(model, images, labels, key=key, ids=loader.delivered.ids)
        out.loss.backward()
        mixed = out.mixed
        return Step(out.loss.item(), mixed.images, mixed.weight, mixed.maps, mixed.boxes)
    if way == "none":
        loss = gradmix.objective(model(images), labels)
        loss.backward()
        return Step(loss.item())
    clean, mixed = images.chunk(2)
    covered = 1 - torch.as_tensor(loader.delivered.weights, device=images.device)
    hook = AttributionHook(model, LAYERS, keep_gradients=True) if way == "cached" else None
    with hook or nullcontext():
        z_mixed = model(mixed)
        z = model(clean)  # the last forward is the one that the maps are read from
        loss = gradmix.objective(z, labels, z_mixed, covered)
        loss.backward()
        maps = hook.maps(size=CELLS) if hook else None
    if hook:
        loader.put_maps(maps)
    return Step(loss.item(), mixed, covered, maps)


def train(
    way: str, data: OpenSet, seed: int, options: argparse.Namespace, writer: SummaryWriter
) -> tuple[nn.Module, dict[str, float]]:
    """Train by one way; returns the model and a few numbers about the last epoch."""
    torch.manual_seed(seed)
    model = network(options.width, options.depth).to(options.device)
    loader = training_loader(way, data.train, seed, options)
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    seconds: list[float] = []
    facts: dict[str, float] = {}
    with tqdm(range(options.epochs), f"{way}, seed {seed}", unit="epoch", leave=False) as epochs:
        for epoch in epochs:
            losses, shares, start = [], [], time.perf_counter()
            for index, (images, labels) in enumerate(loader):
                images, labels = images.to(options.device), labels.to(options.device)
                optimizer.zero_grad()
                step = train_step(way, model, loader, images, labels, fastmix.Key(seed, epoch))
                optimizer.step()
                schedule.step()
                losses.append(step.loss)
                shares.append(0.0 if step.covered is None else step.covered.mean().item())
                seconds.append(time.perf_counter() - start)
                writer.add_scalar("loss/step", step.loss, len(seconds))
                if index == 0:
                    shown = sheet(images[: 2 * len(labels)], step.maps, step.mixed, step.boxes)
                    writer.add_image("views, maps, windows, mixed views", shown, epoch)
                start = time.perf_counter()
            facts = {"loss": statistics.fmean(losses), "covered": statistics.fmean(shares)}
            for name, value in facts.items():
                writer.add_scalar(f"{name}/epoch", value, epoch)
            epochs.set_postfix(loss=f"{facts['loss']:.2f}")
    return model, {**facts, "steps": len(seconds), "step_s": statistics.median(seconds)}


@torch.inference_mode()
def features(model: nn.Module, pictures: Any, whole: bool, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Features and labels of pictures as they are, or of their centres."""
    loader = fastmix.DataLoader(
        pictures, 500, num_workers=options.workers, crop=None if whole else "center", size=SIZE, **NORMALISED
    )
    model.eval()
    z, labels = zip(*((model(images.to(options.device)).cpu(), labels) for images, labels in loader), strict=True)
    model.train()
    return torch.cat(z), torch.cat(labels)


def judge(model: nn.Module, data: OpenSet, options: argparse.Namespace) -> dict[str, float]:
    """Algorithm 1 of the paper, and how well its score tells known from unknown test pictures; and another score."""
    train, known, unknown = (features(model, x, data.whole, options) for x in (data.train, data.known, data.unknown))
    found = [openset.nearest_neighbours(*train, z, k=options.k) for z, _ in (known, unknown)]
    distant = [openset.mahalanobis(*train, z).score for z, _ in (known, unknown)]
    return {**asdict(openset.evaluate(found[0], known[1], found[1])), "auroc_maha": openset.auroc(*distant)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few pictures, few epochs, a small network, one seed")
    parser.add_argument("--data", type=Path, default=DEFAULT, help="IDX files, or one subfolder a class")
    parser.add_argument("--known", type=int, default=6, help="how many classes are known")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--k", type=int, default=3, help="neighbours of the detector")
    for name in FULL:
        words = f"default {FULL[name]}, with --quick {QUICK[name]}".replace("None", "all")
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(FULL[name] or 0), help=HELP.get(name, "") + words)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("openset"))
    options = parser.parse_args()
    options.ways = list(dict.fromkeys(options.ways))
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
        elif not 0 < getattr(options, name) < math.inf:
            parser.error(f"{name} is {getattr(options, name)}, expected a number above 0")
    if options.k < 1 or options.workers < 0:
        parser.error(f"k is {options.k} and workers {options.workers}, expected numbers from 1 and from 0 on")
    try:
        torch.empty(0, device=options.device)
        options.out.mkdir(parents=True, exist_ok=True)
        options.pictures = open_pictures(options.data)
        count = len(divide(options.pictures, 0, options.known, options.train, options.test).train)
    except (OSError, ValueError, RuntimeError) as error:
        parser.error(str(error))
    if count < options.batch_size:
        parser.error(f"batch_size is {options.batch_size}, expected at most {count}, the number of training pictures")
    return options


def main() -> None:
    options = parse()
    pictures = vars(options).pop("pictures")
    rows: list[dict[str, Any]] = []
    runs = [(way, seed) for seed in range(options.seeds) for way in options.ways]
    for way, seed in tqdm(runs, "ways x seeds", unit="run"):
        data = divide(pictures, seed, options.known, options.train, options.test)
        events = options.out / "tensorboard" / f"{way}-{seed}"
        for old in events.glob("events.out.tfevents.*"):
            old.unlink()  # or TensorBoard would draw both runs as one
        with SummaryWriter(events) as writer:
            model, facts = train(way, data, seed, options, writer)
            figures = judge(model, data, options)
            for name in FIGURES:
                writer.add_scalar(f"test/{name}", figures[name], options.epochs)
        rows.append({"way": way, "seed": seed, "known": data.split.known, **figures, **facts})
        (options.out / "results.json").write_text(json.dumps(report(rows, options), indent=1) + "\n")
    plot(rows, options.out / "results.png")
    print(table(rows))
    print("shares in %, mean ± standard deviation over seeds; fpr95: low is good", *verdicts(rows), sep="\n")


if __name__ == "__main__":
    main()
