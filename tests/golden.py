"""Turns the logs of recorded runs of the published programs into `Program`s; see tests/data/README_methods.md."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fastmix import ops
from fastmix.kernels import U8, Clip, Mode, Program, Records, Source, Where

DATA = Path(__file__).parent / "data"
SIZES = ("32", "224")
_WORDS = np.zeros(3, np.uint32)
_PILLOW = {spec.name: spec for spec in (*ops.IPMIX_ALL, *ops.ALL)}
_FLOAT = {spec.name: spec for spec in ops.LAYERMIX}
_MODES = {"add": Mode.ARITHMETIC, "multiply": Mode.GEOMETRIC, "random_pixels": Mode.SET, "random_elems": Mode.SET}

with np.load(DATA / "golden_methods.npz") as _file:
    GOLDEN: dict[str, Any] = dict(_file)


def runs(method: str, size: str) -> list[dict[str, Any]]:
    """The logs of one method and picture size."""
    return [json.loads(line) for line in GOLDEN[f"{method}_log_{size}"].tobytes().decode().splitlines()]


def pictures(method: str, size: str, log: dict[str, Any]) -> tuple[U8, U8]:
    """(1, H, W, 3) picture and the pool of one that a run started from."""
    image = GOLDEN[f"{method}_image_{size}"][log["image"]][None]
    if "mixing_picture" not in log:
        return image, image[:0]
    return image, GOLDEN[f"{method}_mixing_picture_{size}"][log["mixing_picture"]][None]


def op(entry: dict[str, Any], size: int) -> Records:
    """The OP record of a logged op."""
    parameters = entry["parameter"]
    specs = _FLOAT if {"shear_degrees", "translate_pixels"} & parameters.keys() or entry.get("float") else _PILLOW
    value = next(iter(parameters.values()), 0.0)
    if "shear_degrees" in parameters:
        value = math.tan(math.radians(value))
    return ops.record(specs[entry["op"]], value, (size, size))


class Writer:
    """Writes the program of one sample, layer by layer and step by step."""

    def __init__(self, size: int) -> None:
        """An empty program for a picture of size x size."""
        empty = Program.empty(np.zeros(1, np.int64), _WORDS, (size, size), layers=24, chain=4, steps=32)
        self.size, self.program = size, empty
        self.layers = self.steps = 0
        self.masks: list[U8] = []

    def layer(self, *chain: Records, pool: bool = False) -> int:
        """Add a layer: the sample, or pool picture 0, through a chain of ops."""
        number, self.layers = self.layers, self.layers + 1
        self.program.layers["source"][0, number] = Source.POOL if pool else Source.SAMPLE
        for link, record in enumerate(chain):
            self.program.ops[0, number, link] = record
        return number

    def step(self, mode: Mode, layer: int = 0, **fields: Any) -> None:
        """Add a step."""
        step = self.program.steps[0, self.steps : self.steps + 1]
        self.steps += 1
        step["mode"], step["layer"] = mode, layer
        for name, value in fields.items():
            step[name] = value

    def blend(self, entry: dict[str, Any], layer: int, clip: Clip, bits: Any = None, **box: int) -> None:
        """Add a logged blend; masks are read from `bits`."""
        if "ratio" not in entry:
            self.step(_MODES[entry["blend"]], layer, a=entry["a"], b=entry["b"], clip=clip, **box)
            return
        shape = entry["mask_shape"]
        start, count = entry["mask_byte_offset"], math.prod(shape)
        keep = np.unpackbits(bits[start : start + -(-count // 8)], count=count).reshape(*shape[:2], -1)
        mask = np.zeros((self.size, self.size, 3), np.uint8)
        top, left = box.get("top", 0), box.get("left", 0)
        mask[top : top + shape[0], left : left + shape[1]] = 255 * keep
        self.masks.append(mask)
        self.step(_MODES[entry["blend"]], layer, clip=clip, where=Where.MASK, index=len(self.masks) - 1, **box)

    def done(self) -> Program:
        """The program with its masks."""
        p = self.program
        masks = np.array(self.masks) if self.masks else p.masks
        return Program(p.layers, p.ops, p.steps, p.finish, p.ids, p.words, masks)


def pixmix(log: dict[str, Any]) -> Program:
    """The program of a PixMix run."""
    w = Writer(log["size"])
    if "op" in log["start"]:
        w.step(Mode.SET, w.layer(op(log["start"], w.size)))
    for entry in log["rounds"]:
        layer = w.layer(op(entry, w.size)) if "op" in entry else w.layer(pool=True)
        w.blend(entry, layer, Clip.UNIT)
    return w.done()


def augmix(log: dict[str, Any]) -> Program:
    """The program of an AugMix run."""
    w = Writer(log["size"])
    m = log["m"]
    for number, (share, chain) in enumerate(zip(log["chain_weights"], log["chains"], strict=True)):
        layer = w.layer(*(op(entry, w.size) for entry in chain["steps"]))
        w.step(Mode.LINEAR, layer, a=1 if number else 1 - m, b=m * share)
    return w.done()


def ipmix(log: dict[str, Any], clip: Clip = Clip.WRAP) -> Program:
    """The program of an IPMix run; `clip` WRAP as published, CUT for the saturating variant."""
    w = Writer(log["size"])
    original = w.layer()
    w.step(Mode.SUM, a=1 - log["m"])
    for share, branch in zip(log["branch_weights"], log["branches"], strict=True):
        if branch["kind"] == "image":
            w.step(Mode.SET, w.layer(*(op(entry, w.size) for entry in branch["steps"])))
        else:
            w.step(Mode.SET, original)
            for entry in branch["steps"]:
                layer = w.layer(op(entry, w.size)) if "op" in entry else w.layer(pool=True)
                box = {side: entry[side] for side in ("left", "top", "right", "bottom")}
                w.blend(entry, layer, clip, GOLDEN["ipmix_mask_bits"], **box)
        w.step(Mode.SUM, a=log["m"] * share)
    w.step(Mode.TOTAL)
    return w.done()


def layermix(log: dict[str, Any]) -> Program:
    """The program of a LayerMix run."""
    w = Writer(log["size"])
    uses = [op({**entry, "float": True}, w.size) for entry in log["steps"] if entry["step"] == "op"]
    blends = [entry for entry in log["steps"] if entry["step"] != "op"]
    w.step(Mode.SET, w.layer(uses[0]))
    if log["depth"] >= 2:
        w.blend(blends[0], w.layer(uses[1]), Clip.UNIT, GOLDEN["layermix_mask_bits"])
    if log["depth"] == 3:
        w.blend(blends[1], w.layer(pool=True), Clip.UNIT, GOLDEN["layermix_mask_bits"])
        w.program.finish[0] = uses[2]
    return w.done()


def difference(backend: Any, method: str, size: str, log: dict[str, Any], program: Program, wanted: Any) -> Any:
    """Levels between the backend's picture and the recorded one (in [0, 1]), where that was kept."""
    image, pool = pictures(method, size, log)
    out = np.zeros_like(image)
    backend.mix(image, pool, program, out, 0, 1)
    every = 7 if size == "224" else 1
    return np.abs(out[0, ::every, ::every] - 255 * wanted.astype(np.float64))
