"""What a finished job becomes: tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...engine import Job, form_labels


def as_batch(job: Job, output: str, labels: str | None, num_classes: int | None, pin: bool) -> list[Any]:
    """[images, labels] of a job, on the device that it was sent to; else the images share its memory.

    output: the dtype's name.  labels, num_classes: see `form_labels`.
    """
    assert job.targets is not None
    formed = form_labels(job.recipe, job.targets, labels, num_classes)
    named = [*map(torch.from_numpy, formed if labels == "pair" else (formed,))]
    if job.recipe.send is not None:
        tensors = job.recipe.send.hand_over(job.sent, named)
    else:
        images = torch.from_numpy(job.out).view(getattr(torch, output))
        tensors = [images.permute(0, 3, 1, 2) if job.recipe.output.channels_last else images, *named]
        if pin and torch.accelerator.is_available():
            tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensors[0], tuple(tensors[1:]) if labels == "pair" else tensors[1]]
