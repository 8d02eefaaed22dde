"""What a trained classifier paints into masked pictures: its prototypes of the classes, beside their controls."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from .datasets import Source, known_labels
from .engine import IMAGENET_MEAN, IMAGENET_STD
from .kernels import U8
from .learn.prototypes import CONTROLS, Filling, Normalised, Report, make_prototypes, resemblance
from .show import Cell, Row, grid

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

__all__ = ["Settings", "facts", "findings", "load_model", "page", "study", "table"]

_DEFAULT_CLASSES = 10
_NESTED = ("model", "state_dict", "model_state_dict")  # where checkpoints keep the weights
_WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put before names
_AGAINST = {
    "zero": "masked pictures",
    "noise": "noise of as many pixels",
    "shuffled": "shuffled fills",
    "random weights": "fills by random weights",
}
_VERDICTS = {
    None: "none (--judge); that a model recognises its own fills does not show that they look like their classes",
    True: "it tells the fills from noise and from shuffled fills, so they show other eyes something of their classes",
    False: "it does not tell the fills from noise and shuffled fills: nothing shows that they look like their classes",
}
_COLUMNS = ("mean picture", "filled in", "filled, recognised", "fill alone", "fill, random weights")


@dataclass(frozen=True)
class Settings:
    """Which pictures are taken, and how they reach the models.

    classes: names of class folders, or none for the first ten.  images: at most so many pictures, spread over these.
    masks: for each picture.  size: px.  whole: pictures have that size already and are not cropped.  mean, std: of each
    channel in [0, 1], as the models were trained.  device: of torch.  seed: names the masks and all other draws.
    """

    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    classes: Sequence[str] = ()
    images: int = 512
    masks: int = 4
    size: int = 224
    whole: bool = False
    batch_size: int = 32
    workers: int = 2
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 1:
            raise ValueError(f"images is {self.images}, expected at least 1")


def load_model(name: str, arguments: Any = None, weights: str | None = None) -> nn.Module:
    """The model that FILE.py:FUNCTION or MODULE:FUNCTION returns.

    arguments: a dictionary of the function's.  weights: a file of `torch.save`, a state_dict or a dictionary that has
    one as "model", "state_dict" or "model_state_dict".  Nothing but tensors is unpickled from it.  Modules are looked
    for in the working directory, too.  Raises ValueError or OSError where that fails.
    """
    from torch import nn

    where, _, function = name.rpartition(":")
    if not where or not function:
        raise ValueError(f"model is {name!r}, expected FILE.py:FUNCTION or MODULE:FUNCTION, as net.py:make_net")
    if not isinstance(arguments or {}, dict):
        raise ValueError(f'arguments are {arguments!r}, expected an object such as {{"num_classes": 10}}')
    with _importable(Path(where).resolve().parent if where.endswith(".py") else Path.cwd()):
        make = getattr(_module(where), function, None)
        if not callable(make):
            raise ValueError(f"{where} has no function {function!r}, expected one that returns a torch.nn.Module")
        model = make if isinstance(make, nn.Module) else make(**arguments or {})
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} gives a {type(model).__name__}, expected a torch.nn.Module")
    if weights is not None:
        _load_weights(model, weights)
    return model


def study(
    model: nn.Module, judge: nn.Module | None, source: Source, how: Filling, settings: Settings, quiet: bool
) -> Report:
    """Fill in pictures of `source`, an image folder, and see what model and judge make of them.

    `quiet`: no bar on stderr.  Raises ValueError for models that do not fit the folder, and as the loader does.
    """
    import torch

    try:
        device = torch.device(settings.device)
        ready = _prepared(model, source, settings, device)
        other = None if judge is None else _prepared(judge, source, settings, device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise ValueError(f"a model cannot be run on {settings.device!r}: {_short(error)}") from error
    classes, rows = _choose(source, settings)
    with tqdm(total=len(rows), desc="filling in", unit="picture", disable=quiet) as bar:
        batches = _batches(source, rows, settings, device, bar)
        return make_prototypes(ready, batches, classes, how, masks=settings.masks, seed=settings.seed, judge=other)


def table(report: Report) -> str:
    """How each kind of picture is classified, a line each."""
    by = _judges(report)
    shares = {(each.name, each.by): f"{each.right:10.1%}{each.wrong:10.1%}" for each in report.controls}
    lines = [f"{'named by':16}" + "".join(f"{f'the {name}':>20}" for name in by)]
    lines.append(f"{'as class':16}" + f"{'own':>10}{'other':>10}" * len(by))
    lines += [f"{name:16}" + "".join(shares[name, each] for each in by) for name in CONTROLS]
    return "\n".join(lines)


def findings(report: Report) -> list[str]:
    """What each control showed, a sentence each."""
    of = {(each.by, each.name): each for each in report.controls}
    lines = [
        f"{name}: the {by} recognises the fills {100 * of[by, name].gain:+.1f} points more often than {text} "
        f"(95 %: {100 * of[by, name].low:+.1f} to {100 * of[by, name].high:+.1f})"
        for name, text in _AGAINST.items()
        for by in _judges(report)
    ]
    for by in _judges(report):
        filled, masked = of[by, "wrong class"], of[by, "zero"]
        lines.append(
            f"wrong class: filled towards another class, {filled.wrong:.1%} of the pictures are named as that one by "
            f"the {by}; {masked.wrong:.1%} without"
        )
    own = _nearest(report)
    lines.append(
        f"resemblance: of {own['classes']} fills alone, {own['fill']} are most like the mean picture of their own "
        f"class; by random weights, {own['untrained_fill']}"
    )
    if report.empty:
        lines.append(f"empty: {report.empty:.1%} of the fills changed nothing")
    return [*lines, f"judge: {_VERDICTS[report.supported]}"]


def facts(report: Report, names: Sequence[str]) -> dict[str, Any]:
    """All figures, for JSON.  names: of all classes."""
    made = report.prototypes
    classes = [
        {"name": names[number], "fills": fills, "recognised": recognised}
        for number, fills, recognised in zip(report.classes, made.count.tolist(), made.recognised.tolist(), strict=True)
    ]
    return {
        "pictures": report.pictures,
        "masks": report.masks,
        "empty": report.empty,
        "supported": report.supported,
        "controls": [asdict(each) for each in report.controls],
        "classes": classes,
        "nearest_to_own_mean": _nearest(report),
    }


def page(title: str, report: Report, names: Sequence[str]) -> Image.Image:
    """The prototypes, a row for each class that has pictures.  names: of all classes."""
    rows = []
    for row, (number, fills) in enumerate(zip(report.classes, report.prototypes.count.tolist(), strict=True)):
        if fills:
            rows.append(Row(names[number], _cells(report, row)))
    return grid(title, rows, _COLUMNS)


def _cells(report: Report, row: int) -> list[Cell | None]:
    made = report.prototypes
    fills, recognised = int(made.count[row]), int(made.recognised[row])
    shown: list[Cell | None] = [
        Cell(_levels(report.means[row])),
        Cell(_levels(made.every[row]), f"{fills} fills"),
        Cell(_levels(made.filtered[row]), f"{recognised} fills") if recognised else None,
    ]
    for fill in (made.fill[row], report.untrained.fill[row]):
        peak = fill.abs().max().item() or 1.0
        signed = fill.min().item() < 0
        scaled = fill / (2 * peak) + 0.5 if signed else fill / peak
        shown.append(Cell(_levels(scaled), f"{-peak if signed else 0:.2g} to {peak:.2g}"))
    return shown


def _levels(picture: Tensor) -> U8:
    """(3, H, W) in [0, 1] as (H, W, 3) uint8."""
    levels: U8 = (picture * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
    return levels


def _judges(report: Report) -> list[str]:
    return list(dict.fromkeys(each.by for each in report.controls))


def _nearest(report: Report) -> dict[str, int]:
    """For how many classes the prototype correlates more with the mean picture of its own class than of any other."""
    made, untrained = report.prototypes, report.untrained
    found = {"classes": int((made.count > 0).sum())}
    for name, pictures in (("filtered", made.filtered), ("fill", made.fill), ("untrained_fill", untrained.fill)):
        likeness = resemblance(pictures, report.means)
        best = likeness.amax(1)
        found[name] = int(((best > 0) & (likeness.diagonal() == best)).sum())
    return found


def _choose(source: Source, settings: Settings) -> tuple[list[int], list[int]]:
    """Numbers of the classes, and of the samples, spread evenly over theirs."""
    names, labels = source.classes or [], known_labels(source)
    assert labels is not None  # of a folder they are
    for name in settings.classes:
        if name not in names:
            close = ", ".join(get_close_matches(name, names, 5, 0.4) or names[:5])
            raise ValueError(f"the folder has no class {name!r}, expected one such as {close}")
    wanted = settings.classes or names[:_DEFAULT_CLASSES]
    classes = sorted({names.index(name) for name in wanted})
    rows = np.flatnonzero(np.isin(labels, classes))
    count = min(len(rows), settings.images)
    return classes, rows[np.arange(count) * len(rows) // count].tolist()


def _batches(
    source: Source, rows: list[int], settings: Settings, device: Any, bar: Any
) -> Iterator[tuple[Tensor, Tensor, Any]]:
    from .loaders.torch import DataLoader

    crop, start = None if settings.whole else "center", 0
    loader = DataLoader(
        source,
        settings.batch_size,
        sampler=rows,
        num_workers=settings.workers,
        crop=crop,
        size=settings.size,
        output="uint8",
    )
    for images, labels in loader:
        yield images.to(device).float() / 255, labels.to(device), np.array(rows[start : start + len(images)])
        start += len(images)
        bar.update(len(images))


def _prepared(model: nn.Module, source: Source, settings: Settings, device: Any) -> nn.Module:
    """The model as one of pictures in [0, 1], on its device.  Raises ValueError unless its outputs are the classes."""
    import torch

    from .learn.filling import evaluating, logits_of

    wrapped, names = Normalised(model, settings.mean, settings.std).to(device), source.classes or []
    with evaluating(wrapped), torch.no_grad():
        outputs = logits_of(wrapped, torch.zeros((2, 3, settings.size, settings.size), device=device)).shape[1]
    if outputs != len(names):
        raise ValueError(
            f"a model has {outputs} outputs, expected the {len(names)} classes of the folder in their order: give a "
            "function whose model returns these, such as logits[:, [281, 282]]"
        )
    return wrapped


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return import_module(where)
    if not Path(where).is_file():
        raise FileNotFoundError(f"no model file {where}")
    name = f"fastmix_model_{Path(where).stem}"
    spec = spec_from_file_location(name, where)
    assert spec is not None and spec.loader is not None  # so it is for every .py
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _load_weights(model: nn.Module, path: str) -> None:
    import torch
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"cannot read weights {path}: {_short(error)}; expected a state_dict of tensors") from error
    for name in _NESTED:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, Mapping):
        raise ValueError(f"weights {path} are a {type(state).__name__}, expected a state_dict")
    weights = dict(state)
    for prefix in _WRAPPERS:
        consume_prefix_in_state_dict_if_present(weights, prefix)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"weights {path} do not fit: {_short(error)}") from error


def _short(error: Exception) -> str:
    return textwrap.shorten(str(error), 300)
