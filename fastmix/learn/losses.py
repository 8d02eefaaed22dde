"""Losses for mixed pictures.  Logits are floating tensors; half precision is computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST_SHARE = 1e-7  # no class of the mean prediction counts as less likely than this, so that its logarithm is finite


def jensen_shannon(logits: Tensor | Sequence[Tensor], labels: Tensor, weight: float = 12.0) -> Tensor:
    """Cross-entropy of the clean pictures plus `weight` times the disagreement of three views.

    The disagreement is the mean of KL(p_j || m) over the views' class probabilities p_0, p_1, p_2, where m is their
    mean; each KL is a mean over the samples.  Hendrycks et al., "AugMix" (ICLR 2020), section 3, with the weight of 12
    of the released code.

    Args:
        logits: (3N, C), the views one after the other (clean, mixed, mixed), or three (N, C) tensors.  Run the model
            once on all 3N pictures, so that batch normalisation sees the views together.
        labels: (N,) int64 classes or (N, C) soft labels of the clean pictures.
        weight: Of the disagreement, >= 0.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: The number of views, or of labels, does not fit, or the weight is not a number >= 0.
    """
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight is {weight}, expected a number >= 0: the papers' program has 12")
    views = _three(logits)
    if len(labels) != len(views[0]):
        raise ValueError(f"{len(labels)} labels for {len(views[0])} samples in each of 3 views, expected one a sample")
    logs = torch.stack([_log_softmax(view) for view in views])
    mean = logs.exp().mean(0).clamp(_LEAST_SHARE, 1).log()
    disagreement = (logs.exp() * (logs - mean)).sum(-1).mean()
    return F.cross_entropy(_wide(views[0]), labels) + weight * disagreement


def pair_cross_entropy(logits: Tensor, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Mean over the samples of w CE(a) + (1 - w) CE(b), for a loader with labels="pair".

    Equal to the cross-entropy with the soft label w a + (1 - w) b (Zhang et al., "mixup", ICLR 2018, section 2), but
    the number of classes need not be known where the pictures are mixed.

    Args:
        logits: (N, C).
        a: (N,) int64 classes or (N, C) soft labels.
        b: The partners' labels, as `a`.
        w: (N,) share of `a`, in [0, 1].

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: w is not one number a sample.
    """
    if w.shape != logits.shape[:1]:
        raise ValueError(f"w has shape {tuple(w.shape)}, expected ({len(logits)},): one share a sample")
    own, partner = (F.cross_entropy(_wide(logits), labels, reduction="none") for labels in (a, b))
    return (w * own + (1 - w) * partner).mean()


def _three(logits: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    if isinstance(logits, Tensor):
        if len(logits) % 3:
            raise ValueError(f"logits have {len(logits)} rows, expected 3N: clean, mixed, mixed (loader: views=3)")
        return logits.chunk(3)
    shapes = [tuple(view.shape) for view in logits]
    if len(shapes) != 3 or len(set(shapes)) != 1:
        raise ValueError(f"logits have shapes {shapes}, expected three (N, C) of one shape: clean, mixed, mixed")
    return logits


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(_wide(x), dim=-1)
