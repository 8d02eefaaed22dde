"""Maps of one rank for all ranks."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..maps import MapBank


def exchange_maps(bank: MapBank, epoch: int, group: dist.ProcessGroup | None = None) -> None:
    """Give all ranks the maps that any of them has put in `epoch`; to be called by all of them at the epoch's end.

    Afterwards the ranks agree: of a sample that several have seen, the highest of these ranks counts.  Sent are the
    entries of the epoch, 135 bytes for 7 x 7 cells.  Without a process group there is nothing to do.

    group: of torch.distributed, None for the default one.

    Raises ValueError on all ranks if their banks differ in length, shape or views.
    """
    if not dist.is_initialized():
        return
    ids, views, entries = bank.written(epoch)
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    about = torch.tensor([bank.length, *bank.shape, bank.views, len(ids)], device=device)
    abouts = torch.stack(_gathered(about, group)).cpu()
    if (abouts[:, :-1] != abouts[0, :-1]).any():
        raise ValueError(f"banks differ, expected equal length, h, w and views on all ranks: {abouts[:, :-1].tolist()}")
    counts = abouts[:, -1].tolist()
    most = max(counts)
    if not most:
        return
    numbers = np.zeros((2, most), np.int64)
    numbers[:, : len(ids)] = ids, views
    content = np.zeros(most, entries.dtype)
    content[: len(ids)] = entries
    raw = torch.from_numpy(content.view(np.uint8).reshape(most, entries.itemsize)).to(device)
    gathered = zip(counts, _gathered(torch.from_numpy(numbers).to(device), group), _gathered(raw, group), strict=True)
    for count, places, content_of in gathered:  # by rank, the own one too, so that the last one wins everywhere
        of = places.cpu().numpy()[:, :count]
        bank.write(of[0], of[1], content_of.cpu().numpy()[:count].copy().view(entries.dtype)[:, 0])


def _gathered(part: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """The same tensor of each rank."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group=group)
    return parts
