"""What the commands do; `fastmix.__main__` reads their arguments.  Heavy modules are imported where they are used."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import numpy as np

from .kernels import backend_for
from .methods.augmix import AugMix
from .methods.cutmix import CutMix
from .methods.guidedmixup import GuidedMixup
from .methods.ipmix import IPMix
from .methods.layermix import LayerMix
from .methods.mixup import MixUp
from .methods.pixmix import PixMix
from .methods.saliencymix import SaliencyMix
from .methods.sgmix import SGMix
from .mixing import mix
from .rng import Key
from .saliency import spectral_maps
from .types import Batch, Pool

__all__ = ["METHODS", "PRESETS", "SALIENT", "bench", "demo", "explain", "info", "pool_make", "pool_pack", "show"]

METHODS: dict[str, Any] = {
    "mixup": MixUp,
    "cutmix": CutMix,
    "augmix": AugMix,
    "pixmix": PixMix,
    "ipmix": IPMix,
    "layermix": LayerMix,
}
SALIENT: dict[str, Any] = {"saliencymix": SaliencyMix, "guidedmixup": GuidedMixup, "sgmix": SGMix}  # by spectral maps
PRESETS = ("imagenet", "cifar")
_EXTRAS = {  # extra -> package -> module
    "torch": {"torch": "torch"},
    "plot": {"matplotlib": "matplotlib"},
    "demo": {"torch": "torch", "matplotlib": "matplotlib", "scikit-image": "skimage", "scikit-learn": "sklearn"},
    "diffusion": {name: name for name in ("accelerate", "diffusers", "peft", "pyarrow", "safetensors", "transformers")},
    "ray": {"ray": "ray.data"},
    "gpu": {"torch": "torch", "cupy-cuda13x": "cupy", "numba-cuda": "numba_cuda"},
}
_PICTURES, _PLOTS = (".png", ".jpg", ".webp"), (".png", ".pdf", ".svg", ".jpg")
_COMPILING = "fastmix: compiling kernels, once (up to a minute)\n"


def info(options: Namespace) -> None:
    """Print versions, the backend, what is missing and why, and where things are kept; JSON with --json."""
    from .bench import machine
    from .pools import default_pool_path

    pool = default_pool_path()
    facts = {
        **machine(),
        "backend": backend_for(np.empty(0)).__name__.rpartition(".")[2],  # type: ignore[attr-defined]
        "cache": str(pool.parent),
        "default_pool": str(pool) if pool.is_file() else None,
        "missing": {extra: reason for extra in _EXTRAS if (reason := _reason(extra))},
    }
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    missing = facts.pop("missing")
    lines = {name: value or "not installed" for name, value in facts.items()}
    if not pool.is_file():
        lines["default_pool"] = "not yet made: it will be when it is first needed"
    lines |= {f"[{extra}]": missing.get(extra, "complete") for extra in _EXTRAS}
    print("\n".join(f"{name:14}{value}" for name, value in lines.items()))


def show(options: Namespace) -> None:
    """Draw what a method does to some pictures."""
    from .show import batch_of, explain, grid, pick

    _check_output(options.output, _PICTURES)
    files = pick(options.path, options.count, options.seed)
    with _telling():
        batch = batch_of(files, options.size)
        method = _method(options.method, options.preset, options.size, options.pool)
        if options.method in SALIENT:
            batch = replace(batch, maps=spectral_maps(batch.images))
        rows = explain(method, batch, [file.name for file in files], options.seed)
    title = f"{method} on {options.path}, seed {options.seed}"
    grid(title, rows).save(options.output)
    print(f"wrote {options.output}")


def pool_make(options: Namespace) -> None:
    """Draw fractals into a pool file."""
    from .pools import make_pool

    pool = make_pool(
        options.out, options.count, options.size, options.seed, options.color, progress=_has_bar(options)
    )  # fmt: skip
    _report_pool(options.out, pool)


def pool_pack(options: Namespace) -> None:
    """Pack the pictures of a folder into a pool file."""
    from .pools import pack_pool

    _report_pool(options.out, pack_pool(options.folder, options.out, options.size, progress=_has_bar(options)))


def bench(options: Namespace) -> None:
    """Measure the loader on a folder; a table, or JSON and nothing else, on stdout."""
    from .bench import Settings, machine, measure, plot, table
    from .datasets import open_source

    if options.plot:
        _check_output(options.plot, _PLOTS)
    source = open_source(options.path)
    settings = Settings(options.size, options.batch_size, options.workers, options.rounds, options.images)
    rows = measure(source, _methods(options.methods, options.size), settings, not _has_bar(options))
    if options.plot:
        plot(rows, f"{options.path}, {_conditions(settings)}, {machine()['cpu']}", options.plot)
    print(json.dumps({"machine": machine(), "rows": rows}) if options.json else table(rows))


def explain(options: Namespace) -> None:
    """Draw what a classifier paints into masked pictures; controls in a table, or as JSON alone, on stdout."""
    from .datasets import open_source
    from .explain import Settings, facts, findings, load_model, page, study, table
    from .learn.prototypes import Filling

    _check_output(options.output, _PICTURES)
    given = {"patch": max(1, options.size // 7), **vars(options)}
    settings, how = Settings(**_settings(Settings, given)), Filling(**_settings(Filling, given))
    source = open_source(options.data)
    model = load_model(options.model, options.model_args, options.weights)
    judge = load_model(options.judge, options.judge_args, options.judge_weights) if options.judge else None
    report, names = study(model, judge, source, how, settings, not _has_bar(options)), source.classes or []
    what = f"{report.pictures} pictures of {len(report.classes)} of {len(names)} classes, {report.masks} masks each"
    page(f"{options.model} on {options.data}, {what}: {how}", report, names).save(options.output)
    if options.json:
        print(json.dumps({"settings": asdict(settings), "fill_in": asdict(how), **facts(report, names)}))
    else:
        print("\n".join([what, table(report), *findings(report), f"wrote {options.output}"]))


def demo(options: Namespace, settings: Any = None, speed: Any = None) -> None:
    """Cut photographs, train on them, measure the loader, draw the methods.  settings, speed: for shorter runs."""
    from .bench import Settings as Speed
    from .bench import measure, table
    from .datasets import open_source
    from .demo import SIDE, Settings, cut, gallery, train

    settings, speed, quiet = settings or Settings(), speed or Speed(rounds=2), not _has_bar(options)
    _check_output(options.output, _PICTURES)
    with _folder(options.folder) as folder:
        cut(folder, settings, quiet)
        source = open_source(folder)
        print(f"cut {len(source)} photographs of {len(source.classes or [])} classes")
        methods = _methods(METHODS, speed.size)
        losses = train(source, _method("layermix", "imagenet", settings.size), settings, quiet)
        print(f"trained {len(losses)} steps with LayerMix: the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}")
        rows = measure(source, methods, speed, quiet)
        print(f"speed of the loader at {_conditions(speed)}:\n{table(rows)}")
        gallery(folder, [_vivid(name, SIDE) for name in METHODS]).save(options.output)
    print(f"wrote {options.output}")


def _method(name: str, preset: str, size: int, pool: str | None = None) -> Any:
    """A method in a paper's setting, with a pool for pictures of `size` px if it mixes from one."""
    kind = (METHODS | SALIENT)[name]
    method = getattr(kind, preset, kind)()
    if not hasattr(method, "pool"):
        return method
    from .pools import default_pool, fit_pool

    return replace(method, pool=fit_pool(Pool.open(pool) if pool else default_pool(), (size, size)))


