"""`fastmix refine`: expand a folder of pictures by diffusion."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections import Counter
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types import Pool
from .expansion import PRESETS, Expansion, check_apart

if TYPE_CHECKING:  # heavy modules are imported where they are used
    from ..datasets import Source
    from ..manifest import Manifest
    from .generator import Adapted

__all__ = ["add_arguments", "run", "summary"]


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of the command, but for --quiet."""
    parser.add_argument("data", metavar="DATA", help="a folder with one subfolder a class: the training split alone")
    parser.add_argument("out", metavar="OUT", help="the folder to make, or to go on with")
    parser.add_argument("--preset", choices=PRESETS, default="sgdmix", help="the paper whose settings are taken")
    _add_model(parser)
    _add_settings(parser)
    parser.add_argument("--maps", metavar="FILE", help="saliency maps of MapFile.make, for the spectral residual")
    parser.add_argument("--pool", metavar="FILE", help="fractals that `fastmix pool` made, for the default ones")
    parser.add_argument("--batch-size", type=int, default=4, help="pictures that the model sees at a time")
    parser.add_argument("--device", default="cpu", help="of torch, such as cuda; under torchrun each rank has its own")
    parser.add_argument("--dtype", default="float32", help="float32, float16 or bfloat16")
    parser.add_argument("--ray", type=int, metavar="N", help="work in N actors of Ray, each with a model")


def _add_model(parser: ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help="a diffusers pipeline: Stable Diffusion or InstructPix2Pix")
    parser.add_argument("--adapter", metavar="PATH", help="LoRA weights for it")
    parser.add_argument("--tokens", metavar="DIR", help="a safetensors file for each token, <class_0>, <class_1>, ...")
    text = "what `fastmix finetune` wrote: adapter, tokens, metaclass and the name of the model"
    parser.add_argument("--finetuned", metavar="DIR", help=text)
    text = "without tokens: call classes by the names of their folders, with spaces for underscores"
    parser.add_argument("--plain-names", action="store_true", help=text)


def _add_settings(parser: ArgumentParser) -> None:
    """Those of `Expansion`; what is not given is the preset's."""
    add = partial(parser.add_argument, default=SUPPRESS)
    add("--metaclass", metavar="WORD", help="what all classes are, such as bird")
    add("--prompts", nargs="+", metavar="TEXT", help="templates with {token} and {name}")
    add("--multiplier", type=int, help="copies of each picture")
    add("--strengths", type=float, nargs="+", metavar="S", help="of noising, in (0, 1]; each copy draws one")
    add("--steps", type=int, help="of the whole schedule; strength * steps are run")
    add("--guidance", type=float, help="weight of the prompt")
    add("--candidates", type=int, help="pictures of which the one with the most similar map becomes the background")
    add("--same-class", choices=("allow", "forbid", "require"), help="may, must not or must they be of the same class")
    add("--size", type=int, help="side of the pictures that the model sees, px, a multiple of 8")
    add("--seed", type=int, help="names all that is drawn")
    add("--picture", choices=("png", "jpg"), help="kind of the files")


def run(options: Namespace) -> None:
    """Expand, then say on stdout what became of the records.  Raises as `expand` does, and ValueError for options."""
    from ..datasets import open_source
    from .refine import expand, expand_with_ray, ranks

    check_apart(options.data, options.out)
    source = open_source(options.data)
    adapted, tokens, changes = _learned(options, source)
    expansion = _expansion(options, changes, has_tokens=adapted.tokens is not None)
    pool = Pool.open(options.pool) if options.pool else None
    quiet = options.quiet or not sys.stderr.isatty()
    given: dict[str, Any] = {"tokens": tokens, "maps": options.maps, "pool": pool, "quiet": quiet}
    with ranks() as (rank, world):
        load = partial(adapted.load, _device(options.device), options.dtype)
        if options.ray is None:
            manifest = expand(source, options.out, expansion, load(), options.batch_size, rank, world, **given)
        else:
            gpus = 1 if options.device.startswith("cuda") else 0
            if world > 1:
                raise ValueError("--ray is given under torchrun, expected one of them")
            manifest = expand_with_ray(
                source, options.out, expansion, load, options.batch_size, options.ray, gpus=gpus, **given
            )
    if rank == 0:
        sys.stdout.write(f"{summary(manifest)}\nwrote {options.out}\n")


def summary(manifest: Manifest) -> str:
    """What became of the records, how often targets were used, how large masks are and which steps were run."""
    rows, made = manifest.rows, manifest.made
    states = ", ".join(f"{count} {status}" for status, count in Counter(row["status"] for row in rows).most_common())
    lines = [f"{len(rows)} records of {manifest.about['sources']} pictures: {states}"]
    composed = [row for row in made if row["target"] is not None]
    if composed:
        used = Counter(row["target"] for row in composed)
        never = manifest.about["sources"] - len(used)
        lines.append(f"targets: {len(used)} pictures, one of them {max(used.values())} times; {never} never")
        area, leak = (np.mean([row[name] for row in composed]) for name in ("mask_area", "leak_area"))
        lines.append(f"masks: {area:.1%} of the picture; {leak:.1%} the target's object beyond the source's")
        if same := sum(row["distance"] == 0 for row in composed):
            lines.append(f"{same} composites equal their source, as far as maps tell: pictures that are there twice")
    for strength in sorted({row["strength"] for row in made}):
        there = [row for row in made if row["strength"] == strength]
        steps = f"{there[0]['steps']} of {there[0]['scheduled_steps']} steps"
        lines.append(f"strength {strength:g}: {steps}, {len(there)} pictures")
    return "\n".join(lines)


def _expansion(options: Namespace, changes: dict[str, Any], has_tokens: bool) -> Expansion:
    names = {field.name for field in fields(Expansion)}
    given = {name: value for name, value in vars(options).items() if name in names}
    if options.plain_names and "metaclass" in given:
        raise ValueError("--metaclass is given with --plain-names, which puts the class's name in its place: drop one")
    if options.plain_names:
        changes = {**changes, "needs_token": False}
    expansion: Expansion = getattr(Expansion, options.preset)(**{**changes, **given})
    if options.plain_names:
        return expansion.with_plain_names()
    if expansion.needs_token and not has_tokens:
        raise ValueError(
            f"the prompt {expansion.prompts[0]!r} calls classes by tokens, and there are none: give --finetuned DIR "
            "or --tokens DIR, or --plain-names to call them by the names of their folders"
        )
    return expansion


def _learned(options: Namespace, source: Source) -> tuple[Adapted, list[str] | None, dict[str, Any]]:
    """Model and what was learned for it, the tokens of the classes, and what that changes in the settings."""
    from .generator import Adapted, read_finetuned
    from .sources import class_difference

    if options.finetuned is None:
        if options.model is None:
            raise ValueError("there is no model: give --model DIR, or --finetuned DIR, which knows its own")
        return Adapted(options.model, options.adapter, options.tokens), None, {}
    if options.adapter is not None or options.tokens is not None:
        raise ValueError("--finetuned comes with its own adapter and tokens: drop --adapter and --tokens")
    adapted = Adapted.finetuned(options.finetuned, options.model)
    about, classes = read_finetuned(options.finetuned), source.classes or []
    if about["classes"] != classes:
        raise ValueError(
            f"{options.finetuned} was fine-tuned on other classes than those of the data "
            f"({class_difference(about['classes'], classes)}): give the same data, or fine-tune on these"
        )
    return adapted, about["tokens"], {"metaclass": about["metaclass"]}


def _device(device: str) -> str:
    """Under torchrun, that of the rank on its machine."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device
