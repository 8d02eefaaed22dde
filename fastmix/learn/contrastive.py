"""Contrastive losses of two views: SupCon, NT-Xent, NT-Xent with mixed views, and their weighted sum.

Features come as z (2B, D): rows 0..B-1 are the first views of B samples, rows B..2B-1 their second views in the same
order.  Every function scales the rows to length 1 by itself; rows that have it already do not change, and a row of
zeros has similarity 0 to all.  Similarities and logarithms are computed in float32 (float64 for float64 features), also
under autocast.  Samples are compared within z only: with several ranks, gather z first if they shall meet.  Each call
looks whether z is finite, which waits for a GPU; under `torch.compile` it does not look.

In the formulas s_ia = z_i . z_a / temperature, D_i = log sum_{a != i} exp(s_ia), and j(i) is the row of the other view.
GradMix is Xu, Kao and Keuper, "GradMix" (arXiv 2505.12803, 2025).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Weight = Tensor | float
Form = Literal["repo", "symmetric"]


def nt_xent(
    z: Tensor, temperature: float = 0.05, *, base_temperature: float | None = None, weight: Weight = 1.0
) -> Tensor:
    """NT-Xent, the loss of SimCLR: mean over the rows of D_i - s_{i,j(i)}.

    Chen et al., "A simple framework for contrastive learning of visual representations" (ICML 2020), equation 1.

    Args:
        z: (2B, D) floating, B >= 1; with B = 1 the loss is 0.
        temperature: > 0.  The default is that of GradMix.
        base_temperature: The loss is multiplied by temperature / base_temperature; None multiplies by nothing.
        weight: One number, or (2B,) one for each row: sum_i weight_i loss_i / 2B, not divided by the weights' sum.

    Returns:
        The loss, a scalar >= 0 (for weights >= 0), float32 or wider.

    Raises:
        ValueError: z is not (2B, D) floating and finite, a temperature is not above 0, or the weights do not fit.
    """
    scale = _scale(temperature, base_temperature)
    return scale * _mean(_pair_losses(_similarities(_views(z, "z"), temperature)), weight)


def supcon(
    z: Tensor,
    labels: Tensor,
    temperature: float = 0.05,
    *,
    base_temperature: float | None = None,
    weight: Weight = 1.0,
) -> Tensor:
    """SupCon: mean over the rows i of the mean over P(i) of D_i - s_ip, where P(i) are the other rows with i's label.

    Khosla et al., "Supervised contrastive learning" (NeurIPS 2020), equation 2 (L_out).  A row without any other row of
    its label has loss 0 and still counts in the mean, as in the authors' code; with two views there is none.

    Args:
        z: (2B, D) floating; with a label for each row any (N, D), N >= 2, so one view is possible, too.
        labels: (B,) integers, one for each sample, or (N,), one for each row.
        temperature: > 0.
        base_temperature: The loss is multiplied by temperature / base_temperature; None multiplies by nothing.
        weight: One number, or (N,) one for each row: sum_i weight_i loss_i / N.

    Returns:
        The loss, a scalar >= 0 (for weights >= 0), float32 or wider.

    Raises:
        ValueError: z or the labels do not have these shapes and types, z is not finite, a temperature is not above 0,
            or the weights do not fit.
    """
    scale = _scale(temperature, base_temperature)
    rows = unit_rows(z, "z")
    if len(rows) < 2:
        raise ValueError(f"z has {len(rows)} rows, expected at least 2: there is nothing to compare with")
    return scale * _mean(_supcon_losses(_similarities(rows, temperature), labels), weight)


def nt_xent_mixed(
    z: Tensor,
    z_mixed: Tensor,
    temperature: float = 0.05,
    *,
    form: Form = "repo",
    base_temperature: float | None = None,
    weight: Weight = 1.0,
) -> Tensor:
    """NT-Xent whose positives are the mixed other view, in one of two forms.

    "repo": mean over i of D_i - z_i . z_mixed_{j(i)} / temperature, with D_i of the clean rows alone.  The mixed
    positive is not in the denominator, so the loss can be negative and cannot be compared with `nt_xent`.  The released
    code of GradMix has the same gradients but other values, because it takes different maxima off the two terms.
    "symmetric": the mean of NT-Xent of (clean view 1, mixed view 2) and of (clean view 2, mixed view 1).  Mixed rows
    are anchors and negatives, too: a cross-entropy, >= 0.  Both forms equal `nt_xent` where z_mixed is z.

    Args:
        z: (2B, D) floating, features of the clean views.
        z_mixed: (2B, D) floating, row i the features of the mixed version of row i.
        temperature: > 0.
        form: "repo" or "symmetric".
        base_temperature: The loss is multiplied by temperature / base_temperature; None multiplies by nothing.
        weight: One number, or (2B,) one for each mixed row, such as the share of its area that was covered.  It counts
            for the terms in which that row is one of the pair; the sum is divided by the number of terms.

    Returns:
        The loss, a scalar, float32 or wider.

    Raises:
        ValueError: Features are not (2B, D), floating, finite and of one shape, the form is unknown, a temperature is
            not above 0, or the weights do not fit.
    """
    scale = _scale(temperature, base_temperature)
    return scale * _mixed_loss(_views(z, "z"), _views(z_mixed, "z_mixed"), temperature, form, weight)


def contrastive_objective(
    z: Tensor,
    labels: Tensor | None = None,
    z_mixed: Tensor | None = None,
    *,
    theta: float = 1.0,
    lam: float = 1.0,
    mixed_weight: Weight = 1.0,
    form: Form = "repo",
    combine: Literal["add", "replace"] = "add",
    temperature: float = 0.05,
    base_temperature: float | None = None,
) -> Tensor:
    """The training loss of GradMix: theta SupCon + lam (NT-Xent + weighted mixed NT-Xent).

    A term whose factor is 0 is not computed, and what only that term needs may be missing or anything.

    Args:
        z: (2B, D) floating, features of the clean views.
        labels: As in `supcon`; None if theta is 0.
        z_mixed: As in `nt_xent_mixed`; None leaves the mixed term out, as in steps that do not mix.
        theta: Of SupCon, >= 0.
        lam: Of NT-Xent and the mixed term, the paper's lambda, >= 0.
        mixed_weight: `weight` of `nt_xent_mixed`.
        form: As in `nt_xent_mixed`.
        combine: "replace" puts the mixed term, where there is one, in the place of NT-Xent.
        temperature: > 0, of all terms.
        base_temperature: As in `nt_xent`.

    Returns:
        The loss, a scalar, float32 or wider; 0 with gradient 0 if theta and lam are 0.

    Raises:
        ValueError: A factor is negative or not finite, labels are missing, `combine` is unknown, or as the terms do.
    """
    for name, factor in (("theta", theta), ("lam", lam)):
        if not 0 <= factor < float("inf"):
            raise ValueError(f"{name} is {factor}, expected a number >= 0")
    if combine not in ("add", "replace"):
        raise ValueError(f'combine is {combine!r}, expected "add" or "replace"')
    if theta and labels is None:
        raise ValueError(f"theta is {theta}, but labels are None: give the labels of the samples, or theta=0")
    scale, rows = _scale(temperature, base_temperature), _views(z, "z")
    similarities = _similarities(rows, temperature)
    loss = 0 * rows.sum()
    if theta and labels is not None:
        loss = loss + theta * _supcon_losses(similarities, labels).mean()
    if lam and (z_mixed is None or combine == "add"):
        loss = loss + lam * _pair_losses(similarities).mean()
    if lam and z_mixed is not None:
        loss = loss + lam * _mixed_loss(rows, _views(z_mixed, "z_mixed"), temperature, form, mixed_weight)
    return scale * loss


def unit_rows(x: Tensor, name: str) -> Tensor:
    """The rows of (N, D) at length 1, float32 or wider; zeros stay zeros.  Raises ValueError as `wide_rows`."""
    rows, lengths = wide_rows(x, name)
    return rows / torch.where(lengths > 0, lengths, 1)


def wide_rows(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """x as float32 or wider, and the lengths of its rows (N, 1).  Raises ValueError unless (N, D), floating, finite."""
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"{name} is {x.dtype} of shape {tuple(x.shape)}, expected floating features (N, D)")
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not torch.compiler.is_compiling() and not lengths.isfinite().all():
        bad = int((~lengths.isfinite()).sum())
        raise ValueError(f"{name} has NaN, infinite or overflowing values in {bad} of {len(x)} rows: look at the model")
    return rows, lengths


def dot(a: Tensor, b: Tensor) -> Tensor:
    """a (N, D) times b (M, D) transposed: (N, M), in the dtype of a and b even under autocast."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b.T


