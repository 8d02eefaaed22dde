"""Prototypes against loops over single pictures, and what the controls say about networks trained on real digits."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fastmix import Key
from fastmix.learn.filling import Filling, fill_in, noise_fill, shuffled_fill
from fastmix.learn.prototypes import (
    CONTROLS,
    Control,
    Prototypes,
    Report,
    make_prototypes,
    paired_interval,
    random_weights,
    resemblance,
)

HOW = Filling(patch=2)  # 16 cells in 8 x 8 px
TRAIN, OTHER, TEST = slice(0, 700), slice(700, 1400), slice(1400, None)
Data = tuple[Tensor, Tensor]


def network(channels: int, seed: int) -> nn.Module:
    layers = [nn.Conv2d(channels, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
    return random_weights(nn.Sequential(*layers), seed)


def train(images: Tensor, labels: Tensor, seed: int, epochs: int = 8) -> nn.Module:
    model, generator = network(images.shape[1], seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def digits() -> Data:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return torch.tensor(data.images[order, None] / 16, dtype=torch.float32), torch.tensor(data.target[order])


@pytest.fixture(scope="module")
def models(digits: Data) -> tuple[nn.Module, nn.Module]:
    """Two networks that were trained on different digits."""
    images, labels = digits
    return train(images[TRAIN], labels[TRAIN], 0), train(images[OTHER], labels[OTHER], 1)


def study(
    model: nn.Module, images: Tensor, labels: Tensor, how: Filling = HOW, size: int = 500, **options: Any
) -> Report:
    ids = np.arange(len(images))
    batches = [(images[i : i + size], labels[i : i + size], ids[i : i + size]) for i in range(0, len(images), size)]
    return make_prototypes(model, batches, range(10), how, **options)


def named(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images).argmax(1)


# --- Means and counts


def test_prototypes_are_means_over_pictures_and_masks(digits, models):
    model, (images, labels) = models[0], (each[TEST][:60] for each in digits)
    report = study(model, images, labels, size=7, masks=3, seed=4)
    fills = [fill_in(model, images, labels, HOW, Key(4, m), np.arange(60)) for m in range(3)]
    for c in range(10):
        mine = labels == c
        each = torch.cat([fill.images[mine] for fill in fills]).double().numpy()
        masked = torch.cat([fill.masked[mine] for fill in fills]).double().numpy()
        hidden = torch.cat([fill.hidden[mine] for fill in fills]).numpy()
        right = (named(model, torch.cat([fill.images[mine] for fill in fills])) == c).numpy()
        made = report.prototypes
        assert made.count[c] == len(each) == 3 * mine.sum() and made.recognised[c] == right.sum()
        np.testing.assert_allclose(made.every[c], each.mean(0), atol=1e-7)
        np.testing.assert_allclose(made.filtered[c], each[right].mean(0), atol=1e-7)
        alone = (each - masked).sum(0) / np.maximum(hidden.sum(0), 1)
        np.testing.assert_allclose(made.fill[c], alone, atol=1e-7)
        np.testing.assert_allclose(report.means[c], images[mine].double().mean(0), atol=1e-7)
    assert (report.pictures, report.masks, report.classes) == (60, 3, tuple(range(10)))


def test_controls_are_shares_of_pictures_and_masks(digits, models):
    (model, judge), (images, labels), ids = models, (each[TEST][:50] for each in digits), np.arange(50)
    report = study(model, images, labels, masks=2, judge=judge)
    untrained, right = random_weights(model), {}
    for m in range(2):
        key = Key(0, m)
        own = fill_in(model, images, labels, HOW, key, ids)
        kinds = {
            "clean": images,
            "zero": own.masked,
            "noise": noise_fill(own, key, ids),
            "shuffled": shuffled_fill(own, key, ids),
            "random weights": fill_in(untrained, images, labels, HOW, key, ids).images,
            "right class": own.images,
        }
        for (name, pictures), (by, who) in itertools.product(kinds.items(), (("model", model), ("judge", judge))):
            right.setdefault((name, by), []).append((named(who, pictures) == labels).double().numpy())
    assert [(each.name, each.by) for each in report.controls] == [
        (n, by) for by in ("model", "judge") for n in CONTROLS
    ]
    for each in report.controls:
        if each.name != "wrong class":
            np.testing.assert_allclose(each.right, np.mean(right[each.name, each.by]), atol=1e-12)
            # a picture with all its masks is one observation
            gain = np.mean(right["right class", each.by], 0) - np.mean(right[each.name, each.by], 0)
            np.testing.assert_allclose(each.gain, gain.mean(), atol=1e-12)
            if each.name != "right class":
                ends = paired_interval(gain.sum(), (gain**2).sum(), 50)
                np.testing.assert_allclose((each.low, each.high), ends, atol=1e-12)
        assert 0 <= each.wrong <= 1 - each.right + 1e-12


def test_batches_do_not_matter_and_seeds_do(digits, models):
    images, labels = (each[TEST][:90] for each in digits)
    one, other = (study(models[0], images, labels, size=size, masks=2, judge=models[1]) for size in (90, 13))
    assert one.controls == other.controls
    for name in ("every", "filtered", "fill", "count", "recognised"):
        torch.testing.assert_close(getattr(one.untrained, name), getattr(other.untrained, name), rtol=0, atol=1e-6)
        torch.testing.assert_close(getattr(one.prototypes, name), getattr(other.prototypes, name), rtol=0, atol=1e-6)
    assert study(models[0], images, labels, masks=2, judge=models[1], seed=1).controls != one.controls


class Constant(nn.Module):
    """Says 3 whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(F.one_hot(torch.tensor(3), 10).float())

    def forward(self, images: Tensor) -> Tensor:
        return self.bias + 0 * images.sum((1, 2, 3))[:, None]


