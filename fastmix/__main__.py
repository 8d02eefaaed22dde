"""The command line: `fastmix` or `python -m fastmix`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import cli
from .types import FastmixError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; argv: its words, by default those of the process.

    Returns the exit status: 0, or 2 after one line about a user's error on stderr, or 130 after Ctrl-C.  Raises
    SystemExit, as argparse does, for --help and for wrong arguments.
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
    command.add_argument("method", metavar="METHOD", choices=cli.METHODS, help=" ".join(cli.METHODS))
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
        "--methods", nargs="+", choices=cli.METHODS, default=[*cli.METHODS], metavar="METHOD", help="which"
    )
    command.add_argument("--size", type=int, default=224, help="side of the crops, px")
    command.add_argument("--batch-size", type=int, default=128, help="pictures a batch")
    command.add_argument("--workers", type=int, default=2, help="threads; 0: the calling one")
    command.add_argument("--rounds", type=int, default=3, help="timed epochs each, after one that is not")
    command.add_argument("--images", type=int, default=2048, help="most pictures an epoch, spread over the folder")
    command.add_argument("--json", action="store_true", help="machine and rows as JSON on stdout, and nothing else")
    command.add_argument("--plot", metavar="FILE", help="bars (.png .pdf .svg .jpg); needs matplotlib")


def _add_demo(commands: Any) -> None:
    text = "Cut real photographs, train a small network on them, measure the loader and draw the methods."
    command = _add(commands, "demo", cli.demo, text, bars=True)
    command.add_argument("--folder", metavar="DIR", help="keep the photographs here (a new folder)")
    command.add_argument("-o", "--output", metavar="FILE", default="fastmix_demo.png", help="the picture to write")


if __name__ == "__main__":
    sys.exit(main())
