"""Masks, the gradient step that fills them in, and the fills that know less, against closed forms of a linear model."""

import random  # noqa: TID251
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import softmax
from scipy.stats import chisquare, kstest
from torch import Tensor, nn

from fastmix import Key
from fastmix.learn.filling import (
    Filled,
    Filling,
    Normalised,
    draw_turns,
    fill_in,
    noise_fill,
    shuffled_fill,
    threshold,
)

CHANNELS, SIDE, CLASSES = 2, 10, 4
HOW = Filling(patch=3)  # 16 cells, those at the border of 1 pixel


class Linear(nn.Module):
    """logits = W x."""

    def __init__(self, scale: float = 1.0, seed: int = 0):
        super().__init__()
        values = np.random.default_rng(seed).normal(size=(CLASSES, CHANNELS * SIDE * SIDE)) * scale
        self.weight = nn.Parameter(torch.tensor(values, dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T


def pictures(n: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.random((n, CHANNELS, SIDE, SIDE)), dtype=torch.float32), torch.arange(n) % CLASSES


def update_of(model: Linear, masked: np.ndarray, label: int) -> np.ndarray:
    """W^T (onehot - p): minus the gradient of the cross-entropy of one picture, by hand, in float64."""
    weight = model.weight.detach().double().numpy()
    p = softmax(weight @ masked.ravel())
    return (weight.T @ (np.eye(CLASSES)[label] - p)).reshape(masked.shape)


# --- Masks


CELLS = [((28, 28), 4, 0.25, 12), ((28, 28), 4, 0.5, 25), ((7, 10), 4, 0.5, 3), ((7, 10), 4, 0.01, 1)]


@pytest.mark.parametrize(("shape", "patch", "ratio", "hidden"), CELLS)
def test_random_masks_hide_a_fixed_number_of_cells(shape, patch, ratio, hidden):
    """round(ratio cells), halves up, and at least one; each cell as often as any other."""
    rows, columns = -(-shape[0] // patch), -(-shape[1] // patch)
    turns = draw_turns(Filling(ratio=ratio, patch=patch), shape, Key(0), np.arange(2000)).numpy()
    assert turns.shape == (2000, *shape) and set(np.unique(turns)) == {-1, 0}
    cells = turns[:, ::patch, ::patch]
    whole = np.kron(cells, np.ones((1, patch, patch), int))[:, : shape[0], : shape[1]]
    np.testing.assert_array_equal(turns, whole)
    assert ((cells == 0).sum((1, 2)) == hidden).all()
    often = (cells == 0).sum(0).ravel()
    assert chisquare(often, np.full(rows * columns, 2000 * hidden / (rows * columns))).pvalue > 1e-3


@pytest.mark.parametrize("mode", ["progressive", "independent", "blank"])
@pytest.mark.parametrize(
    ("ratio", "sizes"),
    [(0.25, [12, 12, 12, 13]), (0.4, [16, 16, 17]), (0.3, [16, 16, 17]), (1, [49]), (0.7, [49]), (0.001, [1] * 49)],
)
def test_other_masks_hide_every_cell_once(mode, ratio, sizes):
    """round(1 / ratio) sets, halves up: 4, 3, 3, 1, 1, and never more than cells."""
    turns = draw_turns(Filling(mode=mode, ratio=ratio, patch=4), (28, 28), Key(0), np.arange(20)).numpy()
    for each in turns[:, ::4, ::4]:
        np.testing.assert_array_equal(np.bincount(each.ravel()), sizes)
    assert len(sizes) == 1 or (turns[0] != turns[1]).any()


def test_masks_belong_to_a_picture_and_not_to_its_batch():
    shape, ids = (28, 28), np.array([5, 900, 7])
    turns = draw_turns(HOW, shape, Key(3), ids)
    assert torch.equal(draw_turns(HOW, shape, Key(3), ids[[2, 0]]), turns[[2, 0]])
    assert not torch.equal(draw_turns(HOW, shape, Key(3, epoch=1), ids), turns)
    assert not torch.equal(draw_turns(HOW, shape, Key(4), ids), turns)


# --- Fills


def test_the_step_is_that_of_a_linear_model():
    """With the threshold "raw", what is added is level W^T (onehot - p), at hidden values alone."""
    model, (images, labels) = Linear(0.1), pictures()
    filled = fill_in(model, images, labels, Filling(patch=3, threshold="raw", level=0.01, base=0.4), ids=np.arange(6))
    hidden = draw_turns(HOW, (SIDE, SIDE), Key(0), np.arange(6)).numpy()[:, None] == 0
    np.testing.assert_array_equal(filled.hidden.numpy(), hidden)
    for i in range(6):
        masked = np.where(hidden[i], np.float32(0.4), images[i].numpy())
        np.testing.assert_array_equal(filled.masked[i].numpy(), masked)
        expected = masked + np.where(hidden[i], 0.01 * update_of(model, masked, int(labels[i])), 0)
        np.testing.assert_allclose(filled.images[i].numpy(), expected, atol=1e-7)


def test_the_published_gradient_is_zero_where_this_one_fills():
    model, (images, labels) = Linear(0.1), pictures()
    filled = fill_in(model, images, labels, HOW)
    shown = (~filled.hidden).float()
    x = images.clone().requires_grad_()
    (published,) = torch.autograd.grad(F.cross_entropy(model(shown * x), labels, reduction="sum"), x)
    hidden = filled.hidden.expand_as(images)
    assert (published[hidden] == 0).all() and (published[~hidden] != 0).any()
    assert (filled.images[hidden] != filled.masked[hidden]).float().mean() > 0.1


def reference(model: Linear, image: np.ndarray, label: int, turns: np.ndarray, how: Filling) -> np.ndarray:
    """One picture, set by set."""
    done = np.full_like(image, how.base) if how.mode == "blank" else image.copy()
    for turn in range(turns.max() + 1):
        hidden = np.broadcast_to(turns == turn, image.shape)
        seen = (image if how.mode == "independent" else done).copy()
        seen[hidden] = how.base
        update = update_of(model, seen, label)
        top = update[hidden].max()
        done[hidden] = np.where((update > how.level * top) & (update > 0), 1, how.base)[hidden]
    return done


@pytest.mark.parametrize("base", [0, 0.5])
@pytest.mark.parametrize("mode", ["random", "progressive", "independent", "blank"])
def test_modes_are_those_of_a_loop(mode, base):
    model, (images, labels) = Linear(0.05), pictures()
    how = Filling(mode=mode, patch=3, ratio=0.3, level=0.2, base=base)
    filled = fill_in(model, images, labels, how, Key(2), np.arange(6))
    turns = draw_turns(how, (SIDE, SIDE), Key(2), np.arange(6)).numpy()
    for i in range(6):
        expected = reference(model, images[i].numpy(), int(labels[i]), turns[i], how)
        np.testing.assert_array_equal(filled.images[i].numpy(), expected)
    everywhere = mode != "random"
    assert filled.hidden.all().item() == everywhere and (filled.masked == base).all().item() == everywhere
    assert torch.equal(filled.images[~filled.hidden.expand_as(images)], images[~filled.hidden.expand_as(images)])


def test_modes_meet_where_one_set_has_all():
    model, (images, labels) = Linear(0.05), pictures()
    one = [fill_in(model, images, labels, Filling(mode=mode, ratio=1)).images for mode in ("progressive", "blank")]
    assert torch.equal(one[0], one[1]) and one[0].any()
    other = fill_in(model, 1 - images, labels, Filling(mode="blank", patch=3)).images
    assert torch.equal(other, fill_in(model, images, labels, Filling(mode="blank", patch=3)).images)


def test_a_fill_towards_another_class_moves_the_model_there():
    """The loss is convex in the picture of a linear model, so a small step lowers it."""
    model, (images, labels) = Linear(0.1), pictures()
    wrong = (labels + 1) % CLASSES
    filled = fill_in(model, images, wrong, Filling(patch=3, threshold="raw", level=0.05, base=0.5))
    before, after = (model(each).log_softmax(1).gather(1, wrong[:, None]) for each in (filled.masked, filled.images))
    assert (after > before).all()


D = torch.tensor([[[[4.0, 3], [1, -8]]], [[[-1, -2], [-3, -4]]], [[[0, 0], [0, 0]]], [[[1, torch.nan], [2, 3]]]])
ALL = torch.ones((4, 1, 2, 2), dtype=torch.bool)


@pytest.mark.parametrize(
    ("kind", "level", "expected"),
    [
        ("relative", 0.0, [1, 1, 1, 0]),
        ("relative", 0.25, [1, 1, 0, 0]),  # 1 is not more than a quarter of 4
        ("relative", 0.75, [1, 0, 0, 0]),
        ("quantile", 0.5, [1, 1, 0, 0]),
        ("quantile", 1.0, [1, 1, 1, 0]),  # negative updates are never set to 1
        ("quantile", 0.01, [1, 0, 0, 0]),  # at least one
        ("signed", 0.25, [1, 1, 0, -1]),
        ("signed", 0.6, [0, 0, 0, -1]),
        ("raw", 0.5, [2, 1.5, 0.5, -4]),
    ],
)
def test_thresholds(kind, level, expected):
    got = threshold(D, ALL, Filling(threshold=kind, level=level)).flatten(1)
    np.testing.assert_array_equal(got[0], expected)
    if kind in ("relative", "quantile"):
        assert not got[1].any()  # nothing points upwards
    assert not got[2].any() and not got[3].any()  # no gradient, and one with NaN


def test_quantiles_count_hidden_values_alone():
    hidden = torch.tensor([True, True, False, False]).view(1, 1, 2, 2)
    update = torch.tensor([[1.0, 2, 0, 0], [3, 4, 0, 0]]).view(1, 2, 2, 2)
    got = threshold(update, hidden, Filling(threshold="quantile", level=0.75))
    np.testing.assert_array_equal(got.flatten(), [0, 1, 0, 0, 1, 1, 0, 0])  # 3 of 4


def test_a_certain_class_is_filled_towards_all_the_same():
    """With p = 1 - 1e-13, which is 1 in float32, the gradient is still there."""
    model, (images, _) = Linear(), pictures(1)
    masked = fill_in(model, images, torch.tensor([0]), HOW).masked
    order = model(masked)[0].argsort(descending=True)
    gap = (model(masked)[0, order[0]] - model(masked)[0, order[1]]).item()
    with torch.no_grad():
        model.weight *= 30 / gap
    assert model(masked).softmax(1).max() == 1
    label = order[:1]
    expected = reference(
        model, images[0].numpy(), int(label), draw_turns(HOW, (SIDE, SIDE), Key(0), [0]).numpy()[0], HOW
    )
    np.testing.assert_array_equal(fill_in(model, images, label, HOW).images[0].numpy(), expected)
    assert (expected != masked[0].numpy()).any()


class Net(nn.Module):
    """Everything that has a state of its own: batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(CHANNELS, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.head = nn.Linear(4, CLASSES)
        for p in self.parameters():
            p.data.normal_(generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def test_models_and_generators_stay_as_they_are():
    model, (images, labels) = Net(), pictures()
    model.body[1].eval()  # a mode of its own
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    given = images.clone()
    first = fill_in(model, images, labels, HOW).images
    assert torch.equal(first, fill_in(model, images, labels, HOW).images) and torch.equal(images, given)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight)) and model.head.bias.grad is None
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert not first.requires_grad and not images.requires_grad


def test_modes_come_back_after_an_error():
    model, (images, labels) = Net(), pictures()
    with pytest.raises(ValueError, match="the model has 4 outputs"):
        fill_in(model, images, labels + 3, HOW)
    assert all(module.training for module in model.modules())


def test_pictures_do_not_see_each_other():
    """In evaluation mode, and with the loss summed: each alone is filled as in the batch, gradients on or off."""
    model, (images, labels) = Net(), pictures()
    together = fill_in(model, images, labels, HOW, ids=np.arange(6) + 40).images
    with torch.no_grad():
        alone = [fill_in(model, images[[i]], labels[[i]], HOW, ids=np.array([i + 40])).images for i in range(6)]
    assert torch.equal(torch.cat(alone), together)


def test_normalised():
    mean, std, (images, labels) = (0.2, 0.6), (0.5, 2.0), pictures()
    by_hand = [(images[:, c] - mean[c]) / std[c] for c in range(2)]
    model = Linear(0.1)
    torch.testing.assert_close(Normalised(model, mean, std)(images), model(torch.stack(by_hand, 1)))
    filled = fill_in(Normalised(model, mean, std), images, labels, HOW)
    assert (filled.masked[filled.hidden.expand_as(images)] == 0).all()  # black, and not the mean


# --- Fills that know less


@pytest.fixture(scope="module")
def many() -> tuple[Filled, np.ndarray]:
    images, labels = pictures(400)
    return fill_in(Linear(0.05), images, labels, Filling(patch=3, level=0.3, base=0.25)), np.arange(400)


def assert_places_are_chance(filled: Filled, other: Tensor) -> None:
    """How many set pixels meet set pixels of the fill is hypergeometric in each picture: 4 standard deviations."""
    before, after = ((each != filled.masked).any(1) for each in (filled.images, other))
    n, hidden = (each.sum((1, 2)).double() for each in (after, filled.hidden[:, 0]))
    mean, deviation = n * n / hidden, (n * n / hidden * (1 - n / hidden) * (hidden - n) / (hidden - 1)).sum().sqrt()
    assert abs((before & after).sum() - mean.sum()) < 4 * deviation


def test_shuffled_fills_have_the_same_pixels_elsewhere(many):
    filled, ids = many
    got = shuffled_fill(filled, Key(0), ids)
    shown = ~filled.hidden.expand_as(got)
    assert torch.equal(got[shown], filled.images[shown]) and not torch.equal(got, filled.images)
    for i in range(20):
        hidden = filled.hidden[i, 0]
        before, after = (each[i][:, hidden].T.tolist() for each in (filled.images, got))
        assert sorted(before) == sorted(after)
    assert torch.equal(shuffled_fill(filled, Key(0), ids), got)
    assert_places_are_chance(filled, got)


def test_noise_sets_as_many_pixels_at_any_place_and_level(many):
    filled, ids = many
    got = noise_fill(filled, Key(0), ids)
    changed, set_ = (got != filled.masked).any(1), (filled.images != filled.masked).any(1)
    assert torch.equal(changed.sum((1, 2)), set_.sum((1, 2))) and not (changed & ~filled.hidden[:, 0]).any()
    levels = got.movedim(1, 3)[changed].numpy()
    assert kstest(levels.ravel(), "uniform").pvalue > 1e-3 and abs(np.corrcoef(levels.T)[0, 1]) < 0.05
    assert_places_are_chance(filled, got)


# --- Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "half"}, "mode is 'half', expected one of 'random', 'progressive', 'independent', 'blank'"),
        ({"threshold": "otsu"}, "threshold is 'otsu', expected one of 'relative'"),
        ({"ratio": 0}, "ratio is 0, expected 0 < ratio <= 1"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"patch": 0}, "patch is 0, expected at least 1 pixel"),
        ({"level": 1}, "level is 1, expected 0 <= level < 1 for threshold='relative'"),
        ({"level": float("nan")}, "level is nan"),
        ({"threshold": "quantile", "level": 0}, "level is 0, expected 0 < level <= 1"),
        ({"threshold": "raw", "level": 0}, "level is 0, expected a number above 0"),
        ({"base": -0.1}, "base is -0.1, expected 0 <= base <= 1: it is a value before normalising"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError) as error:
        Filling(**settings)
    assert message in str(error.value)


IMAGES, LABELS = pictures(3)


@pytest.mark.parametrize(
    ("model", "images", "labels", "message"),
    [
        (Linear(), IMAGES[0], LABELS, "images are torch.float32 (2, 10, 10), expected floating (N, C, H, W)"),
        (Linear(), IMAGES[:0], LABELS[:0], "N >= 1"),
        (Linear(), (IMAGES * 255).byte(), LABELS, "images are torch.uint8"),
        (
            Linear(),
            IMAGES * 3 - 1,
            LABELS,
            "expected [0, 1]: give pictures that are not normalised, and put Normalised",
        ),
        (Linear(), IMAGES * torch.nan, LABELS, "images run from nan"),
        (Linear(), IMAGES, LABELS[:2], "labels are torch.int64 (2,), expected integers (3,)"),
        (Linear(), IMAGES, LABELS.float(), "labels are torch.float32"),
        (Linear(), IMAGES, LABELS - 1, "labels run from -1 to 1, but the model has 4 outputs"),
        (nn.Identity(), IMAGES, LABELS, "the model gives torch.float32 (3, 2, 10, 10) for 3 pictures"),
        (nn.LSTM(10, 4), IMAGES[:, 0], LABELS, "(3, 10, 10), expected floating (N, C, H, W)"),
    ],
)
def test_bad_input(model: Any, images: Tensor, labels: Tensor, message: str):
    with pytest.raises(ValueError) as error:
        fill_in(model, images, labels)
    assert message in str(error.value)