def test_classes_without_recognised_fills_are_zeros_and_not_nan(digits):
    images, labels = (each[TEST][:40] for each in digits)
    report = study(Constant(), images[labels != 7], labels[labels != 7])
    made = report.prototypes
    assert report.empty == 1 and torch.equal(made.recognised > 0, torch.arange(10) == 3) and made.count[7] == 0
    assert not made.filtered[made.recognised == 0].any() and not made.fill.any() and not made.every[7].any()
    assert all(torch.isfinite(each).all() for each in (made.every, made.filtered, made.fill, report.means))
    assert report.supported is None and not resemblance(made.fill, report.means).any()


def test_the_wrong_class_is_any_other_one(digits):
    """What always says 3 names the wrong class for one in nine of the other digits; always if there are two."""
    images, labels = (each[TEST][:60] for each in digits)
    rest = labels != 3
    shares = [each.wrong for each in study(Constant(), images[rest], labels[rest], masks=20).controls]
    assert all(abs(share - 1 / 9) < 4 * np.sqrt(1 / 9 * 8 / 9 / (20 * int(rest.sum()))) for share in shares)
    batch = images[labels == 5], labels[labels == 5], np.flatnonzero(labels == 5)
    two = make_prototypes(Constant(), [batch], [5, 3], HOW)
    assert {(each.right, each.wrong) for each in two.controls} == {(0, 1)} and two.prototypes.count[1] == 0


# --- What the controls say


def test_digits_pass_the_controls(digits, models):
    """The independent network sees the digits in the fills, far beyond the noise of 397 pictures."""
    images, labels = (each[TEST] for each in digits)
    report = study(models[0], images, labels, judge=models[1])
    of = {(each.name, each.by): each for each in report.controls}
    for by in ("model", "judge"):
        assert of["clean", by].right > 0.9 and of["right class", by].right > of["zero", by].right + 0.1
        assert all(of[name, by].low > 0.05 for name in ("zero", "noise", "shuffled", "wrong class", "random weights"))
    assert report.supported
    # another class's fill moves the prediction there
    assert of["wrong class", "model"].wrong > of["zero", "model"].wrong + 0.1
    for kind in (report.prototypes.filtered, report.prototypes.fill):
        assert torch.equal(resemblance(kind, report.means).argmax(1), torch.arange(10))
    assert (resemblance(report.untrained.fill, report.means).argmax(1) == torch.arange(10)).sum() < 8


