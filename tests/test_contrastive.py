import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastmix.learn import contrastive_objective, nt_xent, nt_xent_mixed, supcon

TAU = 0.5


def features(rows: int, dims: int = 5, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(rows, dims)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def denominator(rows: np.ndarray, i: int, tau: float) -> float:
    return math.log(sum(math.exp(cosine(rows[i], rows[a]) / tau) for a in range(len(rows)) if a != i))


def nt_xent_of_row(rows: np.ndarray, i: int, tau: float) -> float:
    partner = (i + len(rows) // 2) % len(rows)
    return denominator(rows, i, tau) - cosine(rows[i], rows[partner]) / tau


def supcon_of_row(rows: np.ndarray, labels: list[int], i: int, tau: float) -> float:
    positives = [p for p in range(len(rows)) if p != i and labels[p] == labels[i]]
    terms = [denominator(rows, i, tau) - cosine(rows[i], rows[p]) / tau for p in positives]
    return sum(terms) / len(terms) if terms else 0.0


def repo_terms(z: np.ndarray, mixed: np.ndarray, weight: np.ndarray, tau: float) -> float:
    n = len(z)
    partner = [(i + n // 2) % n for i in range(n)]
    terms = [denominator(z, i, tau) - cosine(z[i], mixed[j]) / tau for i, j in enumerate(partner)]
    return sum(weight[j] * term for j, term in zip(partner, terms, strict=True)) / n


def symmetric_terms(z: np.ndarray, mixed: np.ndarray, weight: np.ndarray, tau: float) -> float:
    n, b = len(z), len(z) // 2
    total = 0.0
    for clean, other, w in ((z[:b], mixed[b:], weight[b:]), (z[b:], mixed[:b], weight[:b])):
        rows = np.concatenate([clean, other])
        total += sum(w[i % b] * nt_xent_of_row(rows, i, tau) for i in range(n))
    return total / (2 * n)


def test_closed_forms() -> None:
    """Two samples at right angles, two equal views: ln(e + 2) - 1, and ln(e + 2) - 1/3 if all labels are equal."""
    z = torch.eye(2, dtype=torch.float64).repeat(2, 1)
    got = nt_xent(z, temperature=1.0), supcon(z, torch.tensor([3, 3]), temperature=1.0)
    np.testing.assert_allclose([x.item() for x in got], [math.log(math.e + 2) - 1, math.log(math.e + 2) - 1 / 3])
    np.testing.assert_allclose([x.item() for x in got], [0.551445, 1.218111], atol=5e-7)


@pytest.mark.parametrize("samples", [1, 2, 7])
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_nt_xent_is_its_formula(samples: int, tau: float) -> None:
    z = features(2 * samples)
    want = np.mean([nt_xent_of_row(z.numpy(), i, tau) for i in range(2 * samples)])
    np.testing.assert_allclose(nt_xent(z, tau).item(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [5, 2, 5]])
def test_supcon_is_its_formula(labels: list[int]) -> None:
    z = features(6)
    want = np.mean([supcon_of_row(z.numpy(), labels * 2, i, TAU) for i in range(6)])
    np.testing.assert_allclose(supcon(z, torch.tensor(labels), TAU).item(), want, rtol=1e-10)
    np.testing.assert_allclose(supcon(z, torch.tensor(labels * 2), TAU).item(), want, rtol=1e-10)


def test_supcon_of_unique_labels_is_nt_xent() -> None:
    z = features(10)
    np.testing.assert_allclose(supcon(z, torch.arange(5), TAU).item(), nt_xent(z, TAU).item(), rtol=1e-12)


def test_a_row_without_positives_counts_as_zero() -> None:
    labels = [0, 1, 0, 2, 2]
    z = features(5).requires_grad_()
    loss = supcon(z, torch.tensor(labels), TAU)
    rows = [supcon_of_row(z.detach().numpy(), labels, i, TAU) for i in range(5)]
    assert rows[1] == 0
    np.testing.assert_allclose(loss.item(), sum(rows) / 5, rtol=1e-10)
    loss.backward()
    assert z.grad is not None and z.grad.isfinite().all() and z.grad.abs().sum() > 0


def test_no_positives_at_all() -> None:
    z = features(3).requires_grad_()
    loss = supcon(z, torch.tensor([0, 1, 2]), TAU)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None and (z.grad == 0).all()


def test_one_sample() -> None:
    """Two rows have nobody but each other: the probability of the partner is 1."""
    z = features(2).requires_grad_()
    for loss in (nt_xent(z), supcon(z, torch.tensor([4])), nt_xent_mixed(z, z.detach(), form="symmetric")):
        np.testing.assert_allclose(loss.item(), 0, atol=1e-12)
        (grad,) = torch.autograd.grad(loss, z)
        np.testing.assert_allclose(grad, 0, atol=1e-12)


@pytest.mark.parametrize(("form", "formula"), [("repo", repo_terms), ("symmetric", symmetric_terms)])
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_mixed_is_its_formula(form: Any, formula: Callable[..., float], samples: int) -> None:
    z, mixed, n = features(2 * samples), features(2 * samples, seed=1), 2 * samples
    got = nt_xent_mixed(z, mixed, TAU, form=form).item()
    np.testing.assert_allclose(got, formula(z.numpy(), mixed.numpy(), np.ones(n), TAU), rtol=1e-10, atol=1e-12)
    weight = np.random.default_rng(2).uniform(size=n)
    got = nt_xent_mixed(z, mixed, TAU, form=form, weight=torch.tensor(weight)).item()
    np.testing.assert_allclose(got, formula(z.numpy(), mixed.numpy(), weight, TAU), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ["repo", "symmetric"])
def test_mixed_with_nothing_mixed_is_nt_xent(form: Any) -> None:
    z = features(8)
    np.testing.assert_allclose(nt_xent_mixed(z, z, TAU, form=form).item(), nt_xent(z, TAU).item(), rtol=1e-12)


def test_the_repo_form_can_be_negative_and_the_symmetric_one_cannot() -> None:
    """Each clean row's mixed partner is the row itself: -1/tau - 1/tau, against a cross-entropy."""
    z = torch.tensor([[1.0, 0], [-1, 0]])
    mixed = -z
    np.testing.assert_allclose(nt_xent_mixed(z, mixed, TAU).item(), -2 / TAU, rtol=1e-6)
    assert nt_xent_mixed(z, mixed, TAU, form="symmetric").item() == 0


def test_weights_are_divided_by_the_rows_not_by_their_sum() -> None:
    z, weight = features(6), torch.tensor([0.5, 0, 0, 2, 0, 0], dtype=torch.float64)
    rows = [nt_xent_of_row(z.numpy(), i, TAU) for i in (0, 3)]
    np.testing.assert_allclose(nt_xent(z, TAU, weight=weight).item(), (0.5 * rows[0] + 2 * rows[1]) / 6, rtol=1e-10)
    labels = [0, 0, 1]
    rows = [supcon_of_row(z.numpy(), labels * 2, i, TAU) for i in (0, 3)]
    got = supcon(z, torch.tensor(labels), TAU, weight=weight)
    np.testing.assert_allclose(got.item(), (0.5 * rows[0] + 2 * rows[1]) / 6, rtol=1e-10)
    np.testing.assert_allclose(nt_xent(z, TAU, weight=0.25).item(), nt_xent(z, TAU).item() / 4, rtol=1e-12)


MIXED = features(6, seed=3).bfloat16()  # exact in float32 and float64, too
LOSSES = [
    lambda z, **base: nt_xent(z, **base),
    lambda z, **base: supcon(z, torch.tensor([0, 0, 1]), **base),
    lambda z, **base: nt_xent_mixed(z, MIXED, **base),
    lambda z, **base: nt_xent_mixed(z, MIXED, form="symmetric", **base),
    lambda z, **base: contrastive_objective(z, torch.tensor([0, 0, 1]), MIXED, **base),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_base_temperature_rescales(loss: Callable[..., Tensor]) -> None:
    z = features(6)
    want = loss(z, temperature=0.05).item() * 0.7142857142857143
    np.testing.assert_allclose(loss(z, temperature=0.05, base_temperature=0.07).item(), want, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_is_the_numerical_one(loss: Callable[..., Tensor]) -> None:
    assert torch.autograd.gradcheck(lambda z: loss(z, temperature=TAU), features(6).requires_grad_())


@pytest.mark.parametrize("form", ["repo", "symmetric"])
def test_gradient_of_the_mixed_features(form: Any) -> None:
    z, weight = features(6), torch.tensor([0.1, 0.9, 0.3, 0.2, 0.0, 1.0])
    mixed = features(6, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: nt_xent_mixed(z, m, TAU, form=form, weight=weight), mixed)


@pytest.mark.parametrize("form", ["repo", "symmetric"])
def test_permuting_the_samples_changes_nothing(form: Any) -> None:
    z, mixed, labels, order = features(6), features(6, seed=1), torch.tensor([0, 0, 1]), torch.tensor([2, 0, 1])
    both, weight = torch.cat([order, order + 3]), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    one = contrastive_objective(z, labels, mixed, mixed_weight=weight, form=form)
    moved = contrastive_objective(z[both], labels[order], mixed[both], mixed_weight=weight[both], form=form)
    np.testing.assert_allclose(moved.item(), one.item(), rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_length_of_the_features_does_not_matter(loss: Callable[..., Tensor]) -> None:
    z = features(6)
    scaled = z * torch.tensor([[1.0], [3], [0.1], [100], [7], [1e-3]])
    np.testing.assert_allclose(loss(scaled, temperature=TAU).item(), loss(z, temperature=TAU).item(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_is_computed_in_float32(loss: Callable[..., Tensor], dtype: torch.dtype, autocast: bool) -> None:
    """The same as for the float64 copy of the rounded features, at a temperature where rounding similarities shows."""
    z = features(6).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        got = loss(z, temperature=0.05)
    exact = z.detach().double().requires_grad_()
    want = loss(exact, temperature=0.05)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.item(), want.item(), rtol=3e-6)
    got.backward()
    want.backward()
    assert z.grad is not None and exact.grad is not None
    np.testing.assert_allclose(z.grad.double(), exact.grad, rtol=1e-2, atol=1e-2)


def test_autocast_would_be_noticed() -> None:
    """Without its guard the product is rounded to bfloat16, far outside the tolerance above."""
    a = torch.nn.functional.normalize(features(6).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = (a @ a.T).double() / 0.05
    assert (rounded - a.double() @ a.double().T / 0.05).abs().max() > 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_of_zeros_is_similar_to_nothing(loss: Callable[..., Tensor]) -> None:
    z = features(6)
    z[1] = 0
    z.requires_grad_()
    value = loss(z, temperature=0.05)
    value.backward()
    assert value.isfinite()
    assert z.grad is not None and z.grad.isfinite().all() and z.grad.abs().max() < 1e6


def test_compiles_without_a_break() -> None:
    z, labels, mixed = features(8).float(), torch.tensor([0, 1, 0, 2]), features(8, seed=1).float()
    compiled = torch.compile(contrastive_objective, backend="eager", fullgraph=True)
    np.testing.assert_allclose(
        compiled(z, labels, mixed).item(), contrastive_objective(z, labels, mixed).item(), rtol=1e-6
    )


def test_objective_is_the_sum_of_its_terms() -> None:
    z, mixed, labels = features(6), features(6, seed=1), torch.tensor([0, 1, 0])
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], dtype=torch.float64)
    clean, supervised = nt_xent(z, TAU).item(), supcon(z, labels, TAU).item()
    own = nt_xent_mixed(z, mixed, TAU, weight=weight).item()
    settings: dict[str, Any] = {"theta": 0.5, "lam": 1.2, "mixed_weight": weight, "temperature": TAU}
    got = contrastive_objective(z, labels, mixed, **settings).item()
    np.testing.assert_allclose(got, 0.5 * supervised + 1.2 * (clean + own), rtol=1e-12)
    got = contrastive_objective(z, labels, mixed, combine="replace", **settings).item()
    np.testing.assert_allclose(got, 0.5 * supervised + 1.2 * own, rtol=1e-12)
    for combine in ("add", "replace"):
        got = contrastive_objective(z, labels, combine=combine, **settings).item()
        np.testing.assert_allclose(got, 0.5 * supervised + 1.2 * clean, rtol=1e-12)


def test_what_a_factor_of_zero_leaves_out() -> None:
    z, broken = features(6).requires_grad_(), torch.full((6, 5), math.nan)
    labels = torch.tensor([0, 1, 0])
    without_theta = contrastive_objective(z, theta=0, temperature=TAU).item()
    np.testing.assert_allclose(without_theta, nt_xent(z, TAU).item(), rtol=1e-12)
    without_lam = contrastive_objective(z, labels, broken, lam=0, temperature=TAU).item()
    np.testing.assert_allclose(without_lam, supcon(z, labels, TAU).item(), rtol=1e-12)
    nothing = contrastive_objective(z, theta=0, lam=0)
    (grad,) = torch.autograd.grad(nothing, z)
    assert nothing.item() == 0
    assert (grad == 0).all()


def test_a_mixed_weight_of_zero_gives_no_gradient() -> None:
    z, mixed = features(6).requires_grad_(), features(6, seed=1).requires_grad_()
    loss = contrastive_objective(z, None, mixed, theta=0, mixed_weight=0.0, temperature=TAU)
    grad, mixed_grad = torch.autograd.grad(loss, [z, mixed])
    assert (mixed_grad == 0).all()
    np.testing.assert_allclose(grad, torch.autograd.grad(nt_xent(z, TAU), z)[0], rtol=1e-12)


Z, Y = features(6), torch.tensor([0, 1, 0])
NAN = Z.clone()
NAN[2, 3] = math.nan
BAD: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: nt_xent(Z[:5]), r"z has 5 rows, expected 2B"),
    (lambda: nt_xent(Z[:0]), r"z has 0 rows, expected 2B"),
    (lambda: nt_xent(NAN), r"z has NaN, infinite or overflowing values in 1 of 6 rows"),
    (lambda: nt_xent(Z / 0), r"in 6 of 6 rows"),
    (lambda: nt_xent(Z[None]), r"shape \(1, 6, 5\), expected floating features \(N, D\)"),
    (lambda: nt_xent(Z.long()), r"z is torch.int64"),
    (lambda: nt_xent(Z, 0.0), r"temperature is 0.0, expected a number above 0"),
    (lambda: nt_xent(Z, math.nan), r"temperature is nan"),
    (lambda: nt_xent(Z, base_temperature=-0.07), r"base_temperature is -0.07"),
    (lambda: nt_xent(Z, weight=torch.ones(3)), r"weight has shape \(3,\), expected one number or \(6,\)"),
    (lambda: supcon(Z, torch.tensor([0, 1])), r"2 labels for 6 rows of z, expected 6, or 3 for two views"),
    (lambda: supcon(Z, torch.eye(3)), r"labels are torch.float32 of shape \(3, 3\), expected integers \(B,\)"),
    (lambda: supcon(Z[:1], torch.tensor([0])), r"z has 1 rows, expected at least 2"),
    (lambda: supcon(NAN, Y), r"1 of 6 rows"),
    (lambda: supcon(Z, Y, -1.0), r"temperature is -1.0"),
    (lambda: nt_xent_mixed(Z, Z[:4]), r"z_mixed has shape \(4, 5\), expected that of z, \(6, 5\)"),
    (lambda: nt_xent_mixed(Z, NAN), r"z_mixed has NaN"),
    (lambda: nt_xent_mixed(Z, Z, form="both"), r"form is 'both', expected \"repo\" or \"symmetric\""),  # type: ignore
    (lambda: nt_xent_mixed(Z, Z, weight=torch.ones(3)), r"weight has shape \(3,\)"),
    (lambda: contrastive_objective(Z), r"theta is 1.0, but labels are None"),
    (lambda: contrastive_objective(Z, Y, theta=-1), r"theta is -1, expected a number >= 0"),
    (lambda: contrastive_objective(Z, Y, lam=math.inf), r"lam is inf"),
    (lambda: contrastive_objective(Z, Y, combine="sum"), r"combine is 'sum'"),  # type: ignore
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_errors_name_the_value(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
