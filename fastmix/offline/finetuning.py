"""The settings of `fastmix finetune`, and the command itself."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from .expansion import check_apart, check_prompt

__all__ = ["Finetuning", "add_arguments", "run"]

_CAPTION = "a photo of a {token} {name}"
_PRECISIONS = ("no", "fp16", "bf16")
_INTEGERS = ("steps", "batch_size", "size", "rank", "seed", "accumulate", "checkpoint")
_BOUNDS: dict[str, tuple[float, float]] = {  # least and largest
    "steps": (1, 1 << 31),
    "batch_size": (1, 1 << 16),
    "size": (8, 4096),
    "rank": (1, 1024),
    "learning_rate": (0, 1),
    "weight_decay": (0, 1),
    "seed": (0, (1 << 64) - 1),
    "accumulate": (1, 1 << 16),
    "checkpoint": (1, 1 << 31),
}


@dataclass(frozen=True)
class Finetuning:
    """How a model is taught the classes of a data set.

    metaclass: what all of them are, in a word the model knows: "bird".  caption: of every picture; {token} becomes the
    token of its class, {name} the metaclass.
    steps: updates.  batch_size: pictures an update, over all processes.  accumulate: parts in which a process takes its
    share of them.  size: side of the square that pictures are brought to, px.  flip: mirror half of them.
    rank: of LoRA.  learning_rate: of AdamW, for LoRA and tokens.  weight_decay: for LoRA alone.
    snr_gamma: of min-SNR weights (Hang et al., 2023), such as 5; None: all steps of the noise count alike.
    precision: "no", "fp16" or "bf16".  seed: names all draws.  checkpoint: steps between two of them; changes nothing.

    There is no term of DreamBooth's to keep the metaclass as it was: with a token for each class of a whole training
    set, Diff-Mix does without it, too.

    Raises ValueError that names the field, what was expected and the fix.
    """

    metaclass: str = "object"
    caption: str = _CAPTION
    steps: int = 35_000
    batch_size: int = 8
    accumulate: int = 1
    size: int = 512
    flip: bool = True
    rank: int = 10
    learning_rate: float = 5e-5
    weight_decay: float = 1e-2
    snr_gamma: float | None = None
    precision: str = "no"
    seed: int = 0
    checkpoint: int = 500

    def __post_init__(self) -> None:
        """Check every field."""
        for name, (least, largest) in _BOUNDS.items():
            _check_number(name, getattr(self, name), least, largest)
        if not self.learning_rate:
            raise ValueError("learning_rate is 0, expected more: nothing would be learned")
        if self.snr_gamma is not None:
            _check_number("snr_gamma", self.snr_gamma, 1e-6, 1e6)
        if self.precision not in _PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}, expected one of {', '.join(_PRECISIONS)}")
        if not isinstance(self.metaclass, str) or not self.metaclass.strip():
            raise ValueError(f"metaclass is {self.metaclass!r}, expected a word such as 'bird'")
        check_prompt("caption", self.caption)
        if "{token}" not in self.caption:
            raise ValueError(f"caption is {self.caption!r}, expected one with {{token}}, such as {_CAPTION!r}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size is {self.batch_size}, expected a multiple of accumulate ({self.accumulate})")

    def captions(self, tokens: Sequence[str]) -> list[str]:
        """One for each token."""
        return [self.caption.replace("{token}", token).replace("{name}", self.metaclass) for token in tokens]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `run` reads, but for --quiet, which every command with bars has."""
    command.add_argument("data", metavar="DATA", help="the training pictures: a folder with one subfolder a class")
    command.add_argument("out", metavar="OUT", help="folder for adapter, tokens and checkpoints; goes on where it was")
    command.add_argument("--model", required=True, metavar="MODEL", help="Stable Diffusion: a folder, or a hub's name")
    command.add_argument("--metaclass", default=Finetuning.metaclass, metavar="WORD", help="what all classes are")
    command.add_argument("--caption", default=Finetuning.caption, metavar="TEXT", help="of every picture")
    command.add_argument("--steps", type=int, default=Finetuning.steps, help="updates")
    command.add_argument("--batch-size", type=int, default=Finetuning.batch_size, help="pictures, over all processes")
    command.add_argument("--accumulate", type=int, default=Finetuning.accumulate, help="parts to take a batch in")
    command.add_argument("--size", type=int, default=Finetuning.size, help="side of the pictures, px")
    command.add_argument("--no-flip", dest="flip", action="store_false", help="mirror no picture")
    command.add_argument("--rank", type=int, default=Finetuning.rank, help="of LoRA")
    command.add_argument("--learning-rate", type=float, default=Finetuning.learning_rate, help="of LoRA and tokens")
    command.add_argument("--weight-decay", type=float, default=Finetuning.weight_decay, help="of LoRA")
    command.add_argument("--snr-gamma", type=float, metavar="X", help="of min-SNR weights, such as 5; none without")
    command.add_argument("--precision", choices=_PRECISIONS, default=Finetuning.precision, help="mixed, or not")
    command.add_argument("--seed", type=int, default=Finetuning.seed, help="names all draws")
    command.add_argument("--checkpoint", type=int, default=Finetuning.checkpoint, help="steps between checkpoints")


def run(options: argparse.Namespace) -> None:
    """Teach the model, and say on stdout where the result is."""
    from ..datasets import open_source
    from .finetune import finetune

    check_apart(options.data, options.out)
    names = [field.name for field in fields(Finetuning)]
    settings = Finetuning(**{name: value for name, value in vars(options).items() if name in names})
    quiet = options.quiet or not sys.stderr.isatty()
    losses = finetune(open_source(options.data), options.out, settings, options.model, quiet)
    if os.environ.get("RANK", "0") != "0":  # one of several processes speaks
        return
    if losses is None:
        sys.stdout.write(f"{options.out} is finished: nothing to do\n")
    else:
        last = losses[-100:]
        mean = f": the loss was {sum(last) / len(last):.4f} in the last {len(last)} steps" if last else ""
        sys.stdout.write(f"wrote {options.out}{mean}\n")


def _check_number(name: str, value: Any, least: float, largest: float) -> None:
    kinds = int if name in _INTEGERS else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= largest:
        kind = "an integer" if name in _INTEGERS else "a number"
        raise ValueError(f"{name} is {value!r}, expected {kind} from {least} to {largest}")
