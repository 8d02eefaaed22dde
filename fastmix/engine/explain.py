"""What was done to one sample, in words and pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..images import header
from ..kernels import U8, Clip, Mode, Op, Program, Where
from ..kernels import Source as From
from ..ops import describe
from ..rng import Ids, Key
from ..types import Params
from .crew import Crew
from .job import Bad, Job
from .recipe import Output, Recipe, level_table
from .samples import Box


@dataclass(frozen=True)
class Explanation:
    """How a sample came to look as it does in an epoch.

    label: its own.  box: left, top, width, height of the crop, pixels of the (turned) picture.  flip: whether mirrored.
    partner: the sample that it shares its label with, or None; weight: the share of its own label.
    steps: for each mixed view, what was done, in order; empty where nothing was.
    pictures: (views, H, W, 3) uint8, as in the batch before it was normalised.
    bad: why another sample, `stand_in`, was taken in place of this one; both None if it was sound.
    """

    id: int
    epoch: int
    path: str | None
    label: object
    box: Box
    flip: bool
    partner: int | None
    weight: float
    steps: tuple[tuple[str, ...], ...]
    pictures: U8
    bad: Bad | None
    stand_in: int | None


def explain(recipe: Recipe, key: Key, samples: Ids, ids: Ids, row: int) -> Explanation:
    """Make a batch once more, and tell about one row of it.  Raises as the batch does."""
    recipe = replace(recipe, output=Output(level_table("uint8", (0, 0, 0), (1, 1, 1)), channels_last=True))
    n = len(samples)
    out = np.empty(recipe.output.shape(n * recipe.views, recipe.crop.size), np.uint8)
    crew = Crew(0)
    crew.submit(Job(recipe, key, samples, ids, out, lambda count: np.empty(count, np.uint8)))
    job = crew.take()
    assert job.targets is not None
    read = job.stand_ins.get(row, int(samples[row]))
    item = recipe.source.read(read)
    if isinstance(item.data, bytes):
        info = header(item.data)
        place = job.cuts.place(row, info.height, info.width)
    else:
        place = job.cuts.place(row, item.data.shape[0], item.data.shape[1])
    drawn = [params for params in job.views if params is not None]
    mate = int(drawn[-1].partner[row]) if drawn else row
    return Explanation(
        id=int(samples[row]),
        epoch=key.epoch,
        path=recipe.source.path(int(samples[row])),
        label=item.label,
        box=place.box,
        flip=place.flip,
        partner=None if mate == row else int(samples[mate]),
        weight=float(job.targets.w[row]),
        steps=tuple(_steps(params, row, samples) for params in drawn),
        pictures=np.ascontiguousarray(out.reshape(recipe.views, n, *recipe.crop.size, 3)[:, row]),
        bad=job.bad.get(row),
        stand_in=job.stand_ins.get(row),
    )


def _steps(params: Params, row: int, samples: Ids) -> tuple[str, ...]:
    """A program in words."""
    program, said = params.program, []
    height, width = (int(program.steps[side].max(initial=0)) for side in ("bottom", "right"))
    for step in program.steps[row]:
        mode = Mode(int(step["mode"]))
        if mode is Mode.END:
            break
        words = [mode.name.lower()]
        if mode not in (Mode.SUM, Mode.TOTAL):
            words.append(_layer(program, row, int(step["layer"]), samples))
        if mode is Mode.SUM:
            words.append(f"weight {step['a']:.3f}")
        elif mode in (Mode.LINEAR, Mode.ARITHMETIC, Mode.GEOMETRIC):
            words.append(f"weights {step['a']:.3f}, {step['b']:.3f}")
        box = tuple(int(step[side]) for side in ("top", "left", "bottom", "right"))
        if box != (0, 0, height, width):
            words.append("in rows {0}-{2}, columns {1}-{3}".format(*box))
        where = Where(int(step["where"]))
        if where in (Where.PIXELS, Where.ELEMENTS):
            words.append(f"at {1 - float(step['rate']):.0%} of the {where.name.lower()}")
        elif where is Where.MASK:
            words.append(f"by mask {step['index']}")
        if step["clip"] != Clip.NONE:
            words.append(Clip(int(step["clip"])).name.lower())
        said.append(" ".join(words))
    if program.finish[row]["code"] != Op.NONE:
        said.append(f"finish {describe(program.finish[row])}")
    return tuple(said)


def _layer(program: Program, row: int, layer: int, samples: Ids) -> str:
    """A layer in words: its source and the ops it is seen through."""
    record = program.layers[row, layer]
    source, index = From(int(record["source"])), int(record["index"])
    name = "the sample"
    if source is From.MATE:
        name = f"sample {samples[index]}"
    elif source is From.POOL:
        name = f"pool picture {index}"
    ops = [describe(op) for op in program.ops[row, layer] if op["code"] != Op.NONE]
    return " > ".join([name, *ops])
