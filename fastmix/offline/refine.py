"""Expand a data set: in this process, in the processes that torchrun started, or by Ray; the same files each time.

What the model makes is the same to the bit on one kind of device with one number of threads (of torch).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..datasets import Source, open_source
from ..manifest import Manifest, read_manifest
from ..pools import default_pool
from ..types import FastmixError, Pool
from .composing import Maps
from .expansion import Expansion
from .folder import Folder
from .records import Classes, prompts_of
from .sources import classes_of, contents_of, digests_of
from .work import GivenMaps, Job, Refiner, has_maps, make_maps, make_part, settings_of, unmade

__all__ = ["expand", "expand_with_ray", "ranks"]


def expand(
    source: Any,
    out: str | Path,
    expansion: Expansion,
    generator: Refiner,
    batch_size: int = 4,
    rank: int = 0,
    world: int = 1,
    quiet: bool = False,
    *,
    tokens: Sequence[str] | None = None,
    maps: Maps | str | Path | None = None,
    pool: Pool | None = None,
) -> Manifest:
    """Make the pictures and the manifest of an expanded set in the folder `out`, or what is missing of them.

    source: as `open_source` takes it, with class names.  batch_size: pictures that the model sees at a time.
    rank, world: from `ranks`; each rank makes blocks of its own.  tokens: one a class, by default <class_0> and so on.
    maps: saliency maps, or a file of them that `MapFile` opens; None: the spectral residual.  pool: of fractals; None:
    the default one.

    Whenever it is stopped, the next call goes on after the last whole block, and makes pictures again that were lost.
    Raises ValueError for settings or data that differ from those that `out` was begun with, for prompts that the model
    does not understand and the like; OSError for a file that cannot be written; and FastmixError for a sample that
    cannot be read: all of them are, before the model runs.
    """
    _check_world(rank, world, batch_size)
    data = open_source(source)
    classes = classes_of(data, tokens)
    model = _asked(lambda: generator, prompts_of(expansion, classes))
    job = _plan(data, classes, out, expansion, model, batch_size, maps, pool)
    job = _looked_at(job, rank, world, quiet)
    with job.folder.held(job.settings) if rank == 0 else nullcontext():
        _wait(world)
        _make(job, generator, rank, world, quiet)
        _wait(world)
    return read_manifest(job.folder.path)


def expand_with_ray(
    source: Any,
    out: str | Path,
    expansion: Expansion,
    make_generator: Callable[[], Refiner],
    batch_size: int = 4,
    workers: int = 1,
    quiet: bool = False,
    *,
    gpus: float = 0,
    tokens: Sequence[str] | None = None,
    maps: Maps | str | Path | None = None,
    pool: Pool | None = None,
) -> Manifest:
    """`expand` by Ray Data: `workers` actors, each with a generator of its own and so many `gpus`.

    make_generator: is called in every actor.  Where Ray runs, and with how much, is up to `ray.init` before this call,
    or to Ray's environment variables.  All nodes must see the data and `out` under the same paths.
    """
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError('expanding by Ray needs ray: pip install "fastmix[ray]"') from missing
    _check_world(0, 1, batch_size)
    if workers < 1:
        raise ValueError(f"workers is {workers}, expected at least 1")
    data = open_source(source)
    classes = classes_of(data, tokens)
    with _plainly(ray), _without_bars(ray):
        _check_gpus(ray, workers, gpus)
        asked = ray.remote(_asked).options(num_gpus=gpus).remote(make_generator, prompts_of(expansion, classes))
        job = _plan(data, classes, out, expansion, ray.get(asked), batch_size, maps, pool)
        job = _looked_at(job, 0, 1, quiet)
        with job.folder.held(job.settings):
            if todo := unmade(job, range(job.blocks)):
                _spread(ray, job, None, [i for i in range(job.map_blocks) if not has_maps(job, i)], workers, 0, quiet)
                _spread(ray, job, make_generator, todo, workers, gpus, quiet)
            job.folder.merge(job.blocks, job.settings)
    return read_manifest(job.folder.path)


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Rank and number of the processes that torchrun started, which can now wait for each other; 0 and 1 without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    import torch.distributed as dist

    begun = dist.is_initialized()
    if not begun:
        # Ranks wait for the slowest one, which may have days of work more.
        dist.init_process_group("gloo", timeout=timedelta(days=365))
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if not begun:
            dist.destroy_process_group()


_EXPECTED = (ValueError, OSError, FastmixError)  # of users, who are told in one line


@dataclass
class _Maker:
    """An actor of Ray: makes the blocks whose places in `blocks` it is given; maps if it has no generator."""

    job: Job
    blocks: Sequence[int]
    make_generator: Callable[[], Refiner] | None

    def __post_init__(self) -> None:
        self.generator = self.make_generator() if self.make_generator else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What went wrong goes back as it is, pickled: Ray would tell its text alone."""
        failure = b""
        try:
            for block in [self.blocks[place] for place in batch["id"].tolist()]:
                if self.generator is None:
                    make_maps(self.job, block)
                else:
                    make_part(self.job, block, self.generator)
        except _EXPECTED as error:
            failure = pickle.dumps(error)
        return {"id": batch["id"], "failure": [failure] * len(batch["id"])}


