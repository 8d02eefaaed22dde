"""Two processes that talk by gloo, for the tests of several ranks."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch


def join(rank: int, folder: Path) -> None:
    """Become a rank of two; to be called first in a process of `run_two_ranks`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)


def leave() -> None:
    """To be called last: gloo aborts a rank whose peer is gone before it has read everything."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_two_ranks(target: Callable[[int, Path], None], folder: Path) -> None:
    """Run target(rank, folder) in two new processes, which must end well."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=target, args=(rank, folder)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(200)
    assert [rank.exitcode for rank in ranks] == [0, 0]
