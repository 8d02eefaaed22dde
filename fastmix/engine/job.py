"""One batch, made in small tasks that any thread may take.

The phases of a batch follow one another; the tasks of a phase may run in any order and at the same time.  First all of
its draws are made, then every sample is read, cut, mixed and written while its pixels are in the cache.  Only where
samples are mixed with each other, mixing waits for all of them; and only where a method looks at maps, it is drawn when
the crops are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..datasets import Item, Label
from ..kernels import U8, Program, backend_for
from ..kernels import Source as From
from ..maps import F32, Geometry, covered_boxes
from ..mixing import check_params, merge
from ..rng import Ids, Key, Stream, integers
from ..saliency import SpectralResidual
from ..types import Batch, FastmixError, Params, Targets
from .kept import Kept
from .progress import Order, Run, fingerprint
from .recipe import Output, Recipe
from .samples import Cuts, Space, cut, draw_cuts, failure, read

_REPLACEMENTS = 16  # samples that are tried in place of a bad one
_NOTHING = np.uint8(0)
_CROPS = Output(np.zeros((3, 256), np.uint8), channels_last=True)  # as they are, to be sent away
SEVERAL = 4  # most rows of a task that reads files: code and tables stay in the caches from one to the next
_MATES = 16  # rows of a task that mixes them with each other: mates are met again while they are in the cache
_SHARE = 32  # tasks that a batch of files makes at least, if it has so many rows: there may be as many threads


class Task(NamedTuple):
    """Part of a batch: the row it starts with, what it is for, and the call."""

    row: int
    stage: str
    call: Callable[[Space], None]


class Bad(NamedTuple):
    """A sample that gave way to another one."""

    id: int
    path: str | None
    reason: str


class View(NamedTuple):
    """A picture that is made of each sample: which of its crops, and how that is mixed, if it is."""

    crop: int
    params: Params | None = None


class Job:
    """The making of one batch.

    samples: (N,) int64 numbers in the source.  ids: (N,) int64 names of their draws.  wanted: (N,) int64, what is read
    for them: they themselves, or what was made of them.
    out: the memory of the batch, views after each other, of the shape and dtype that the recipe's output says.
    cuts, jitters, views: what was drawn; `jitters` has a program for each crop if the recipe jitters, and `params` are
    those of the mixed views.
    lend: gives memory for pictures, (count of bytes) -> flat uint8.

    When all phases are done, `out` holds the pictures and `targets` the labels; `errors` has what was raised, and `bad`
    the replaced samples, by row.  With a recipe that sends, `out` holds the crops, and `sent` is what became of them.
    """

    def __init__(self, recipe: Recipe, key: Key, samples: Ids, ids: Ids, out: Any, lend: Callable[[int], U8]):
        self.recipe, self.key, self.samples, self.ids, self.out = recipe, key, samples, ids, out
        self.wanted = samples if recipe.synthetic is None else recipe.synthetic.take(key, ids, samples)
        self.labels: list[Any] = [None] * len(samples)
        self.targets: Targets | None = None
        self.sent: Any = None
        self.errors: dict[int, BaseException] = {}
        self.bad: dict[int, Bad] = {}
        self.stand_ins: dict[int, int] = {}
        self.cuts: list[Cuts] = []
        self.jitters: list[Program] = []
        self.views: list[View] = []
        self._lend = lend
        self._items: list[Item] | None = None
        self._in_blocks, self._step = False, 1
        self._crops: U8 | None = None
        self._maps: F32 | None = None
        self._pool = recipe.pool

    def phases(self) -> Iterator[list[Task]]:
        """The tasks of each phase, to be asked for when those before are done without errors."""
        n, chunk = len(self.samples), self.recipe.chunk
        yield [Task(-2, "draw", self._draw), Task(-1, "read", self._fetch)]
        step = self._step = chunk if self._in_blocks else max(1, min(SEVERAL, n // _SHARE))
        yield [Task(low, "mix", partial(self._make, low, min(low + step, n))) for low in range(0, n, step)]
        if self.recipe.reads_maps:
            yield [Task(-1, "draw", self._draw_by_maps)]
        if self._crops is not None and self.recipe.send is None:
            several = max(chunk, _MATES)
            yield [Task(low, "mix", partial(self._mix, low, min(low + several, n))) for low in range(0, n, several)]
        yield [Task(0, "label", self._label)]
        if self.recipe.send is not None:
            yield [Task(-1, "send", self._send)]
        self._crops = None

    @property
    def read(self) -> Ids:
        """(N,) int64 numbers of the samples that were read: `wanted`, but for those that gave way to others."""
        numbers = self.wanted.copy()
        numbers[list(self.stand_ins)] = list(self.stand_ins.values())
        return numbers

    def geometry(self, crop: int) -> Geometry:
        """How a crop was cut, and what covers it, if it is handed out mixed and not as it is."""
        cuts, last = self.cuts[crop], self.views[-1].params if self.views and self.recipe.views == 1 else None
        covered = np.zeros((len(self.samples), 4)) if last is None else covered_boxes(last, self.recipe.crop.size)
        return Geometry(cuts.boxes, cuts.flips, covered)

    def missing(self) -> list[int]:
        """Numbers of the samples that have not been read."""
        return [int(sample) for sample, label in zip(self.samples, self.labels, strict=True) if label is None]

    def error(self, stages: dict[int, str]) -> FastmixError | None:
        """The error of the first row that has one; `stages` says in which stage it happened."""
        if not self.errors:
            return None
        row = min(self.errors)
        error = self.errors[row]
        if isinstance(error, FastmixError):
            return error
        rows = range(row, min(row + self._step, len(self.samples))) if row >= 0 and not self._in_blocks else ()
        unread = [int(self.wanted[each]) for each in rows if self.labels[each] is None]
        if unread:  # not even an Exception, such as SystemExit
            made = failure(error, "read", self.recipe.source, unread[0])
        else:
            made = FastmixError(f"{type(error).__name__}: {error}", stage=stages[row])
        made.__cause__ = error
        return made

    def _draw(self, _space: Space) -> None:
        """Everything that is left to chance, but for what hangs on maps."""
        recipe = self.recipe
        keys = [replace(self.key, view=crop) for crop in range(recipe.crops)]
        self.cuts = [draw_cuts(recipe.crop, key, self.ids) for key in keys]
        if recipe.jitter is not None:
            self.jitters = [recipe.jitter.draw(key, self.ids, recipe.crop.size) for key in keys]
        if not recipe.reads_maps:
            self._show([] if recipe.method is None else draw(recipe, self.key, self.ids))
        shape = (recipe.crops, len(self.samples), *recipe.crop.size, 3)
        if recipe.send is not None:
            self._crops = self.out.reshape(shape)
        elif recipe.reads_maps or any(
            view.params is not None and has_mates(view.params.program) for view in self.views
        ):
            self._crops = self._lend(math.prod(shape))[: math.prod(shape)].reshape(shape)
        if recipe.reads_maps and isinstance(recipe.maps, SpectralResidual):
            self._maps = np.empty((*shape[:2], *recipe.maps.cells(recipe.crop.size)), np.float32)

    def _draw_by_maps(self, _space: Space) -> None:
        about, maps = self.recipe.maps, [] if self._maps is None else [*self._maps]
        if about is not None and not isinstance(about, SpectralResidual):
            crops = range(self.recipe.crops)
            maps = [about.take(self.read, self.geometry(crop), self.key.epoch) for crop in crops]
        self._show(draw(self.recipe, self.key, self.ids, maps))

    def _send(self, _space: Space) -> None:
        assert self.recipe.send is not None
        self.sent = self.recipe.send(self)

    def _show(self, drawn: list[Params]) -> None:
        """Settle which pictures are handed out: the clean ones, then the mixed ones."""
        clean, last = range(self.recipe.pictures - len(drawn)), self.recipe.crops - 1
        self.views = [*map(View, clean), *(View(min(i, last), params) for i, params in enumerate(drawn))]

    def _fetch(self, _space: Space) -> None:
        """What the source hands out for many samples at once."""
        source = self.recipe.source
        self._in_blocks = source.read_block(self.samples[:0]) is not None
        if self._in_blocks:
            return
        try:
            self._items = source.read_many(self.wanted.tolist())
        except Exception:
            if not self.recipe.replace:
                raise
            self._items = None  # ask for them one by one, to learn which of them is bad

    def _make(self, low: int, high: int, space: Space) -> None:
        """Read, cut and jitter rows; mix them, too, if they need no mates."""
        size, counts, alone = self.recipe.crop.size, (self.recipe.crops, high - low), self._crops is None
        crops = space.pictures("crops", size, *counts) if self._crops is None else self._crops[:, low:high]
        raw = space.pictures("raw", size, *counts) if self.jitters else crops
        if self._in_blocks:
            self._cut_block(low, high, raw)
        else:
            for row in range(low, high):
                self._cut_row(row, raw[:, row - low : row - low + 1], space)
        for crop, jitter in enumerate(self.jitters):
            backend_for(raw).mix(raw[crop], self._pool, rows(jitter, low, high), crops[crop], 0, high - low)
        if self._maps is not None:
            for seen, maps in zip(crops, self._maps[:, low:high], strict=True):
                backend_for(seen).spectral_residual(seen, maps, 0, high - low)
        if alone:
            for view, (crop, params) in enumerate(self.views):
                program = None if params is None else rows(params.program, low, high)
                self._write(view, crops[crop], program, low, 0, high - low)

    def _mix(self, low: int, high: int, _space: Space) -> None:
        """Mix rows with their mates."""
        assert self._crops is not None
        for view, (crop, params) in enumerate(self.views):
            self._write(view, self._crops[crop], None if params is None else params.program, low, low, high)

    def _write(self, view: int, crops: U8, program: Program | None, first: int, low: int, high: int) -> None:
        """Write a view of rows `first` on: they are rows [low, high) of `crops` and `program`."""
        backend, output, n = backend_for(crops), self.recipe.output, len(self.samples)
        out = self.out[view * n + first : view * n + first + high - low]
        if program is None:
            backend.to_float(crops[low:high], output.table, out, output.channels_last, 0, high - low)
        else:
            backend.mix_float(crops, self._pool, program, output.table, out, output.channels_last, low, high)

    def _cut_block(self, low: int, high: int, out: U8) -> None:
        block = self.recipe.source.read_block(self.wanted[low:high])
        assert block is not None
        pictures, labels = block
        size = pictures.shape[1:3]
        try:
            for cuts, made in zip(self.cuts, out, strict=True):
                if cuts.windows is not None:
                    cuts.place(low, *size)
                    backend_for(pictures).op(pictures, cuts.windows[low:high], made, 0, high - low)
                else:
                    for i, row in enumerate(range(low, high)):
                        cut(pictures[i], cuts.place(row, *size), 1, cuts, row, made[i : i + 1])
        except ValueError as error:
            raise failure(error, "crop", self.recipe.source, int(self.wanted[low])) from error
        self.labels[low:high] = labels

    def _cut_row(self, row: int, out: U8, space: Space) -> None:
        known = None if self._items is None else self._items[row]
        try:
            self.labels[row] = read(self.recipe.source, int(self.wanted[row]), known, self.cuts, row, out, space)
        except FastmixError as error:
            if not self.recipe.replace or error.stage == "label":
                raise
            self.labels[row] = self._replace(row, error, out, space)

    def _replace(self, row: int, error: FastmixError, out: U8, space: Space) -> Label:
        """Put another sample, drawn by key, in the place of a bad one."""
        source, reason = self.recipe.source, str(error.__cause__)
        u = self.key.uniform(self.ids[row : row + 1], Stream.REPLACE, _REPLACEMENTS)[0]
        own = source if self.recipe.synthetic is None else self.recipe.synthetic.of  # as many as the data set has
        anywhere, mates = integers(u, 0, len(own)), self.samples[integers(u, 0, len(self.samples))]
        for sample in (anywhere if self.recipe.anywhere else mates).tolist():
            try:
                label = read(source, sample, None, self.cuts, row, out, space)
            except FastmixError:
                continue
            assert error.sample_id is not None
            self.bad[row], self.stand_ins[row] = Bad(error.sample_id, error.path, reason), sample
            return label
        reason = f"{reason}; and {_REPLACEMENTS} samples drawn to replace it are bad, too"
        raise FastmixError(reason, sample_id=error.sample_id, path=error.path, stage=error.stage) from error

    def _label(self, _space: Space) -> None:
        targets = Targets.of(self.samples, _as_array(self.labels))
        drawn = self.views[-1].params if self.recipe.views != 2 else None
        self.targets = targets if drawn is None else merge(targets, drawn.partner, drawn.weight)


def draw(recipe: Recipe, key: Key, ids: Ids, maps: Sequence[F32] = ()) -> list[Params]:
    """The params of each mixed view of a batch.  maps: (N, h, w) of each crop, for a method that looks at them."""
    assert recipe.method is not None
    unseen = np.broadcast_to(_NOTHING, (len(ids), *recipe.crop.size, 3))  # a draw reads the shape alone
    batch = Batch(unseen, Targets.of(ids, np.zeros(len(ids), np.int64)))
    seen = [replace(batch, maps=each) for each in maps] or [batch]
    batches = [seen[min(view, len(seen) - 1)] for view in range(recipe.mixed_views)]
    drawn = [recipe.method.draw(replace(key, view=view), each) for view, each in enumerate(batches)]
    for params in drawn:
        check_params(params, unseen.shape, recipe.pool.shape)
    return drawn


def has_mates(program: Program) -> bool:
    """Whether samples are mixed with each other."""
    return bool((program.layers["source"] == From.MATE).any())


def has_partners(recipe: Recipe) -> bool:
    """Whether the recipe's method mixes samples with each other, judged by a trial draw."""
    if recipe.method is None or recipe.reads_maps:
        return recipe.reads_maps
    return any(has_mates(params.program) for params in draw(recipe, Key(0), np.arange(16)))


