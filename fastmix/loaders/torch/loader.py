"""A `torch.utils.data.DataLoader` that crops and mixes in threads."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...datasets import open_source
from ...engine import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LABELS,
    ON_ERROR,
    Bad,
    Crop,
    Delivered,
    Explanation,
    Extras,
    Job,
    Kept,
    Order,
    Output,
    Progress,
    Recipe,
    Run,
    check_inputs,
    check_method,
    check_sample,
    check_size,
    explain,
    has_partners,
    jobs,
    level_table,
    made,
    memory_bound,
)
from ...engine.jitter import ColorJitter
from ...mapfile import MapFile
from ...maps import MapBank
from ...rng import Key
from ...saliency import SpectralResidual
from ...synthetic import Synthetic
from ...types import Method, Pool

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError('fastmix.DataLoader needs torch: pip install "fastmix[torch]"') from missing
from torch.utils.data import BatchSampler, Sampler, SequentialSampler, default_collate

from .batches import as_batch
from .device import check_device, sender
from .samplers import KeyedSampler, other_epoch, own_sampler, samplers_of, tell_epoch

_FORMATS = (torch.contiguous_format, torch.channels_last)
_LISTED = 20  # bad samples named in the warning


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader, its arguments and checks, with reading, cropping and mixing done in threads.

    A batch is [images, labels].  images: (N, 3, H, W) of dtype `output`, normalised unless that is uint8.  labels: (N,)
    int64 or (N, C) float32 as the dataset has them, or as `labels` says.  The batches depend on the seed, the epoch and
    the order alone: not on `num_workers` or `prefetch_factor`.

    dataset: a folder with one subfolder a class, a pair of arrays, or a map-style dataset of (picture, label), see
    `fastmix.datasets`; with `num_workers` > 0 it is asked for samples by several threads.  It must have a `batch_size`.
    num_workers: threads; 0 works in the calling thread.  prefetch_factor: batches made ahead, in all (default 2).
    worker_init_fn: called as worker_init_fn(i) in thread i.  persistent_workers, in_order: accepted, without effect.
    pin_memory: batches are copied to page-locked memory, if there is an accelerator.
    generator: gives the order that torch's DataLoader would give; else the order is drawn by key.

    mix: a method, such as `LayerMix.imagenet()`, or None; a change of it, or of its `enabled`, counts from the next
    epoch on.
    crop: "random_resized"; "pad4": a window in the picture padded by 4 px; "center": resize the short side to 8/7 of
    the output's, cut the centre; or None.  "pad4" and None expect pictures of `size`.
    size: pixels, an integer or (H, W).  scale, ratio: ranges of area share and width / height of "random_resized".
    hflip: probability of mirroring; None: 0.5 for "random_resized" and "pad4", else 0.
    seed: 0 <= seed < 2^64; None: `torch.initial_seed()` when an epoch starts.  No global generator is moved.
    mean, std: of each channel in [0, 1].  output: "float32", "float16", "bfloat16" or "uint8" (as it is, 0..255).
    labels: None: integers while the method keeps labels, soft ones when it mixes them; "soft": (N, C) float32;
    "pair": (a, b, w), where label a counts w and b counts 1 - w.
    num_classes: for soft labels; None: the dataset's `classes`, else the method's `num_classes`.
    on_error: "raise" a FastmixError, or "replace" a bad sample by another one, drawn by key (from the dataset, or from
    its batch if a sampler was given); `bad` then lists (id, path, reason), and a warning at the epoch's end does.
    pool: pictures to mix in, a Pool or its path; None: the method's, else `default_pool()`.  device: None, "cpu", or a
    CUDA device: crops are sent there and mixed while the model works.  jitter: a `ColorJitter` of each crop, or None.
    views: 3 stacks (clean, mixed, mixed) as (3N, 3, H, W), for labels of N; 2 stacks two crops, drawn independently, as
    (2N, 3, H, W), and with any method (view 1, view 2, mixed 1, mixed 2), each mixed within itself; labels stay plain.
    maps: for methods that want some: `SpectralResidual()`, a `MapFile`, a `MapBank` that `put_maps` fills; or None.
    synthetic: what `fastmix refine` made of the dataset, a path or `Synthetic`.  replace_prob: of samples by it.

    Raises ValueError, TypeError or OSError for arguments that do not fit; while iterating, FastmixError in the place of
    the batch that could not be made, and, with threads, RuntimeError after `timeout` seconds without one.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        mix: Method | None = None,
        crop: str | None = "random_resized",
        size: int | tuple[int, int] = 224,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float | None = None,
        seed: int | None = None,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        output: str = "float32",
        memory_format: torch.memory_format = torch.contiguous_format,
        labels: str | None = None,
        on_error: str = "raise",
        pool: Pool | str | Path | None = None,
        device: Any = None,
        views: int = 1,
        num_classes: int | None = None,
        jitter: ColorJitter | None = None,
        maps: MapBank | MapFile | SpectralResidual | None = None,
        synthetic: Synthetic | str | Path | None = None,
        replace_prob: float = 0.1,
    ):
        self._source = open_source(dataset)
        if isinstance(dataset, str | Path | tuple):
            dataset = self._source  # samplers, and frameworks that make new ones, want its length
        self.mix, self.crop, self.size, self.scale, self.ratio, self.hflip = mix, crop, size, scale, ratio, hflip
        self.seed, self.mean, self.std, self.output, self.memory_format = seed, mean, std, output, memory_format
        self.labels, self.on_error, self.pool, self.device = labels, on_error, pool, device
        self.views, self.num_classes, self.jitter, self.maps = views, num_classes, jitter, maps
        self.synthetic, self.replace_prob = synthetic, replace_prob
        self._extras = Extras.of(self._source, maps, synthetic, replace_prob, num_classes)
        self._check(collate_fn, multiprocessing_context)
        if sampler is None and batch_sampler is None:
            sampler = own_sampler(dataset, bool(shuffle), seed, generator)
            shuffle = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self.batch_sampler is None:
            raise ValueError("batch_size is None, expected an integer >= 1: fastmix makes whole batches")
        if prefetch_factor == 0:
            raise ValueError("prefetch_factor is 0, expected an integer >= 1 or, for 2, None")
        self._progress, self._kept, self._told = Progress(), Kept(), 0  # told: the epoch that samplers know of
        self._bad: list[Bad] = []
        self._delivered: Delivered | None = None

    def _check(self, collate_fn: Any, multiprocessing_context: Any) -> None:
        """Raise for arguments that torch would not complain about."""
        self._made_by(None)
        Key(0 if self.seed is None else self.seed)
        check_method(self.mix, self.views, self.maps)
        check_inputs(self._source, self.mix, self.pool, self._crop().size, self.num_classes)
        for name, choices in (("labels", LABELS), ("on_error", ON_ERROR), ("memory_format", _FORMATS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {choices}")
        check_device(self.device)
        if collate_fn not in (None, default_collate):
            raise ValueError(f"collate_fn is {collate_fn!r}, expected None: fastmix puts the batches together itself")
        if multiprocessing_context is not None:
            raise ValueError(f"multiprocessing_context is {multiprocessing_context!r}, expected None: it uses threads")

    def check_worker_number_rationality(self) -> None:
        """Warn of more threads than cores; torch, which calls this, would speak of processes."""
        cores = len(os.sched_getaffinity(0))
        if self.num_workers > cores:
            told = f"num_workers is {self.num_workers}, more threads than this process has cores ({cores})"
            warnings.warn(f"{told}: the others only help to wait for slow files", stacklevel=4)

    def _crop(self) -> Crop:
        return Crop(self.crop, check_size(self.size), self.scale, self.ratio, self.hflip)

    def _recipe(self, mix: Method | None) -> Recipe:
        """The recipe of an epoch.  mix: the method as it was when the epoch was asked for."""
        method = mix if mix is not None and (mix.enabled or self.views > 1) else None
        if method is not None and hasattr(method, "pool"):
            given = method.pool if self.pool is None else self.pool
            method = dataclasses.replace(cast(Any, method), pool=self._kept.pool(given, self._crop().size))
        return self._made_by(method, self._order().foreign is None)

    def _made_by(self, method: Method | None, anywhere: bool = True) -> Recipe:
        output = Output(level_table(self.output, self.mean, self.std), self.memory_format is torch.channels_last)
        extras = self._extras = self._extras.now(self.maps, self.synthetic, self.replace_prob, self.num_classes)
        options = self.views, self.on_error == "replace", anywhere, self.jitter, extras.maps, extras.synthetic
        return Recipe(extras.source, self._crop(), output, method, *options)

    def _order(self) -> Order:
        length, batches = len(self._source), cast(Any, self.batch_sampler)
        if type(batches) is BatchSampler:
            sampler = cast(Any, batches.sampler)
            if type(sampler) in (KeyedSampler, SequentialSampler) and len(sampler) == length:
                return Order(length, batches.batch_size, batches.drop_last, type(sampler) is KeyedSampler)
        return Order(length, self.batch_size, foreign=batches)

    @property
    def _ahead(self) -> int:
        """How many batches are in the making at a time."""
        return max(1, self.prefetch_factor or 1) if self.num_workers else 1

    def __iter__(self) -> Iterator[list[Any]]:  # type: ignore[override]
        """Start the next epoch; nothing happens before its first batch is asked for."""
        check_method(self.mix, self.views, self.maps)
        return self._batches(copy.copy(self.mix))

    def _batches(self, mix: Method | None) -> Iterator[list[Any]]:
        self._settle_epoch()
        recipe = dataclasses.replace(self._recipe(mix), send=sender(self.device, self.output, self._kept))
        run = self._progress.begin(self._key_seed())
        if self.generator is not None:  # as torch does, so that the order is the same
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        bad = self._bad = []
        todo = jobs(recipe, self._order(), run, self._kept, self._ahead)
        done = made(todo, self.num_workers, self._ahead, self.worker_init_fn, self.timeout)
        yield from map(functools.partial(self._deliver, run, bad), done)
        self._progress.end(run)
        if bad:
            some = "".join(f"\n  {each.id} ({each.path}): {each.reason}" for each in bad[:_LISTED])
            warnings.warn(f"bad samples replaced in epoch {run.epoch}: {len(bad)}{some}", stacklevel=2)

    def _deliver(self, run: Run, bad: list[Bad], job: Job) -> list[Any]:
        batch = as_batch(job, self.output, self.labels, self.num_classes, self.pin_memory)
        run.handed_out(job.samples)
        self._delivered = Delivered.of(job)
        bad += [job.bad[row] for row in sorted(job.bad)]
        return batch

    def _key_seed(self) -> int:
        chosen = self._progress.seed if self.seed is None else self.seed
        return int(torch.initial_seed() if chosen is None else chosen)

    @property
    def bad(self) -> list[Bad]:
        """The samples of the present or last epoch that were replaced, in order: (id, path, reason)."""
        return list(self._bad)

    @property
    def delivered(self) -> Delivered:
        """Epoch, ids and weights of the batch handed out last.  Raises RuntimeError before the first one."""
        if self._delivered is None:
            raise RuntimeError("no batch has been handed out: iterate over the loader first")
        return self._delivered

    def put_maps(self, maps: Any) -> None:
        """Keep, for later epochs, what the model looks at in the batch handed out last.

        maps: (N, h, w), a tensor or array; with views=2 (2N, h, w), of the clean views.  Raises ValueError otherwise.
        """
        if self._bank is None:
            raise ValueError("the loader has no bank for maps: make it with maps=fastmix.MapBank(len(dataset))")
        self.delivered.put(self._bank, maps)

    @property
    def _bank(self) -> MapBank | None:
        return self.maps if isinstance(self.maps, MapBank) else None

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` (0 <= epoch < 2^32) the next one, here and wherever the sampler or dataset has a `set_epoch`."""
        self._progress.set_epoch(epoch)
        self._tell(epoch)

    def _tell(self, epoch: int) -> None:
        tell_epoch([*samplers_of(self), self.dataset], epoch)
        self._told = epoch

    def _settle_epoch(self) -> None:
        """Follow a sampler that was told of an epoch behind the loader's back, and tell the others."""
        if (epoch := other_epoch(samplers_of(self), self._told)) is not None:
            self._progress.set_epoch(epoch)
        self._tell(self._progress.epoch)

    def _facts(self) -> dict[str, int]:
        return {"length": len(self._source), "batches": len(self), "batch_size": self.batch_size or 0}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: a few integers, and where the maps are.  Batches count when they are handed out."""
        state = self._progress.state(self._key_seed(), self._facts())
        return state if self._bank is None else {**state, "maps": self._bank.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, with any number of threads, when the next epoch is started.

        Raises ValueError if the state is none, or of another stream, seed, dataset, batch size or bank of maps.
        """
        about, bank = None, self._bank
        if bank is not None and isinstance(state, dict):
            about, state = state.get("maps"), {name: value for name, value in state.items() if name != "maps"}
        loaded = Progress().load(state, self.seed, self._facts())
        if bank is not None:
            bank.check_state(about, state["epoch"])
        self._progress = loaded

    def memory_bound(self) -> int:
        """Most bytes in use at a time, besides the dataset and the batches that the caller keeps longer than one step.

        (prefetch_factor + 2) batches; their pixels in uint8 for prefetch_factor batches if samples are mixed with each
        other; for each thread 32 MiB for decoding, and the pictures of the kernels; and the pool.  Only pictures that
        take more than 16 MiB come on top, while they are decoded.
        """
        return memory_bound(self._recipe(self.mix), self.batch_size or 1, max(1, self.num_workers), self._ahead)

    def explain(self, id: int, epoch: int) -> Explanation:
        """Make sample `id` of `epoch` once more, and tell what is done to it: crop, partner, ops and pictures.

        It is what the loader would make with its present settings and maps; of a sample drawn twice, the first time.
        Raises IndexError for a sample that does not exist, and ValueError where samples are mixed with each other in an
        order that only a sampler knows.
        """
        check_method(self.mix, self.views, self.maps)
        key, recipe, sample = Key(self._key_seed(), epoch), self._recipe(self.mix), check_sample(id, len(self._source))
        samples = self._order().batch_of(sample, key) if has_partners(recipe) else np.array([sample])
        return explain(recipe, key, samples, samples, samples.tolist().index(sample))
