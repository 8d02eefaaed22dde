"""GradMix in a training step: against loops written from the equations, and what it must leave alone."""

import copy
import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import join, leave, run_two_ranks
from seeing import LAYERS, Net, all_equal, grads_of, hooks_on, pictures
from torch import Tensor, nn

import fastmix.learn.gradmix as module
from fastmix import Key
from fastmix.attribution import AttributionHook
from fastmix.learn import GradMixStep, contrastive_objective, nt_xent, supcon
from fastmix.learn.gradmix import MixedViews, StepOutput

KEY = Key(7, 3)
B = 6
IDS = np.array([40, 7, 1 << 33, 3, 12, 900])
LABELS = torch.tensor([0, 1, 0, 2, 1, 2])


def gradmix(**changes: Any) -> GradMixStep:
    return GradMixStep.paper(**{"layers": LAYERS, **changes})


def views(n: int = B, height: int = 12, width: int = 10, seed: int = 0) -> Tensor:
    return pictures(2 * n, height, width, seed)


def run(settings: GradMixStep, net: nn.Module, x: Tensor, **options: Any) -> StepOutput:
    return settings.step(net, x, LABELS, key=KEY, ids=IDS, **options)


def mixed_of(out: StepOutput) -> MixedViews:
    assert out.mixed is not None
    return out.mixed


def sides(boxes: Tensor) -> Tensor:
    return torch.stack([boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]], 1)


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """(N, H, W) bool, by slices."""
    mask = torch.zeros(len(boxes), height, width, dtype=torch.bool)
    for row, (y0, y1, x0, x1) in zip(mask, boxes.tolist(), strict=True):
        row[y0:y1, x0:x1] = True
    return mask


# ------------------------------------------------------------------ the equations, in loops


def naive_maps(settings: GradMixStep, z: Tensor, activations: list[Tensor], size: tuple[int, int]) -> Tensor:
    target = naive_nt_xent(z, settings.temperature) * (1 if settings.sign == "loss" else -1)
    layers = []
    for a, g in zip(activations, torch.autograd.grad(target, activations, retain_graph=True), strict=True):
        m = (a * g.clamp(min=0)).sum(1).detach()
        low = m.min() if settings.norm == "batch" else m.amin((1, 2), keepdim=True)
        high = m.max() if settings.norm == "batch" else m.amax((1, 2), keepdim=True)
        up = F.interpolate(((m - low) / (high - low))[:, None], size, mode="bilinear", align_corners=False)
        layers.append(up[:, 0])
    return torch.stack(layers).amax(0) if settings.fuse == "max" else layers[0] + layers[1]