def jobs(recipe: Recipe, order: Order, run: Run, kept: Kept, ahead: int) -> Iterator[Job]:
    """The jobs that are left of an epoch, `ahead` of which are in the making at a time.

    Raises ValueError if the order is not the one in which `run` was begun.
    """
    key, size = Key(run.seed, run.epoch), recipe.crop.size
    batches = order.batches(key, max(run.batch - 1, 0))
    if run.batch and fingerprint(next(batches, (np.arange(0), None))[0]) != run.last:
        raise ValueError(
            f"batch {run.batch - 1} of epoch {run.epoch} has other samples than when the state was saved: give the "
            "loader the same dataset and sampler, and a generator= in the state that it had when the epoch began"
        )
    pictures, output, name, new = recipe.pictures, recipe.output, "finished", None
    if recipe.send is not None:
        pictures, output, name, new = recipe.crops, _CROPS, "sent", recipe.send.memory
    finished = kept.buffers(name, ahead + 2, output.table.dtype, new)
    raw = kept.buffers("raw", ahead, np.uint8)
    for samples, ids in batches:
        shape = output.shape(pictures * len(samples), size)
        count = math.prod(shape)
        full = math.prod(output.shape(pictures * (order.batch_size or 0), size))
        yield Job(recipe, key, samples, ids, finished.lend(max(count, full))[:count].reshape(shape), raw.lend)


def rows(program: Program, low: int, high: int) -> Program:
    """The programs of rows [low, high), which must have no mates."""
    p, part = program, slice(low, high)
    return Program(p.layers[part], p.ops[part], p.steps[part], p.finish[part], p.ids[part], p.words, p.masks)


def _as_array(labels: Sequence[Label]) -> Any:
    """(N,) int64 or (N, C) float32.  Raises ValueError if the labels are of several kinds."""
    shapes = {getattr(label, "shape", ()) for label in labels}
    if len(shapes) > 1:
        raise ValueError(f"labels of one batch have shapes {sorted(shapes)}, expected the same kind for all samples")
    return np.array(labels, np.float32 if any(shapes) else np.int64)
