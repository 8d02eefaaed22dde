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
from typing import Any

import numpy as np
from tqdm import tqdm

from ..datasets import open_source
from ..manifest import Manifest, read_manifest
from ..pools import default_pool
from ..types import FastmixError, Pool
from .composing import Maps
from .expansion import Expansion
from .folder import Folder
from .records import prompts_of
from .work import GivenMaps, Job, Refiner, classes_of, make_maps, make_part, settings_of

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

    Whenever it is stopped, the next call goes on after the last whole block.  Raises ValueError for settings or data
    that differ from those that `out` was begun with, for prompts that the model does not understand and the like;
    OSError for a file that cannot be written, FastmixError for a sample that cannot be read.
    """
    _check_world(rank, world, batch_size)
    settled = _settled(expansion, getattr(generator, "edits", False))
    job = _plan(source, out, settled, generator.hashes, batch_size, tokens, maps, pool)
    generator.check_prompts(prompts_of(settled, job.classes))
    with job.folder.held(job.settings) if rank == 0 else nullcontext():
        _wait(world)
        if not job.folder.manifest.is_file():
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
    classes = classes_of(open_source(source), tokens)
    with _plainly(ray), _without_bars(ray):
        asked = ray.remote(_asked).options(num_gpus=gpus).remote(make_generator, prompts_of(expansion, classes))
        hashes, edits = ray.get(asked)
        job = _plan(source, out, _settled(expansion, edits), hashes, batch_size, tokens, maps, pool)
        with job.folder.held(job.settings):
            if not job.folder.manifest.is_file():
                _spread(ray, job, None, job.map_blocks, workers, 0, quiet)
                _spread(ray, job, make_generator, job.blocks, workers, gpus, quiet)
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
    """An actor of Ray: makes the blocks of the numbers that it is given; maps if it has no generator."""

    job: Job
    make_generator: Callable[[], Refiner] | None

    def __post_init__(self) -> None:
        self.generator = self.make_generator() if self.make_generator else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What went wrong goes back as it is, pickled: Ray would tell its text alone."""
        failure = b""
        try:
            for block in batch["id"].tolist():
                if self.generator is None:
                    make_maps(self.job, block)
                else:
                    make_part(self.job, block, self.generator)
        except _EXPECTED as error:
            failure = pickle.dumps(error)
        return {"id": batch["id"], "failure": [failure] * len(batch["id"])}


def _asked(make_generator: Callable[[], Refiner], prompts: list[str]) -> tuple[dict[str, str | None], bool]:
    """What must be known of the model before the work begins."""
    generator = make_generator()
    generator.check_prompts(prompts)
    return dict(generator.hashes), getattr(generator, "edits", False)


def _spread(
    ray: Any, job: Job, make: Callable[[], Refiner] | None, blocks: int, workers: int, gpus: float, quiet: bool
) -> None:
    if not blocks:
        return
    # The numbers are made first: where every CPU has an actor, none would be left to make them.
    numbers = ray.data.range(blocks, override_num_blocks=blocks).materialize()
    made = numbers.map_batches(
        _Maker,
        fn_constructor_args=(job, make),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, blocks)),
        num_gpus=gpus or None,
    )
    with tqdm(total=blocks, desc="refining" if make else "maps", unit="block", disable=quiet) as bar:
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
    for block in tqdm(range(rank, job.map_blocks, world), "maps", unit="block", disable=silent or not job.map_blocks):
        make_maps(job, block)
    _wait(world)
    mine = range(rank, job.blocks, world)
    with tqdm(total=sum(len(job.block(i)) for i in mine), desc="refining", unit="record", disable=silent) as bar:
        for block in mine:
            make_part(job, block, generator, bar.update)
    _wait(world)
    if rank == 0:
        job.folder.merge(job.blocks, job.settings)


def _plan(
    source: Any,
    out: str | Path,
    expansion: Expansion,
    hashes: Any,
    batch_size: int,
    tokens: Sequence[str] | None,
    maps: Maps | str | Path | None,
    pool: Pool | None,
) -> Job:
    data = open_source(source)
    classes = classes_of(data, tokens)
    for name, given, used in (("maps", maps, expansion.compose), ("a pool", pool, expansion.fractal)):
        if given is not None and not used:
            raise ValueError(f"{name} is given, and this expansion makes no use of it: drop it, or take another preset")
    if isinstance(maps, str | Path):
        maps = GivenMaps(maps, data)
    pool = pool or (default_pool() if expansion.fractal else None)
    settings = settings_of(expansion, classes, hashes, maps, pool)
    return Job(data, Folder(Path(out)), expansion, classes, dict(hashes), batch_size, maps, pool, settings)


def _settled(expansion: Expansion, edits: bool) -> Expansion:
    """What is written down of a model that takes no strength is 1."""
    return replace(expansion, strengths=(1.0,)) if edits else expansion


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
    if world > 1:
        import torch.distributed as dist

        try:
            dist.barrier()
        except RuntimeError as error:
            raise ValueError("another process of this run has ended; what it said tells why") from error
