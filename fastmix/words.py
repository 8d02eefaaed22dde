"""Programs in words: what was drawn for a sample, layer by layer and step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .kernels import Clip, Mode, Op, Program, Records, Source, Where
from .ops import Size, describe

__all__ = ["active_steps", "chain", "tell_layer", "tell_steps", "used_layers"]

_NO_LAYER = (Mode.SUM, Mode.TOTAL)
_PLACES = {Where.PIXELS: "pixels", Where.ELEMENTS: "values"}


def active_steps(program: Program, row: int) -> Records:
    """(S,) STEP records: those before the end of the row's program."""
    modes = program.steps["mode"][row]
    return program.steps[row, : np.append(modes, Mode.END).tolist().index(Mode.END)]


def chain(program: Program, row: int, layer: int) -> Records:
    """(D,) OP records: those that a layer is seen through, in order."""
    codes = program.ops["code"][row, layer]
    return program.ops[row, layer, : np.append(codes, Op.NONE).tolist().index(Op.NONE)]


def used_layers(program: Program, row: int) -> list[int]:
    """The layers of a row in the order of their first use, without those that are the sample as it is."""
    steps = active_steps(program, row)
    used = dict.fromkeys(int(step["layer"]) for step in steps if step["mode"] not in _NO_LAYER)
    sources = program.layers["source"][row]
    return [layer for layer in used if sources[layer] != Source.SAMPLE or len(chain(program, row, layer))]


def tell_layer(program: Program, row: int, layer: int, mate: Callable[[int], str]) -> str:
    """A layer as its source and its ops: "original > rotate 12 deg"; `mate` names a row of the batch."""
    source, index = (int(program.layers[field][row, layer]) for field in ("source", "index"))
    name = "original"
    if source == Source.MATE:
        name = mate(index)
    elif source == Source.POOL:
        name = f"pool picture {index}"
    return " > ".join([name, *map(describe, chain(program, row, layer))])


def tell_steps(program: Program, row: int, size: Size, name: Callable[[int], str]) -> list[str]:
    """The steps of a row, such as "x = 0.7 x + 0.3 A, 8x6 px at (2,0)"; x is the picture so far, at first the sample.

    size: (H, W) of the pictures.  name: what a layer is called.  Of what becomes of values outside 0..255, only
    "modulo 256" is told; else they are clipped, if not by their step, then at the end.
    """
    steps = active_steps(program, row)
    lines = [_formula(step, name(int(step["layer"]))) + _where(step, size, program) for step in steps]
    finish = program.finish[row]
    return [*lines, f"x > {describe(finish)}"] if finish["code"] else lines


def _formula(step: Any, y: str) -> str:
    a, b = _short(step["a"]), _short(step["b"])
    made = {
        Mode.SET: f"x = {y}",
        Mode.LINEAR: f"x = {a} x + {b} {y}",
        Mode.ARITHMETIC: f"x = add({a} x, {b} {y})",
        Mode.GEOMETRIC: f"x = multiply(x^{a}, {y}^{b})",
        Mode.SUM: f"total += {a} x",
        Mode.TOTAL: "x = total",
    }[Mode(step["mode"])]
    return f"{made} modulo 256" if step["clip"] == Clip.WRAP else made


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _where(step: Any, size: Size, program: Program) -> str:
    """What part of the picture a step changes; nothing to say if it is all of it."""
    if step["mode"] in _NO_LAYER:
        return ""
    high, wide = int(step["bottom"] - step["top"]), int(step["right"] - step["left"])
    share = f" in {1 - step['rate']:.0%} of the {_PLACES[step['where']]}" if step["where"] in _PLACES else ""
    mask = ""
    if step["where"] == Where.MASK:
        whole = np.isin(program.masks[step["index"]], (0, 255)).all()  # all or nothing, not shares
        mask = f" {'outside of' if whole else 'weighed by'} mask {step['index']}"
    box = "" if (high, wide) == size else f", {wide}x{high} px at ({step['left']},{step['top']})"
    return share + mask + box