@pytest.mark.parametrize(
    ("noise", "shuffled", "zero", "expected"),
    [(0.1, 0.1, 0.1, True), (0.1, 0.1, -0.1, True), (0.1, 0.0, 0.1, False), (-0.1, 0.1, 0.1, False)],
)
def test_the_claim_rests_on_noise_and_shuffled_fills(noise, shuffled, zero, expected):
    """Of the judge; what the model itself says counts for nothing."""
    lows = {"noise": noise, "shuffled": shuffled, "zero": zero}
    judge = tuple(Control(name, "judge", 0, 0, 0, lows.get(name, 0), 1) for name in CONTROLS)
    model = tuple(Control(name, "model", 0, 0, 0, -1, 1) for name in CONTROLS)
    none = Prototypes(*[torch.zeros(0)] * 5)
    assert Report((0, 1), none, none, torch.zeros(0), model + judge, 1, 1, 0).supported is expected
    assert Report((0, 1), none, none, torch.zeros(0), model, 1, 1, 0).supported is None


def test_progressive_fills_need_no_picture(digits, models):
    """Nothing of the picture is left, and the network still sees its class; from a blank sheet, too."""
    images, labels = (each[TEST] for each in digits)
    for mode in ("progressive", "blank"):
        report = study(models[0], images, labels, Filling(mode=mode, patch=2), masks=1, judge=models[1])
        of = {(each.name, each.by): each for each in report.controls}
        assert of["zero", "model"].right < 0.2 and of["right class", "model"].right > 0.9
        assert of["wrong class", "model"].wrong > 0.9 and report.supported


PALETTE = torch.tensor(list(itertools.product((0.1, 0.45, 0.8), repeat=3)))[[1, 3, 5, 9, 11, 15, 19, 21, 23, 25]]


def paint(images: Tensor, colours: Tensor) -> Tensor:
    """White digits before a background of one of ten colours."""
    return torch.maximum(images, PALETTE[colours][:, :, None, None] * (images < 0.3))


def test_a_model_that_sees_the_background_alone_is_found_out(digits):
    """It recognises its own fills nearly always; but a judge of the digits does not, and the fills show the colours."""
    images, labels = digits
    colours = torch.tensor(np.random.default_rng(5).integers(0, 10, len(labels)))
    cue = train(paint(images, colours)[TRAIN], colours[TRAIN], 0, 6)
    shape = train(paint(images, colours)[OTHER], labels[OTHER], 1, 15)
    cued, truth = paint(images, labels)[TEST], labels[TEST]  # the colour is the class
    of_cue, of_shape = study(cue, cued, truth, judge=shape), study(shape, cued, truth, judge=cue)
    assert of_cue.controls[6].name == "right class" and of_cue.controls[6].right > 0.95
    assert of_cue.supported is False
    likeness = []
    for report in (of_cue, of_shape):
        shade = report.prototypes.fill.mean((2, 3))
        own = [each - each.mean(1, keepdim=True) for each in (shade, PALETTE)]  # the hue, without the brightness
        likeness.append(np.corrcoef(own[0].flatten(), own[1].flatten())[0, 1])
    assert likeness[0] > 0.5 and likeness[1] < 0.3


# --- Small parts


