"""How much memory a loader takes."""

from __future__ import annotations

import numpy as np

from ..kernels import DECODE_SPACE
from ..rng import Key
from .job import SEVERAL, draw, has_partners
from .recipe import Recipe
from .samples import KEPT


def memory_bound(recipe: Recipe, batch_size: int, threads: int, ahead: int) -> int:
    """Most bytes in use at a time: `ahead` + 2 batches, the threads' work spaces and the pool.

    With a method that mixes samples with each other, also the crops of `ahead` batches.  What is sent away counts here
    as crops alone.
    """
    picture = int(np.prod(recipe.crop.size)) * 3
    values = (ahead + 2) * batch_size * recipe.pictures * picture * recipe.output.table.itemsize
    mates = ahead * batch_size * recipe.crops * picture if has_partners(recipe) else 0
    if recipe.send is not None:
        values, mates = (ahead + 2) * batch_size * recipe.crops * picture, 0
    mates += mates if recipe.reads_maps else 0  # maps, levels and masks are less than two thirds of the crops
    layers = 0 if recipe.method is None else draw(recipe, Key(0), np.arange(1))[0].program.layers.shape[1]
    lines = 12 * 4 * 3 * max(recipe.crop.size) * 16  # float32 lines and the padding of warps, generously
    held = recipe.crops * (1 if recipe.jitter is None else 2)
    space = KEPT + DECODE_SPACE + held * max(recipe.chunk, SEVERAL) * picture + (layers + 3) * picture + lines
    return values + mates + threads * space + recipe.pool.nbytes
