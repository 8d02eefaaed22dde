"""Programs in words: what the methods seldom draw; tests/test_show.py follows what they often do."""

from dataclasses import replace

import numpy as np

from fastmix.kernels import Clip, Mode, Op, Program, Source, Where
from fastmix.rng import Key
from fastmix.words import tell_layer, tell_steps, used_layers

SIZE = (6, 8)


def program() -> Program:
    """A row of five steps: a mate in a box, a pool picture by mask, the sum of layers, and one that wraps."""
    made = Program.empty(np.arange(2), Key(0).words, SIZE, layers=3, chain=2, steps=6)
    made.layers["source"][0] = Source.SAMPLE, Source.MATE, Source.POOL
    made.layers["index"][0] = 0, 1, 7
    made.ops["code"][0, 2] = Op.INVERT, Op.MIRROR
    made.steps["mode"][0] = Mode.SET, Mode.LINEAR, Mode.SUM, Mode.TOTAL, Mode.GEOMETRIC, Mode.END
    made.steps["layer"][0] = 1, 2, 1, 1, 0, 0
    made.steps["a"][0], made.steps["b"][0] = 0.25, 0.75
    made.steps[["top", "left", "bottom", "right"]][0, 0] = 1, 2, 4, 7
    made.steps["where"][0, 1], made.steps["index"][0, 1] = Where.MASK, 3
    made.steps["clip"][0, 4] = Clip.WRAP
    made.finish["code"][0] = Op.FLIP
    return replace(made, masks=np.full((4, *SIZE, 1), 255, np.uint8))


def test_steps() -> None:
    assert tell_steps(program(), 0, SIZE, lambda layer: "ABC"[layer]) == [
        "x = B, 5x3 px at (2,1)",
        "x = 0.25 x + 0.75 C outside of mask 3",
        "total += 0.25 x",
        "x = total",
        "x = multiply(x^0.25, A^0.75) modulo 256",
        "x > flip",
    ]
    assert tell_steps(program(), 1, SIZE, str) == []
    shares = replace(program(), masks=np.full((4, *SIZE, 1), 254, np.uint8))
    assert tell_steps(shares, 0, SIZE, "ABC".__getitem__)[1] == "x = 0.25 x + 0.75 C weighed by mask 3"


def test_layers() -> None:
    told = [tell_layer(program(), 0, layer, lambda index: f"mate {index}") for layer in range(3)]
    assert told == ["original", "mate 1", "pool picture 7 > invert > mirror"]
    assert used_layers(program(), 0) == [1, 2] and used_layers(program(), 1) == []