def test_paired_interval_is_that_of_bonett_and_price():
    """From their counts: of n pairs, `better` differ one way and `worse` the other."""
    for n, better, worse in ((30, 9, 2), (100, 0, 0), (12, 12, 0), (1, 1, 0)):
        p, q = (better + 1) / (n + 2), (worse + 1) / (n + 2)
        reach = 1.959964 * np.sqrt((p + q - (p - q) ** 2) / (n + 2))
        expected = np.clip([p - q - reach, p - q + reach], -1, 1)
        np.testing.assert_allclose(paired_interval(better - worse, better + worse, n), expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "p", "q"), [(20, 0.3, 0.1), (60, 0.05, 0.01), (200, 0.4, 0.4)])
def test_paired_interval_covers(n, p, q):
    """In 95 % of 20,000 samples, or more: so it is said for small n, where the plain interval covers less."""
    draws = np.random.default_rng(0).multinomial(n, [p, q, 1 - p - q], 20_000)
    ends = np.array([paired_interval(a - b, a + b, n) for a, b, _ in draws])
    assert ((ends[:, 0] <= p - q) & (p - q <= ends[:, 1])).mean() > 0.945


def test_resemblance_is_pearsons():
    rng = np.random.default_rng(0)
    pictures, means = rng.normal(size=(2, 5, 3, 4, 4))
    expected = np.corrcoef(pictures.reshape(5, -1), means.reshape(5, -1))[:5, 5:]
    np.testing.assert_allclose(resemblance(torch.tensor(pictures), torch.tensor(means)), expected, atol=1e-12)


def test_random_weights():
    trained = nn.Sequential(nn.Conv2d(8, 200, 3), nn.BatchNorm2d(200), nn.Flatten(), nn.Linear(200, 400))
    trained(torch.rand((4, 8, 3, 3), generator=torch.Generator().manual_seed(0)))
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    state = torch.get_rng_state()
    got = random_weights(trained, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    for layer, fan_in in ((got[0], 72), (got[3], 200)):
        np.testing.assert_allclose(layer.weight.std().item(), np.sqrt(2 / fan_in), rtol=0.02)  # 14,400 values and more
        assert abs(layer.weight.mean()) < 0.01 and not layer.bias.any()
    fresh = nn.BatchNorm2d(200).state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in got[1].state_dict().items())
    assert torch.equal(random_weights(trained, 1)[3].weight, got[3].weight)
    assert not torch.equal(random_weights(trained, 2)[3].weight, got[3].weight)


def test_training_goes_on_as_before(digits, models):
    """A study in the middle of training changes neither weights, gradients and statistics nor modes."""
    images, labels = (each[TRAIN][:64] for each in digits)

    def step(between: bool) -> list[Tensor]:
        model = network(1, 3).train()
        F.cross_entropy(model(images), labels).backward()
        if between:
            study(model, images, labels, masks=1, judge=models[1])
        F.cross_entropy(model(images), labels).backward()
        assert all(module.training for module in model.modules())
        return [*model.state_dict().values(), *(p.grad for p in model.parameters())]

    assert all(map(torch.equal, step(True), step(False)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": 0}, "masks is 0, expected at least 1 a picture"),
        ({"classes": [4]}, r"classes are \(4,\), expected at least 2 different labels >= 0"),
        ({"classes": [4, 4]}, "expected at least 2 different labels"),
        ({"classes": [-1, 4]}, "expected at least 2 different labels >= 0"),
        ({"classes": [0, 1]}, r"labels \[2, 3\] are not among classes \(0, 1\)"),
        ({"batches": []}, "batches is empty, expected pictures of each class"),
        ({"judge": network(1, 0)}, "judge has the model's weights, expected a classifier that was trained without it"),
        ({"seed": -1}, "seed is -1, expected 0 <= seed"),
    ],
)
def test_bad_input(options, message):
    given = {
        "batches": [(torch.zeros((4, 1, 8, 8)), torch.arange(4), np.arange(4))],
        "classes": range(10),
        **options,
    }
    with pytest.raises(ValueError, match=message):
        make_prototypes(network(1, 0), how=HOW, **given)