def naive_nt_xent(z: Tensor, tau: float) -> Tensor:
    unit, n = F.normalize(z), len(z)
    losses = [denominator(unit, i, tau) - unit[i] @ unit[(i + n // 2) % n] / tau for i in range(n)]
    return torch.stack(losses).mean()


def denominator(unit: Tensor, i: int, tau: float) -> Tensor:
    return torch.stack([unit[i] @ unit[a] / tau for a in range(len(unit)) if a != i]).exp().sum().log()


def naive_objective(settings: GradMixStep, z: Tensor, zm: Tensor, weight: Tensor) -> Tensor:
    unit, unit_m, n, tau = F.normalize(z), F.normalize(zm), len(z), settings.temperature
    labels = LABELS.tolist() * 2
    sup, mix = [], []
    for i in range(n):
        j = (i + n // 2) % n
        others = [p for p in range(n) if p != i and labels[p] == labels[i]]
        d = denominator(unit, i, tau)
        sup.append(torch.stack([d - unit[i] @ unit[p] / tau for p in others]).mean())
        if settings.mix_loss == "repo":
            mix.append(weight[j] * (d - unit[i] @ unit_m[j] / tau))
    if settings.mix_loss == "symmetric":
        first, second = unit[: n // 2], unit[n // 2 :]
        for clean, masked, w in ((first, unit_m[n // 2 :], weight[n // 2 :]), (second, unit_m[: n // 2], weight)):
            rows = torch.cat([clean, masked])
            for i in range(n):
                loss = denominator(rows, i, tau) - rows[i] @ rows[(i + n // 2) % n] / tau
                mix.append(w[i % (n // 2)] * loss)
    ssl = naive_nt_xent(z, tau) if settings.mix_combine == "add" else 0
    scale = tau / settings.base_temperature if settings.base_temperature else 1
    total = settings.theta * torch.stack(sup).mean() + settings.lam * (ssl + torch.stack(mix).mean())
    return scale * total


def naive_box(settings: GradMixStep, cam: np.ndarray, height: int, width: int) -> list[int]:
    if settings.locate == "peak":
        y, x = np.unravel_index(cam.argmax(), cam.shape)
        ends = (y - height // 2, y + height // 2, x - width // 2, x + width // 2)
        return [max(ends[0], 0), min(ends[1], cam.shape[0]), max(ends[2], 0), min(ends[3], cam.shape[1])]
    best: tuple[float, list[int]] = (-math.inf, [])
    for y in range(cam.shape[0] - height + 1):
        for x in range(cam.shape[1] - width + 1):
            total = cam[y : y + height, x : x + width].sum()
            best = max(best, (total, [y, y + height, x, x + width]), key=lambda pair: pair[0])
    return best[1]


def naive_image(settings: GradMixStep, x: Tensor, row: int, box: list[int], other: int) -> Tensor:
    image, (y0, y1, x0, x1) = x[row].clone(), box
    if settings.fill == "paste_other":
        # channels_last, because torch 2.14's planar result is wrong where it is one pixel wide and several high
        source, size = x[other][None].to(memory_format=torch.channels_last), (y1 - y0, x1 - x0)
        part = F.interpolate(source, size, mode="bilinear", align_corners=False, antialias=True)[0]
    else:
        part = {"paste_crop": x[other][:, y0:y1, x0:x1], "zero": torch.tensor(0.0)}[settings.fill]
    image[:, y0:y1, x0:x1] = part
    return image


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (gradmix(), (12, 10)),
        (gradmix(size_range=(0.6, 1), temperature=0.5, mix_loss="symmetric", theta=0.3, lam=1.7), (12, 10)),
        (gradmix(fill="paste_crop", norm="batch", fuse="max", sign="neg_loss", weight_mode="kept"), (9, 14)),
        (gradmix(mix_combine="replace", weight_mode="none", base_temperature=0.07), (12, 10)),
        (GradMixStep.repo(layers=LAYERS, fill="zero"), (12, 12)),
    ],
    ids=["paper", "symmetric", "crop", "replace", "repo"],
)
def test_gradients_are_those_of_the_equations(settings: GradMixStep, size: tuple[int, int]) -> None:
    x = views(B, *size).double()
    net, plain = Net(inplace=False).double(), Net(inplace=False).double()
    out = run(settings, net, x)
    mixed = mixed_of(out)
    out.loss.backward()

    first = plain.body[:2](x)
    second = plain.body[2:](first)
    z = plain.head(second.mean((2, 3)))
    cams = naive_maps(settings, z, [first, second], size)
    sizes = sides(mixed.boxes)
    if settings.locate == "peak":  # boxes may be cut off there, but the weight tells the side
        side = math.sqrt((1 - float(mixed.weight[0])) * math.prod(size))
        assert side == pytest.approx(round(side), abs=1e-4)
        sizes = torch.full((2 * B, 2), round(side))
    images, weight = x.clone(), torch.full((2 * B,), 1 - round(side) ** 2 / 144 if settings.locate == "peak" else 0.0)
    for row in range(B if settings.views == "first" else 2 * B):
        height, width = sizes[row].tolist()
        box = naive_box(settings, cams[row].numpy(), height, width)
        assert mixed.boxes[row].tolist() == box
        other = int(mixed.partner[row])
        if settings.fill != "zero":
            assert (other < B) == (row >= B) and other % B != row % B  # the other view of somebody else
        images[row] = naive_image(settings, x, row, box, other)
        if settings.locate != "peak":
            covered = height * width / math.prod(size)
            weight[row] = {"masked": covered, "kept": 1 - covered, "none": 1}[settings.weight_mode]
    torch.testing.assert_close(mixed.images, images, rtol=0, atol=1e-12)
    torch.testing.assert_close(mixed.weight, weight, rtol=0, atol=1e-6)
    loss = naive_objective(settings, z, plain(images), mixed.weight.double())
    loss.backward()
    torch.testing.assert_close(out.loss, loss, rtol=1e-12, atol=0)
    for got, expected in zip(grads_of(net), grads_of(plain), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


def test_the_step_is_its_pieces() -> None:
    settings, x = gradmix(attr_loss="total"), views()
    net, plain = Net(), Net()
    out = run(settings, net, x)
    out.loss.backward()
    with settings.hook(plain) as hook:
        z = plain(x)
        maps = settings.maps(hook, z, LABELS, size=(12, 10))
    mixed = settings.mix(x, maps, KEY, IDS)
    loss = settings.objective(z, LABELS, plain(mixed.images), mixed.weight)
    loss.backward()
    assert torch.equal(loss, out.loss) and all_equal(grads_of(net), grads_of(plain))
    for name, value in vars(mixed).items():
        assert torch.equal(value, getattr(mixed_of(out), name)) and not value.requires_grad


@pytest.mark.parametrize("attr_loss", ["ssl", "total", "supcon", "positive_similarity"])
@pytest.mark.parametrize("sign", ["loss", "neg_loss"])
def test_the_loss_of_the_maps(attr_loss: str, sign: Any) -> None:
    settings, net, x = gradmix(attr_loss=attr_loss, sign=sign, theta=0.4, lam=2.0), Net(), views()
    with AttributionHook(net, LAYERS) as hook:
        z = net(x)
        target = {
            "ssl": nt_xent(z),
            "supcon": supcon(z, LABELS),
            "total": 0.4 * supcon(z, LABELS) + 2 * nt_xent(z),
            "positive_similarity": F.cosine_similarity(z, z.roll(B, 0)).mean(),
        }[attr_loss]
        expected = hook.maps(target, size=(12, 10), sign=sign)
    got = mixed_of(run(settings, Net(), x)).maps
    assert got is not None and expected.any()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ presets


def weights_of(settings: GradMixStep, steps: int, n: int = 16) -> np.ndarray:
    x, found = torch.zeros(2 * n, 1, 32, 32), []
    for epoch in range(steps):
        found.append(settings.mix(x, pictures(2 * n, 32, 32)[:, 0], Key(1, epoch), np.arange(n)).weight.numpy())
    return np.stack(found)


def test_the_papers_sizes_and_weights() -> None:
    """Side gamma ~ U(.1, .5) of 32 px, rounded: P(k) is the share of gammas that round to k; weight k^2 / 32^2."""
    sides_px = np.arange(3, 17)
    share = (np.minimum(sides_px + 0.5, 16) - np.maximum(sides_px - 0.5, 3.2)).clip(0) / 12.8
    assert share.sum() == pytest.approx(1) and share @ sides_px**2 / 1024 == pytest.approx(0.10333, abs=1e-3)
    got = weights_of(GradMixStep.paper(), 60)
    px = np.sqrt(got * 1024)
    np.testing.assert_allclose(px, px.round(), atol=1e-4)
    count = np.array([(px.round() == k).sum() for k in sides_px])
    assert count.sum() == got.size == 1920
    deviation = (count - got.size * share) ** 2 / (got.size * share)
    assert deviation.sum() < 34.5  # chi-squared with 13 degrees of freedom, 0.1 %
    assert len(set(px[0].round())) > 5  # each view has its own


def test_the_programs_sizes_and_weights() -> None:
    """One side floor(32 sqrt(a)), a ~ U(.1, .5), for a batch; all rows weigh 1 - side^2 / 32^2."""
    got = weights_of(GradMixStep.repo(), 600, 2)
    assert (got == got[:, :1]).all()
    px = np.sqrt((1 - got[:, 0]) * 1024)
    np.testing.assert_allclose(px, px.round(), atol=1e-3)
    sides_px = np.arange(10, 23)
    area = np.clip(np.append(sides_px, 23) ** 2 / 1024, 0.1, 0.5)
    share = np.diff(area) / 0.4
    count = np.array([(px.round() == k).sum() for k in sides_px])
    assert share.sum() == pytest.approx(1) and count.sum() == 600
    assert ((count - 600 * share) ** 2 / (600 * share)).sum() < 32.9  # 12 degrees of freedom, 0.1 %
    assert share @ (1 - sides_px**2 / 1024) == pytest.approx(0.70, abs=0.03)


def test_the_program_puts_noise_around_the_peak_of_the_first_view() -> None:
    settings, x = GradMixStep.repo(layers=LAYERS), views(B, 32, 32)
    assert (settings.lam, settings.theta, settings.temperature, settings.base_temperature) == (1.2, 1, 0.05, 0.07)
    assert (settings.norm, settings.fuse, settings.attr_loss, settings.sign) == ("batch", "sum", "ssl", "loss")
    assert (settings.mix_loss, settings.mix_combine) == ("repo", "add")
    maps = torch.zeros(2 * B, 32, 32)
    peaks = [(16, 16), (0, 0), (31, 31), (0, 16), (17, 2), (30, 1)]
    for row, peak in enumerate(peaks * 2):
        maps[row][peak] = 1
    mixed = settings.mix(x, maps, KEY, IDS)
    half = round(math.sqrt((1 - float(mixed.weight[0])) * 1024)) // 2
    for box, (y, x0) in zip(mixed.boxes[:B].tolist(), peaks, strict=True):
        assert box == [max(y - half, 0), min(y + half, 32), max(x0 - half, 0), min(x0 + half, 32)]
    assert torch.equal(mixed.images[B:], x[B:]) and not mixed.boxes[B:].any() and not mixed.random.any()
    mask = inside(mixed.boxes, 32, 32)[:, None].expand_as(x)
    assert torch.equal(mixed.images[~mask], x[~mask])
    noise = [
        image[:, box[0] : box[1], box[2] : box[3]] for image, box in zip(mixed.images, mixed.boxes[:B], strict=False)
    ]
    for part in noise:
        assert (part == part[:1]).all() and 0 <= part.min() and part.max() <= 1
    pixels = np.concatenate([part[0].flatten() for part in noise])
    assert len(set(pixels.tolist())) > 0.99 * len(pixels)
    assert np.histogram(pixels, 10, (0, 1))[0].min() > 0.07 * len(pixels)


# ------------------------------------------------------------------ choices of the mix


def test_one_view() -> None:
    x = views()
    both, first = (mixed_of(run(gradmix(views=kind), Net(), x)) for kind in ("both", "first"))
    assert torch.equal(both.boxes[:B], first.boxes[:B]) and torch.equal(both.images[:B], first.images[:B])
    assert torch.equal(first.images[B:], x[B:]) and not torch.equal(both.images[B:], x[B:])
    assert first.partner.tolist() == [*both.partner[:B].tolist(), *range(B, 2 * B)]
    assert not first.weight[B:].any() and not first.boxes[B:].any()
    random = gradmix(views="first", locate="random").mix(x, None, KEY, IDS).random
    assert random.tolist() == [True] * B + [False] * B
    kept = mixed_of(run(gradmix(views="first", weight_mode="kept"), Net(), x)).weight
    torch.testing.assert_close(kept, 1 - first.weight)


def test_fills() -> None:
    x = views()
    mask = inside(mixed_of(run(gradmix(), Net(), x)).boxes, 12, 10)[:, None].expand_as(x)
    for fill, content in (("mean", x.mean((2, 3), keepdim=True).expand_as(x)), ("zero", torch.zeros_like(x))):
        mixed = mixed_of(run(gradmix(fill=fill), Net(), x))
        assert torch.equal(mixed.images, torch.where(mask, content, x))
        assert mixed.partner.tolist() == list(range(2 * B))
    mixed = mixed_of(run(gradmix(fill="paste_crop"), Net(), x))
    assert torch.equal(mixed.images, torch.where(mask, x[mixed.partner], x))


def test_controls_have_the_same_sizes() -> None:
    x, net = views(), Net()
    best, least, random = (mixed_of(run(gradmix(locate=kind), net.eval(), x)) for kind in ("boxsum", "least", "random"))
    assert torch.equal(sides(best.boxes), sides(least.boxes)) and torch.equal(sides(best.boxes), sides(random.boxes))
    assert torch.equal(best.weight, random.weight) and torch.equal(best.partner, random.partner)
    assert best.maps is not None and random.maps is None and random.random.all() and not best.random.any()
    for i, cam in enumerate(best.maps):
        h, w = sides(best.boxes)[i].tolist()
        sums = F.avg_pool2d(cam[None, None], (h, w), 1)[0, 0]
        for mixed, value in ((best, sums.max()), (least, sums.min())):
            y, x0 = mixed.boxes[i, [0, 2]].tolist()
            torch.testing.assert_close(sums[y, x0], value, rtol=0, atol=1e-6)


def test_random_windows_need_no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AttributionHook", None)
    assert run(GradMixStep(layers=(), locate="random"), Net(), views()).loss.isfinite()


# ------------------------------------------------------------------ draws


def test_sizes_belong_to_samples() -> None:
    """Whatever the batch: half of it on each rank, in another order."""
    settings, x = gradmix(locate="random"), views()
    whole = settings.mix(x, None, KEY, IDS)
    for part in ([0, 1, 2], [5, 3, 4], [2]):
        rows = part + [i + B for i in part]
        got = settings.mix(x[rows], None, KEY, torch.from_numpy(IDS[part]))
        assert torch.equal(got.boxes, whole.boxes[rows]) and torch.equal(got.weight, whole.weight[rows])
    for other in (Key(7, 4), Key(8, 3)):
        assert not torch.equal(settings.mix(x, None, other, IDS).boxes, whole.boxes)
    assert torch.equal(settings.mix(x, None, KEY, list(IDS)).boxes, whole.boxes)
    assert not torch.equal(sides(whole.boxes[:B]), sides(whole.boxes[B:]))


@pytest.mark.parametrize("size_draw", ["per_image", "per_batch"])
def test_permuting_the_batch_permutes_the_step(size_draw: str) -> None:
    settings, x = gradmix(size_draw=size_draw), views().double()
    order = [3, 0, 5, 1, 4, 2]
    rows = order + [i + B for i in order]
    out = run(settings, Net().double(), x)
    moved = settings.step(Net().double(), x[rows], LABELS[order], key=KEY, ids=IDS[order])
    one, two = mixed_of(out), mixed_of(moved)
    assert torch.equal(two.boxes, one.boxes[rows])
    torch.testing.assert_close(two.images, one.images[rows])
    torch.testing.assert_close(moved.loss, out.loss)
    assert torch.tensor(rows)[two.partner].tolist() == one.partner[rows].tolist()


def test_partners_stay_in_their_group() -> None:
    n = 21
    x, ids = pictures(2 * n, 4, 4), np.arange(n) * 3
    mixed = gradmix(locate="random").mix(x, None, KEY, ids)
    mate = mixed.partner[:n] - n
    assert sorted(mate.tolist()) == list(range(n)) and not (mate == torch.arange(n)).any()
    assert (mate // 16 == torch.arange(n) // 16).all() and torch.equal(mixed.partner[n:], mate)
    alone = gradmix(locate="random", group=10, size_range=(0.5, 0.5)).mix(x, None, KEY, ids)
    for row in (20, 41):  # the group of one is covered by its mean colour
        y0, y1, x0, x1 = alone.boxes[row].tolist()
        colour = x[row].mean((1, 2))[:, None, None].expand(3, 2, 2)
        torch.testing.assert_close(alone.images[row, :, y0:y1, x0:x1], colour)
        assert alone.partner[row] == row
    assert (alone.partner == torch.arange(2 * n)).sum() == 2


def test_positions_stand_for_samples() -> None:
    settings, x, net = gradmix(), views(), Net().eval()
    first, again, second = (settings.step(net, x, LABELS, key=KEY, index=i) for i in (0, 0, 1))
    assert torch.equal(mixed_of(first).boxes, mixed_of(again).boxes)
    assert not torch.equal(sides(mixed_of(first).boxes), sides(mixed_of(second).boxes))


def test_which_steps_mix() -> None:
    assert [gradmix(every=3).mixes(KEY, i) for i in range(7)] == [True, False, False, True, False, False, True]
    assert [gradmix(start_epoch=2).mixes(Key(0, epoch)) for epoch in range(4)] == [False, False, True, True]
    coins = np.array([gradmix(prob=0.3).mixes(KEY, i) for i in range(1000)])
    assert abs(coins.mean() - 0.3) < 4 * math.sqrt(0.21 / 1000)
    assert (coins[::2] != coins[1::2]).mean() == pytest.approx(0.42, abs=4 * math.sqrt(0.42 * 0.58 / 500))
    assert coins.tolist() != [gradmix(prob=0.3).mixes(Key(7, 4), i) for i in range(1000)]
    assert not any(gradmix(prob=0.0).mixes(KEY, i) for i in range(100))
    assert not gradmix(lam=0.0).mixes(KEY)
    net, calls = Net(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    for index in range(4):
        out = run(gradmix(every=2, mix_combine="replace"), net, views(), index=index)
        assert (out.mixed is None) == bool(index % 2)
    torch.testing.assert_close(out.loss, contrastive_objective(Net()(views()), LABELS), rtol=1e-4, atol=0)
    assert len(calls) == 2 + 1 + 2 + 1


# ------------------------------------------------------------------ terms that are off


def test_without_lambda_nothing_is_attributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AttributionHook", None)
    net, plain, calls = Net(), Net(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    out = run(gradmix(lam=0), net, views())
    out.loss.backward()
    supcon(plain(views()), LABELS).backward()
    assert out.mixed is None and len(calls) == 1
    for got, expected in zip(grads_of(net), grads_of(plain), strict=True):
        torch.testing.assert_close(got, expected)


def test_without_theta_there_need_be_no_labels() -> None:
    out = gradmix(theta=0).step(Net(), views(), key=KEY, ids=IDS)
    with_labels = run(gradmix(theta=0), Net(), views())
    assert torch.equal(out.loss, with_labels.loss)
    assert gradmix(theta=0, lam=0).step(Net(), views(), key=KEY, ids=IDS).loss == 0


# ------------------------------------------------------------------ maps that say nothing


def test_empty_maps_fall_back_to_random_windows() -> None:
    net, x = Net(), views()
    nn.init.zeros_(net.head.weight)
    mixed = mixed_of(run(gradmix(), net, x))
    assert mixed.random.all() and mixed.maps is not None and not mixed.maps.any()
    assert torch.equal(mixed.boxes, gradmix(locate="random").mix(x, None, KEY, IDS).boxes)
    assert 0 <= mixed.boxes.min() and (mixed.boxes[:, 1] <= 12).all() and (mixed.boxes[:, 3] <= 10).all()
    assert len({tuple(box) for box in mixed.boxes[:, [0, 2]].tolist()}) > 5
    assert not mixed_of(run(gradmix(), Net(), x)).random.any()


def test_single_maps_fall_back() -> None:
    maps = torch.from_numpy(np.random.default_rng(0).random((2 * B, 12, 10))).float()
    bad = {1: math.nan, 4: math.inf, 7: -math.inf}
    broken = maps.clone()
    for row, value in bad.items():
        broken[row, 3, 3] = value
    broken[9] = 0.7
    good, got = gradmix().mix(views(), maps, KEY, IDS), gradmix().mix(views(), broken, KEY, IDS)
    random = gradmix(locate="random").mix(views(), None, KEY, IDS)
    assert got.random.nonzero().flatten().tolist() == [1, 4, 7, 9] and not good.random.any()
    assert torch.equal(got.boxes, torch.where(got.random[:, None], random.boxes, good.boxes))
    assert got.images.isfinite().all()


def test_a_batch_of_one() -> None:
    net, x = Net(), views(1)
    out = gradmix(size_range=(0.5, 0.5)).step(net, x, LABELS[:1], key=KEY, ids=[5])
    mixed = mixed_of(out)
    out.loss.backward()
    assert all(g.isfinite().all() for g in grads_of(net)) and mixed.random.all()
    for row in (0, 1):
        y0, y1, x0, x1 = mixed.boxes[row].tolist()
        assert (y1 - y0, x1 - x0) == (6, 5)
        colour = x[row].mean((1, 2))[:, None, None].expand(3, 6, 5)
        torch.testing.assert_close(mixed.images[row, :, y0:y1, x0:x1], colour)


# ------------------------------------------------------------------ what is left alone


def test_two_forwards_and_nothing_else() -> None:
    """Buffers, modes, hooks and the generator are those after a forward of the clean and one of the mixed views."""
    torch.manual_seed(3)
    net, plain = Net(dropout=0.4), Net(dropout=0.4)
    net.body[0][1].eval()
    plain.body[0][1].eval()
    modes = [m.training for m in net.modules()]
    x = views()
    kept = x.clone()
    out = run(gradmix(), net, x)
    after = torch.get_rng_state()
    assert all(p.grad is None for p in net.parameters())
    torch.manual_seed(3)
    plain(x)
    plain(mixed_of(out).images)
    assert all_equal(list(net.state_dict().values()), list(plain.state_dict().values()))
    assert net.body[3][1].num_batches_tracked == 2 and torch.equal(after, torch.get_rng_state())
    assert modes == [m.training for m in net.modules()] and hooks_on(net) == 0 and torch.equal(x, kept)


def test_no_hook_stays_after_an_error() -> None:
    net = Net()
    with pytest.raises(ValueError, match="4 labels for 12 rows"):
        gradmix(attr_loss="supcon").step(net, views(), LABELS[:4], key=KEY, ids=IDS)
    assert hooks_on(net) == 0


def live_tensors() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


def test_500_steps_leave_nothing_behind() -> None:
    """With the garbage collector off: nothing waits for it."""
    net, counts, x = Net(), [], views(2, 6, 6)
    settings, optimiser = gradmix(), torch.optim.SGD(net.parameters(), 1e-3)
    gc.collect()
    gc.disable()
    try:
        for index in range(500):
            out = settings.step(net, x, LABELS[:2], key=KEY, index=index)
            out.loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            del out
            if index % 100 == 9:
                counts.append((live_tensors(), hooks_on(net)))
    finally:
        gc.enable()
    assert len(set(counts)) == 1 and len(counts) == 5 and counts[0][1] == 0


@pytest.mark.parametrize("fill", ["paste_other", "paste_crop", "noise", "mean", "zero"])
@pytest.mark.parametrize("kind", ["both", "first"])
def test_channels_last(fill: str, kind: str) -> None:
    x = views().to(memory_format=torch.channels_last)
    settings = gradmix(fill=fill, views=kind, locate="random")
    images = settings.mix(x, None, KEY, IDS).images
    assert images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    torch.testing.assert_close(images, settings.mix(x.contiguous(), None, KEY, IDS).images)


# ------------------------------------------------------------------ kinds of loops


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    net, x = Net(), views(B, 24, 24)
    exact = mixed_of(run(gradmix(), Net(), x)).maps
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
    before = [p.detach().clone() for p in net.parameters()]
    with torch.autocast("cpu", dtype=dtype):
        out = run(gradmix(), net, x, scaler=scaler)
    assert out.loss.dtype == torch.float32
    maps = mixed_of(out).maps
    assert maps is not None and exact is not None and maps.dtype == torch.float32
    assert np.corrcoef(exact.flatten(), maps.flatten())[0, 1] > 0.98
    scaler.scale(out.loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert not any(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_the_scaler_keeps_gradients_and_leaves_maps() -> None:
    """In float16 the maps of a weak gradient vanish without it; in float32 its power of two cancels exactly."""
    x, scaler = views(B, 24, 24), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    maps = []
    for given in (None, scaler):
        weak = Net()
        with torch.no_grad():
            weak.head.weight.mul_(2**-7)
            weak.head.bias.fill_(4)
        with torch.autocast("cpu", dtype=torch.float16):
            maps.append(mixed_of(run(gradmix(layers=["body.4"], temperature=2.0), weak, x, scaler=given)))
    assert maps[0].random.sum() > maps[1].random.sum() == 0
    plain, scaled = (run(gradmix(norm="none"), Net(), x, scaler=given) for given in (None, scaler))
    assert torch.equal(mixed_of(plain).maps, mixed_of(scaled).maps) and torch.equal(plain.loss, scaled.loss)


def test_compiled_models_are_read_uncompiled() -> None:
    torch.compiler.reset()
    net, plain, x = Net(), Net(), views()
    compiled = torch.compile(net, backend="eager")
    for _ in range(2):
        run(gradmix(), compiled, x).loss.backward()
        run(gradmix(), plain, x).loss.backward()
    for got, expected in zip(grads_of(net), grads_of(plain), strict=True):
        torch.testing.assert_close(got, expected)
    assert hooks_on(net) == 0


def test_tokens_are_arranged() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 8, 4, 4)
            self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.cut(x).flatten(2).transpose(1, 2)).mean(1)

    torch.manual_seed(0)
    net, seen = Tokens(), []

    def arrange(tokens: Tensor) -> Tensor:
        seen.append(tuple(tokens.shape))
        return tokens.transpose(1, 2).reshape(len(tokens), -1, 3, 2)

    out = run(GradMixStep.paper(layers=["block"], reshape=arrange), net, views(B, 12, 8))
    assert set(seen) == {(2 * B, 6, 8)} and not mixed_of(out).random.all()
    with pytest.raises(ValueError, match=r"'block' has shape .*token_grid"):
        run(GradMixStep.paper(layers=["block"]), net, views(B, 12, 8))


# ------------------------------------------------------------------ two processes


def train_on_a_rank(rank: int, folder: Path) -> None:
    join(rank, folder)
    net = Net(seed=rank)  # the wrapper gives both the parameters of rank 0
    model = nn.parallel.DistributedDataParallel(net)
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    mixed = []
    for epoch, settings in enumerate((gradmix(), gradmix(prob=0.5))):
        for index in range(20):
            ids = np.arange(4) + 8 * index + 4 * rank
            x = views(4, seed=int(ids[0]))
            out = settings.step(model, x, LABELS[:4], key=Key(0, epoch), ids=ids, index=index)
            mixed.append(out.mixed is not None)
            optimiser.zero_grad()
            out.loss.backward()
            optimiser.step()
    state = {"parameters": [p.detach() for p in net.parameters()], "mixed": mixed, "hooks": hooks_on(net)}
    torch.save({**state, "forwards": int(net.body[0][1].num_batches_tracked)}, folder / f"{rank}.pt")
    leave()


def test_two_ranks_agree(tmp_path: Path) -> None:
    run_two_ranks(train_on_a_rank, tmp_path)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all_equal(one["parameters"], two["parameters"]) and one["mixed"] == two["mixed"]
    assert one["hooks"] == 0 and one["forwards"] == 40 + sum(one["mixed"]) and 20 < sum(one["mixed"]) < 40
    start = list(Net(seed=0).parameters())
    assert not any(torch.equal(a, b) for a, b in zip(start, one["parameters"], strict=True))


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size_range": (0.5, 0.1)}, r"size_range is \(0.5, 0.1\), expected 0 < lo <= hi <= 1"),
        ({"size_range": (0.0, 0.1)}, r"size_range is \(0.0, 0.1\)"),
        ({"size_range": (0.1, 1.5)}, r"size_range is \(0.1, 1.5\)"),
        ({"theta": -1}, "theta is -1, expected a finite number from 0"),
        ({"lam": math.inf}, "lam is inf, expected a finite number"),
        ({"lam": math.nan}, "lam is nan, expected a finite number"),
        ({"temperature": 0}, "temperature is 0, expected a finite number above 0"),
        ({"base_temperature": -0.1}, "base_temperature is -0.1"),
        ({"prob": 1.5}, "prob is 1.5, expected a finite number from 0 to 1"),
        ({"every": 0}, "every is 0, expected a finite number from 1"),
        ({"start_epoch": -1}, "start_epoch is -1"),
        ({"group": 0}, "group is 0"),
        ({"layers": ()}, "layers are empty, expected names"),
        ({"locate": "max"}, "locate is 'max', expected one of 'boxsum', 'peak', 'least', 'random'"),
        ({"fill": "black"}, "fill is 'black', expected one of 'paste_other'"),
        ({"size_mode": "width"}, "size_mode is 'width', expected one of 'side', 'area'"),
        ({"norm": None}, "norm is None, expected one of"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradMixStep.paper(**settings)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"layers": ["body.7"]}, {}, r"Net has no layer 'body.7', expected one such as '.*body.4"),
        ({"layers": ["head"]}, {}, r"'head' has shape \(12, 5\), expected \(N, C, h, w\)"),
        ({}, {"x": views()[:5]}, r"x has shape \(5, 3, 12, 10\), expected \(2B, C, H, W\)"),
        ({}, {"x": views()[:0]}, r"x has shape \(0, 3, 12, 10\)"),
        ({}, {"x": views()[:, 0]}, r"x has shape \(12, 12, 10\)"),
        ({}, {"ids": None}, "ids and index are None: give ids"),
        ({}, {"ids": np.arange(12)}, r"ids are int64 \(12,\), expected integers \(6,\)"),
        ({}, {"ids": np.arange(6.0)}, r"ids are float64 \(6,\), expected integers"),
        ({}, {"ids": np.arange(6) - 1}, "ids run from -1 to 4"),
        ({}, {"labels": None}, "theta is 1.0, but labels are None"),
        ({"attr_loss": "supcon", "theta": 0}, {"labels": None}, 'attr_loss is "supcon", but labels are None'),
        ({}, {"labels": LABELS[:4]}, "4 labels for 12 rows"),
        ({"every": 2}, {}, "index is None, but every is 2 and prob 1.0"),
        ({"prob": 0.5}, {}, "index is None, but every is 1 and prob 0.5"),
        ({}, {"model": nn.Sequential()}, "has no layer 'body.1'"),
    ],
)
def test_bad_steps(changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    arguments = {"model": Net(), "x": views(), "labels": LABELS, "ids": IDS, **options}
    with pytest.raises(ValueError, match=message):
        GradMixStep(**{"layers": LAYERS, **changes}).step(key=KEY, **arguments)


def test_bad_dtypes_and_modes() -> None:
    with pytest.raises(TypeError, match=r"x is torch.uint8, expected floating pictures: normalise"):
        run(gradmix(), Net(), torch.zeros(12, 3, 12, 10, dtype=torch.uint8))
    net = Net()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, pytest.raises(RuntimeError, match="gradients are off"):
            run(gradmix(), net, views())
    assert net.body[0][1].num_batches_tracked == 0  # none of these ran the model


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda z: (z, z), "returned tuple"),
        (lambda z: z[:, :, None], "shape"),
        (lambda z: z[:3], r"features \(12, D\)"),
    ],
)
def test_bad_models(answer: Any, message: str) -> None:
    net = copy.deepcopy(Net())
    net.register_forward_hook(lambda _module, _args, z: answer(z))
    with pytest.raises(ValueError, match=message):
        run(gradmix(locate="random"), net, views())


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (None, r"maps are None, expected \(12, 12, 10\): make them with size=\(12, 10\)"),
        (torch.zeros(12, 6, 5), r"maps are of shape \(12, 6, 5\), expected \(12, 12, 10\)"),
        (torch.zeros(6, 12, 10), r"maps are of shape \(6, 12, 10\)"),
    ],
)
def test_bad_maps(maps: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradmix().mix(views(), maps, KEY, IDS)