class _Model(NamedTuple):
    """What must be known of a model before the work begins: see `Refiner`."""

    hashes: dict[str, str | None]
    edits: bool
    dtype: str | None


def _asked(make_generator: Callable[[], Refiner], prompts: list[str]) -> _Model:
    generator = make_generator()
    generator.check_prompts(prompts)
    return _Model(dict(generator.hashes), getattr(generator, "edits", False), getattr(generator, "dtype", None))


def _check_gpus(ray: Any, workers: int, gpus: float) -> None:
    """Ray would wait for GPUs that are not there, without an end."""
    if not gpus:
        return
    if not ray.is_initialized():
        ray.init()
    there = ray.cluster_resources().get("GPU", 0)
    if there < workers * gpus:
        raise ValueError(
            f"{workers} workers of Ray need {workers * gpus:g} GPUs, and its cluster has {there:g}: take fewer workers "
            "(--ray), another device (--device cpu), or start Ray where there are more"
        )


def _spread(
    ray: Any,
    job: Job,
    make: Callable[[], Refiner] | None,
    blocks: Sequence[int],
    workers: int,
    gpus: float,
    quiet: bool,
) -> None:
    if not blocks:
        return
    # The numbers are made first: where every CPU has an actor, none would be left to make them.
    numbers = ray.data.range(len(blocks), override_num_blocks=len(blocks)).materialize()
    made = numbers.map_batches(
        _Maker,
        fn_constructor_args=(job, blocks, make),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(blocks))),
        num_gpus=gpus or None,
    )
    with tqdm(total=len(blocks), desc="refining" if make else "maps", unit="block", disable=quiet) as bar:
        for batch in made.iter_batches(batch_size=1):
            if failure := bytes(batch["failure"][0]):
                raise pickle.loads(failure)
            bar.update()


@contextmanager
def _plainly(ray: Any) -> Iterator[None]:
    """Errors of a task as they were raised there."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause: BaseException | None = error
        while isinstance(cause, ray.exceptions.RayError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if not isinstance(cause, _EXPECTED):
            raise
        raise cause from None


@contextmanager
def _without_bars(ray: Any) -> Iterator[None]:
    """There is one of ours."""
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = before


def _make(job: Job, generator: Refiner, rank: int, world: int, quiet: bool) -> None:
    silent = quiet or rank > 0
    mine = unmade(job, range(rank, job.blocks, world))
    maps = [block for block in range(rank, job.map_blocks, world) if not has_maps(job, block)]
    for block in tqdm(maps, "maps", unit="block", disable=silent or not maps):
        make_maps(job, block)
    _wait(world)
    left = sum(len(job.block(block)) for block in mine)
    with tqdm(total=left, desc="refining", unit="record", disable=silent or not mine) as bar:
        for block in mine:
            make_part(job, block, generator, bar.update)
    _wait(world)
    if rank == 0:
        job.folder.merge(job.blocks, job.settings)


def _plan(
    data: Source,
    classes: Classes,
    out: str | Path,
    expansion: Expansion,
    model: _Model,
    batch_size: int,
    maps: Maps | str | Path | None,
    pool: Pool | None,
) -> Job:
    """The work, as far as it is known before the pictures are looked at."""
    for name, given, used in (("maps", maps, expansion.compose), ("a pool", pool, expansion.fractal)):
        if given is not None and not used:
            raise ValueError(f"{name} is given, and this expansion makes no use of it: drop it, or take another preset")
    if model.edits:  # what is written down of a model that takes no strength is 1
        expansion = replace(expansion, strengths=(1.0,))
    if isinstance(maps, str | Path):
        maps = GivenMaps(maps, data)
    pool = pool or (default_pool() if expansion.fractal else None)
    folder, settings = Folder(Path(out)), settings_of(expansion, classes, model.hashes, model.dtype, maps, pool)
    folder.check(settings)
    return Job(data, folder, expansion, classes, model.hashes, batch_size, maps, pool, settings)


def _looked_at(job: Job, rank: int, world: int, quiet: bool) -> Job:
    """The work, with the contents of the pictures in its settings; each rank looks at a part of them."""
    count = len(job.source)
    parts = _gathered(digests_of(job.source, range(rank, count, world), quiet or rank > 0), world)
    contents = contents_of([parts[number % world][number // world] for number in range(count)])
    return replace(job, settings={**job.settings, "contents": contents})


def _check_world(rank: int, world: int, batch_size: int) -> None:
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}, expected an integer of at least 1")
    if not 0 <= rank < world:
        raise ValueError(f"rank is {rank} of {world}, expected 0 <= rank < world")
    if world > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            raise ValueError(
                f"world is {world}, but its processes cannot wait for each other: start them with torchrun, and take "
                "rank and world from `with ranks() as (rank, world)`"
            )


def _wait(world: int) -> None:
    """Until all ranks are here."""
    _gathered(None, world)


def _gathered(own: Any, world: int) -> list[Any]:
    """What all ranks have, by their numbers."""
    found = [own] * world
    if world > 1:
        import torch.distributed as dist

        try:
            dist.all_gather_object(found, own)
        except RuntimeError as error:
            raise ValueError("another process of this run has ended; what it said tells why") from error
    return found
