"""The command line: `fastmix` or `python -m fastmix`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import cli
from .offline import agreement, command, finetuning
from .types import FastmixError

_EXPANDING: tuple[tuple[str, Any, str], ...] = (
    ("finetune", finetuning, "Teach a diffusion model the classes of a folder: LoRA and a token for each of them."),
    ("refine", command, "Expand a folder of pictures by a diffusion model, saliency-guided or as other papers do."),
    ("agreement", agreement, "Check whether an expanded set keeps its labels; exit status 1 if it does not."),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; argv: its words, by default those of the process.

    Returns the exit status: 0, or 2 after one line about a user's error on stderr, or 130 after Ctrl-C.  Raises
    SystemExit, as argparse does, for --help and for wrong arguments; with 1 for a set that does not keep its labels.
    """
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ModuleNotFoundError, FastmixError) as error:
        sys.stderr.write(_line(str(error)))
        return 2
    return 0


def _line(message: str) -> str:
    return f"fastmix: error: {' '.join(message.split())}\n"


class _Parser(argparse.ArgumentParser):
    """A parser that states a wrong argument in one line, as all errors are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, _line(f"{message} (see {self.prog} --help)"))


def _parser() -> _Parser:
    parser = _Parser("fastmix", description="Mix training pictures at nearly the price of cropping them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_info(commands)
    _add_show(commands)
    _add_pool(commands)
    _add_bench(commands)
    _add_explain(commands)
    for name, module, text in _EXPANDING:
        module.add_arguments(_add(commands, name, module.run, text, bars=True))
    _add_demo(commands)
    return parser


def _add(commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str, *, bars: bool = False) -> Any:
    shown = argparse.ArgumentDefaultsHelpFormatter
    command = commands.add_parser(name, help=text, description=text, formatter_class=shown)
    command.set_defaults(run=run)
    if bars:
        command.add_argument("--quiet", action="store_true", help="no progress bars")
    return command


def _add_info(commands: Any) -> None:
    command = _add(commands, "info", cli.info, "Versions, backend, extras and why one is missing.")
    command.add_argument("--json", action="store_true", help="as JSON")


def _add_show(commands: Any) -> None:
    command = _add(commands, "show", cli.show, "Draw what a method does to pictures, layer by layer.")
    command.add_argument(
        "method", metavar="METHOD", choices=cli.METHODS | cli.SALIENT, help=" ".join(cli.METHODS | cli.SALIENT)
    )
    command.add_argument("path", metavar="PATH", help="a picture, or a folder of pictures")
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the picture to write (.png .jpg .webp)")
    command.add_argument("--preset", choices=cli.PRESETS, default="imagenet", help="the paper's setting")
    command.add_argument("--seed", type=int, default=0, help="names the pictures and the draws")
    command.add_argument("--count", type=int, default=4, help="columns")
    command.add_argument("--size", type=int, default=224, help="side of the pictures, px")
    command.add_argument("--pool", metavar="FILE", help="pictures to mix in, made by `fastmix pool`")


def _add_pool(commands: Any) -> None:
    pool = commands.add_parser(
        "pool", help="Make files of pictures to mix in.", description="Make files of pictures to mix in."
    )
    kinds = pool.add_subparsers(required=True, metavar="COMMAND")
    make = _add(kinds, "make", cli.pool_make, "Draw fractals.", bars=True)
    make.add_argument("out", metavar="OUT.npy")
    make.add_argument("--kind", choices=("fractal",), default="fractal", help="what to draw")
    make.add_argument("--count", type=int, default=14230, help="pictures")
    make.add_argument("--size", type=int, default=256, help="side, px")
    make.add_argument("--seed", type=int, default=0, help="names the pictures")
    hue = make.add_mutually_exclusive_group()
    hue.add_argument("--color", action="store_true", default=True, help="in colour")
    hue.add_argument("--grey", dest="color", action="store_false", help="in grey")
    pack = _add(kinds, "pack", cli.pool_pack, "Pack a folder of pictures.", bars=True)
    pack.add_argument("folder", metavar="DIR")
    pack.add_argument("out", metavar="OUT.npy")
    pack.add_argument("--size", type=int, default=256, help="side, px; centres are cut out")


def _add_bench(commands: Any) -> None:
    command = _add(
        commands, "bench", cli.bench, "Measure plain crops and each method on a folder of pictures.", bars=True
    )
    command.add_argument("path", metavar="PATH", help="a folder with one subfolder a class")
    command.add_argument(
        "--methods",
        nargs="+",
        choices=cli.METHODS | cli.SALIENT,
        default=[*cli.METHODS],
        metavar="METHOD",
        help="which",
    )
    command.add_argument("--size", type=int, default=224, help="side of the crops, px")
    command.add_argument("--batch-size", type=int, default=128, help="pictures a batch")
    command.add_argument("--workers", type=int, default=2, help="threads; 0: the calling one")
    command.add_argument("--rounds", type=int, default=3, help="timed epochs each, after one that is not")
    command.add_argument("--images", type=int, default=2048, help="most pictures an epoch, spread over the folder")
    command.add_argument("--json", action="store_true", help="machine and rows as JSON on stdout, and nothing else")
    command.add_argument("--plot", metavar="FILE", help="bars (.png .pdf .svg .jpg); needs matplotlib")


def _add_explain(commands: Any) -> None:
    text = "Draw what a trained classifier paints into masked pictures, class by class, beside the controls."
    command = _add(commands, "explain", cli.explain, text, bars=True)
    command.add_argument("model", metavar="MODEL", help="FILE.py:FUNCTION or MODULE:FUNCTION that returns the model")
    command.add_argument("data", metavar="DATA", help="a folder with one subfolder a class, in the model's order")
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the picture to write (.png .jpg .webp)")
    command.add_argument("--judge", metavar="MODEL", help="a classifier of the same classes, trained independently")
    for name, whose in (("", "the model"), ("judge-", "the judge")):
        command.add_argument(f"--{name}weights", metavar="FILE", help=f"state_dict of {whose}")
        dest = name or "model-"
        command.add_argument(f"--{dest}args", type=json.loads, metavar="JSON", help=f"arguments of {whose}'s function")
    command.add_argument("--classes", nargs="+", default=(), metavar="NAME", help="class folders; none: the first ten")
    command.add_argument("--images", type=int, default=512, help="most pictures, spread over the classes")
    command.add_argument("--masks", type=int, default=4, help="masks for each picture")
    command.add_argument("--mode", default="random", help="of masking: random, progressive, independent or blank")
    command.add_argument("--ratio", type=float, default=0.25, help="share that is hidden at a time")
    command.add_argument("--patch", type=int, default=argparse.SUPPRESS, help="cells, px (default: size / 7)")
    command.add_argument("--threshold", default="relative", help="relative, quantile, signed or raw")
    command.add_argument("--level", type=float, default=0.25, help="of the threshold; of raw the step")
    command.add_argument("--base", type=float, default=0.0, help="value of hidden pixels in 0..1")
    command.add_argument("--size", type=int, default=224, help="side of the pictures, px")
    command.add_argument("--whole", action="store_true", help="pictures have that size: no crop of the centre")
    for name in ("mean", "std"):
        text = f"{name} of each channel in 0..1 (default: ImageNet's)"
        command.add_argument(f"--{name}", type=float, nargs=3, default=argparse.SUPPRESS, metavar="X", help=text)
    command.add_argument("--batch-size", type=int, default=32, help="pictures a batch")
    command.add_argument("--workers", type=int, default=2, help="threads that read; 0: the calling one")
    command.add_argument("--device", default="cpu", help="of torch, such as cuda")
    command.add_argument("--seed", type=int, default=0, help="names the masks and the other draws")
    command.add_argument("--json", action="store_true", help="settings and figures as JSON on stdout, and nothing else")


def _add_demo(commands: Any) -> None:
    text = "Cut real photographs, train a small network on them, measure the loader and draw the methods."
    command = _add(commands, "demo", cli.demo, text, bars=True)
    command.add_argument("--folder", metavar="DIR", help="keep the photographs here (a new folder)")
    command.add_argument("-o", "--output", metavar="FILE", default="fastmix_demo.png", help="the picture to write")


if __name__ == "__main__":
    sys.exit(main())