def _vivid(name: str, size: int) -> Any:
    """A method to be looked at: in its CIFAR setting, the stronger one, and with a weight or box for each sample."""
    method = _method(name, "cifar", size)
    return replace(method, mode="elem") if hasattr(method, "mode") else method


def _methods(names: Iterable[str], size: int) -> dict[str, Any]:
    """Methods in their ImageNet setting, whose kernels are compiled: two black pictures are mixed with each."""
    methods = {name: _method(name, "imagenet", size) for name in names}
    black = Batch.of(np.zeros((2, size, size, 3), np.uint8), [0, 1])
    with _telling():
        for method in methods.values():
            mix(method, black, Key(0))
    return methods


@contextmanager
def _telling() -> Iterator[None]:
    """Say why it takes so long, if it does: kernels are compiled when they are first used, and kept on disk."""
    timer = Timer(4, sys.stderr.write, [_COMPILING])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _folder(wanted: str | None) -> Iterator[Path]:
    """A new folder that stays, if one is wanted, else one that does not."""
    if wanted is None:
        with TemporaryDirectory(prefix="fastmix-") as folder:
            yield Path(folder)
        return
    path = Path(wanted)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise ValueError(f"folder {wanted} is not empty: name a new one for the photographs")
    yield path


def _check_output(path: str, endings: tuple[str, ...]) -> None:
    """Refuse before the work what would fail after it."""
    if not Path(path).parent.is_dir() or Path(path).suffix.lower() not in endings:
        raise ValueError(
            f"cannot write {path}: expected a file in a folder that exists, named *{' or *'.join(endings)}"
        )


def _settings(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that a dataclass has as fields."""
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def _reason(extra: str) -> str | None:
    """Why an extra is missing, and the command that mends it; None if it is complete."""
    for package, module in _EXTRAS[extra].items():
        try:
            import_module(module)
        except Exception as error:  # broken packages fail in many ways
            return f'{package} does not work ({error}): pip install "fastmix[{extra}]"'
    return None


def _has_bar(options: Namespace) -> bool:
    return not options.quiet and sys.stderr.isatty()


def _report_pool(path: str, pool: Pool) -> None:
    count, high, wide = pool.images.shape[:3]
    print(f"wrote {path}: {count} pictures of {wide} x {high} px, {pool.images.nbytes / 1e6:.1f} MB")


def _conditions(settings: Any) -> str:
    return f"{settings.size} px, batches of {settings.batch_size}, {settings.workers} threads"
