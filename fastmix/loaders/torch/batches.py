"""What a finished job becomes: tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...engine import Job, form_labels


def as_batch(job: Job, dtype: torch.dtype, labels: str | None, num_classes: int | None, pin: bool) -> list[Any]:
    """[images, labels] of a job, whose memory the images share.  labels, num_classes: see `form_labels`."""
    images = torch.from_numpy(job.out).view(dtype)
    if job.recipe.output.channels_last:
        images = images.permute(0, 3, 1, 2)
    assert job.targets is not None
    formed = form_labels(job.recipe, job.targets, labels, num_classes)
    tensors = [images, *map(torch.from_numpy, formed if labels == "pair" else (formed,))]
    if pin and torch.accelerator.is_available():
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensors[0], tuple(tensors[1:]) if labels == "pair" else tensors[1]]
