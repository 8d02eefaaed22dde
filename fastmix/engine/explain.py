"""What was done to one sample, in words and pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..images import Box, header
from ..kernels import U8
from ..ops import Size, describe
from ..rng import Ids, Key
from ..types import Params
from ..words import chain, tell_layer, tell_steps
from .crew import Crew
from .job import Bad, Job
from .recipe import Output, Recipe, level_table
from .samples import Place


@dataclass(frozen=True)
class Explanation:
    """How a sample came to look as it does in an epoch.

    path, label: of the picture that was read: the sample's own, or one that was made of it, or its stand-in's.
    crops: one, or with views=2 two: the box (left, top, width, height, in pixels of that picture) and whether it was
    mirrored.  box, flip: those of the first.  jitter: the ops on the colours of each crop, in order; () without any.
    partner: the sample that it shares its label with, or None; weight: the share of its own label.
    steps: for each mixed view, what was done, in order, as `fastmix.words.tell_steps` says it; empty if nothing was.
    pictures: (views, H, W, 3) uint8, as in the batch before it was normalised.
    bad: why another sample, `stand_in`, was taken in place of this one; both None if it was sound.
    """

    id: int
    epoch: int
    path: str | None
    label: object
    crops: tuple[Place, ...]
    jitter: tuple[tuple[str, ...], ...]
    partner: int | None
    weight: float
    steps: tuple[tuple[str, ...], ...]
    pictures: U8
    bad: Bad | None
    stand_in: int | None

    @property
    def box(self) -> Box:
        """Of the first crop."""
        return self.crops[0].box

    @property
    def flip(self) -> bool:
        """Of the first crop."""
        return self.crops[0].flip


def check_sample(id: int, length: int) -> int:
    """The number of a sample.  Raises IndexError, also for those that count from the end, which no draw is made for."""
    if not (isinstance(id, int | np.integer) and 0 <= id < length):
        raise IndexError(f"id is {id!r}, expected the number of a sample, 0..{length - 1}")
    return int(id)


def explain(recipe: Recipe, key: Key, samples: Ids, ids: Ids, row: int) -> Explanation:
    """Make a batch once more, and tell about one row of it.  Raises as the batch does."""
    recipe = replace(recipe, output=Output(level_table("uint8", (0, 0, 0), (1, 1, 1)), channels_last=True))
    n = len(samples)
    out = np.empty(recipe.output.shape(n * recipe.pictures, recipe.crop.size), np.uint8)
    crew = Crew(0)
    crew.submit(Job(recipe, key, samples, ids, out, lambda count: np.empty(count, np.uint8)))
    job = crew.take()
    assert job.targets is not None
    read = int(job.read[row])
    item = recipe.source.read(read)
    if isinstance(item.data, bytes):
        info = header(item.data)
        height, width = info.height, info.width
    else:
        height, width = item.data.shape[:2]
    drawn = [view.params for view in job.views if view.params is not None]
    mate = int(drawn[-1].partner[row]) if drawn and recipe.views != 2 else row
    return Explanation(
        id=int(samples[row]),
        epoch=key.epoch,
        path=recipe.source.path(read),
        label=item.label,
        crops=tuple(cuts.place(row, height, width) for cuts in job.cuts),
        jitter=tuple(tuple(map(describe, chain(program, row, 0))) for program in job.jitters),
        partner=None if mate == row else int(samples[mate]),
        weight=float(job.targets.w[row]),
        steps=tuple(_steps(params, row, samples, recipe.crop.size) for params in drawn),
        pictures=np.ascontiguousarray(out.reshape(recipe.pictures, n, *recipe.crop.size, 3)[:, row]),
        bad=job.bad.get(row),
        stand_in=job.stand_ins.get(row),
    )


def _steps(params: Params, row: int, samples: Ids, size: Size) -> tuple[str, ...]:
    """A program in words."""
    program = params.program

    def name(layer: int) -> str:
        told = tell_layer(program, row, layer, lambda index: f"sample {samples[index]}")
        return f"({told})" if " > " in told else told

    return tuple(tell_steps(program, row, size, name))
