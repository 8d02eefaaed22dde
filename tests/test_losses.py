import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from fastmix.learn import jensen_shannon, pair_cross_entropy


def draw(n: int, classes: int, scale: float = 2.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(scale=scale, size=(3 * n, classes)), rng.integers(0, classes, n)


def closed_form(logits: np.ndarray, labels: np.ndarray, weight: float) -> float:
    p = softmax(logits, axis=1).reshape(3, -1, logits.shape[1])
    m = np.clip(p.mean(0), 1e-7, 1)
    kl = [(q * (np.log(q) - np.log(m))).sum() / len(labels) for q in p]
    clean = log_softmax(logits[: len(labels)], axis=1)
    return -clean[np.arange(len(labels)), labels].mean() + weight * sum(kl) / 3


@pytest.mark.parametrize(("n", "classes", "weight"), [(1, 2, 12.0), (5, 10, 12.0), (64, 1000, 1.0), (3, 4, 0.0)])
def test_jensen_shannon_is_its_formula(n: int, classes: int, weight: float) -> None:
    logits, labels = draw(n, classes)
    got = jensen_shannon(torch.tensor(logits), torch.tensor(labels), weight)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.item(), closed_form(logits, labels, weight), rtol=1e-12)


def test_default_weight_is_twelve() -> None:
    logits, labels = draw(4, 7)
    got = jensen_shannon(torch.tensor(logits), torch.tensor(labels))
    np.testing.assert_allclose(got.item(), closed_form(logits, labels, 12.0), rtol=1e-12)


def test_three_tensors_equal_one() -> None:
    logits, labels = draw(6, 5)
    one, y = torch.tensor(logits), torch.tensor(labels)
    assert jensen_shannon(one, y).item() == jensen_shannon(list(one.split(6)), y).item()


def test_equal_views_do_not_disagree() -> None:
    logits, labels = draw(6, 5)
    view, y = torch.tensor(logits[:6]), torch.tensor(labels)
    got = jensen_shannon([view, view, view], y, weight=1e6) - torch.nn.functional.cross_entropy(view, y)
    np.testing.assert_allclose(got.item(), 0, atol=1e-8)


def test_disagreement_of_certain_views_is_clamped() -> None:
    """Three views, each sure of a class of its own: every KL is log 3."""
    certain = 1e4 * torch.eye(3, dtype=torch.float64)[:, None]
    got = jensen_shannon(list(certain), torch.tensor([0]), weight=12.0)
    np.testing.assert_allclose(got.item(), 12 * np.log(3), rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_are_finite(scale: float, dtype: torch.dtype) -> None:
    logits, labels = draw(8, 10, scale)
    x = torch.tensor(logits).clamp(-6e4, 6e4).to(dtype).requires_grad_()
    loss = jensen_shannon(x, torch.tensor(labels))
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


def test_gradient_is_the_numerical_one() -> None:
    logits, labels = draw(3, 4)
    y = torch.tensor(labels)
    assert torch.autograd.gradcheck(lambda x: jensen_shannon(x, y), torch.tensor(logits, requires_grad=True))


def test_soft_labels() -> None:
    logits, labels = draw(5, 6)
    soft = torch.tensor(np.eye(6)[labels])
    want = jensen_shannon(torch.tensor(logits), torch.tensor(labels)).item()
    np.testing.assert_allclose(jensen_shannon(torch.tensor(logits), soft).item(), want, rtol=1e-12)


def test_errors_name_the_shapes() -> None:
    x, y = torch.zeros(7, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"7 rows, expected 3N"):
        jensen_shannon(x, y)
    with pytest.raises(ValueError, match=r"2 labels for 3 samples"):
        jensen_shannon(torch.zeros(9, 3), y)
    with pytest.raises(ValueError, match=r"expected three"):
        jensen_shannon([torch.zeros(2, 3)] * 2, y)
    with pytest.raises(ValueError, match=r"expected three"):
        jensen_shannon([torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4)], y)


def test_pair_is_the_soft_label() -> None:
    rng = np.random.default_rng(1)
    logits, a, b, w = rng.normal(size=(9, 4)), rng.integers(0, 4, 9), rng.integers(0, 4, 9), rng.uniform(size=9)
    soft = np.eye(4)[a] * w[:, None] + np.eye(4)[b] * (1 - w)[:, None]
    want = -(soft * log_softmax(logits, axis=1)).sum(1).mean()
    got = pair_cross_entropy(*(torch.tensor(x) for x in (logits, a, b, w)))
    np.testing.assert_allclose(got.item(), want, rtol=1e-12)


def test_missing_torch_names_the_command() -> None:
    code = "import sys; sys.modules['torch'] = None; import fastmix.learn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'ModuleNotFoundError: fastmix.learn needs torch: pip install "fastmix[torch]"' in done.stderr


@pytest.mark.parametrize("shape", [(4, 1), (1,), (), (3,)])
def test_shares_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    labels = torch.arange(4)
    with pytest.raises(ValueError, match=r"w has shape .* expected \(4,\)"):
        pair_cross_entropy(torch.zeros(4, 5), labels, labels, torch.ones(shape))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_below_zero_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight is"):
        jensen_shannon(torch.zeros(3, 5), torch.tensor([1]), weight=weight)