def _similarities(rows: Tensor, temperature: float) -> Tensor:
    """s (N, N), with -inf where a row meets itself."""
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return (dot(rows, rows) / temperature).masked_fill(itself, -torch.inf)


def _pair_losses(similarities: Tensor) -> Tensor:
    """NT-Xent of each of 2B rows."""
    n = len(similarities)
    partner = torch.arange(n, device=similarities.device).roll(n // 2)
    return F.cross_entropy(similarities, partner, reduction="none")


def _supcon_losses(similarities: Tensor, labels: Tensor) -> Tensor:
    """SupCon of each row."""
    positive = _same_label(labels.to(similarities.device), len(similarities))
    logs = F.log_softmax(similarities, dim=1).masked_fill(~positive, 0)
    return -logs.sum(1) / positive.sum(1).clamp(min=1)


def _mixed_loss(clean: Tensor, mixed: Tensor, temperature: float, form: Form, weight: Weight) -> Tensor:
    if clean.shape != mixed.shape:
        raise ValueError(f"z_mixed has shape {tuple(mixed.shape)}, expected that of z, {tuple(clean.shape)}")
    (clean_1, clean_2), (mixed_1, mixed_2) = clean.chunk(2), mixed.chunk(2)
    weight_1, weight_2 = _weights(weight, clean[:, 0]).chunk(2)
    if form == "repo":
        positive = torch.cat([mixed_2, mixed_1])
        losses = _similarities(clean, temperature).logsumexp(1) - (clean * positive).sum(1) / temperature
        return _mean(losses, torch.cat([weight_2, weight_1]))
    if form == "symmetric":
        pairs = torch.cat([clean_1, mixed_2]), torch.cat([clean_2, mixed_1])
        losses = torch.cat([_pair_losses(_similarities(rows, temperature)) for rows in pairs])
        return _mean(losses, torch.cat([weight_2, weight_2, weight_1, weight_1]))
    raise ValueError(f'form is {form!r}, expected "repo" or "symmetric"')


def _views(z: Tensor, name: str) -> Tensor:
    rows = unit_rows(z, name)
    if len(rows) == 0 or len(rows) % 2:
        raise ValueError(f"{name} has {len(rows)} rows, expected 2B: the first views of B samples, then the second")
    return rows


def _same_label(labels: Tensor, n: int) -> Tensor:
    """(n, n): True where two different rows have one label."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}, expected integers (B,): "
            "soft labels have no positives"
        )
    if len(labels) == n:
        each = labels
    elif 2 * len(labels) == n:
        each = labels.repeat(2)
    else:
        views = "" if n % 2 else f", or {n // 2} for two views"
        raise ValueError(f"{len(labels)} labels for {n} rows of z, expected {n}{views}")
    return (each[:, None] == each).fill_diagonal_(False)


def _mean(losses: Tensor, weight: Weight) -> Tensor:
    """sum_i weight_i loss_i / n."""
    return (_weights(weight, losses) * losses).mean()


def _weights(weight: Weight, rows: Tensor) -> Tensor:
    """The weight of each row, in the shape (n,), dtype and on the device of `rows`."""
    weights = torch.as_tensor(weight, dtype=rows.dtype, device=rows.device)
    if weights.shape not in ((), rows.shape):
        raise ValueError(f"weight has shape {tuple(weights.shape)}, expected one number or {tuple(rows.shape)}")
    return weights.expand(rows.shape)


def _scale(temperature: float, base_temperature: float | None) -> float:
    for name, value in (("temperature", temperature), ("base_temperature", base_temperature)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value}, expected a number above 0")
    return 1.0 if base_temperature is None else temperature / base_temperature
