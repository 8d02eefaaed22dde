from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seeing import LAYERS, Net, loss_of, pictures
from torch import Tensor, nn

from fastmix.attribution import (
    AttributionHook,
    Fallbacks,
    fuse_maps,
    grad_cam,
    hires_cam,
    input_gradient,
    layer_cam,
    normalise_maps,
    token_grid,
)

A = torch.tensor([[[[1.0, 2], [3, 0]], [[0, 1], [1, 2]]]])
G = torch.tensor([[[[0.5, -1], [1, 2]], [[1, 1], [-2, 0.5]]]])
CAMS = ["layer_cam", "grad_cam", "hires_cam"]


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (layer_cam, [[0.5, 1], [3, 1]]),
        (hires_cam, [[0.5, 0], [1, 1]]),  # [[.5, -1], [1, 1]] before the relu
        (grad_cam, [[0.625, 1.375], [2, 0.25]]),
        (input_gradient, [[1, 1], [2, 2]]),
    ],
)
def test_closed_forms(make: Callable[[Tensor, Tensor], Tensor], expected: list[list[float]]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        got = make(A.to(dtype), G.to(dtype))
        assert got.dtype == torch.float32
        np.testing.assert_array_equal(got, [expected])


def test_normalised_and_upsampled() -> None:
    maps, flat, nonfinite = normalise_maps(layer_cam(A, G))
    np.testing.assert_allclose(maps, [[[0, 0.2], [1, 0.2]]], rtol=1e-6)
    assert not flat.any() and not nonfinite.any()
    np.testing.assert_allclose(
        fuse_maps([maps], (4, 4)),
        [[[0, 0.05, 0.15, 0.2], [0.25, 0.2375, 0.2125, 0.2], [0.75, 0.6125, 0.3375, 0.2], [1, 0.8, 0.4, 0.2]]],
        rtol=1e-6,
    )


def test_normalised_over_the_batch_and_scaled() -> None:
    maps = torch.tensor([[[0.0, 1]], [[2, 4]]])
    np.testing.assert_allclose(normalise_maps(maps, "batch")[0], [[[0, 0.25]], [[0.5, 1]]])
    np.testing.assert_allclose(normalise_maps(maps, "image")[0], [[[0, 1]], [[0, 1]]])
    np.testing.assert_array_equal(normalise_maps(maps, "none")[0], maps)
    low, high = np.tanh(1), np.tanh(2)
    np.testing.assert_allclose(normalise_maps(maps, "none", "tanh")[0], [[[0, high]], [[low, high]]], rtol=1e-6)
    np.testing.assert_allclose(normalise_maps(maps, "batch", "tanh")[0], [[[0, 1]], [[low / high, 1]]], rtol=1e-6)


def test_fused() -> None:
    small, large = torch.tensor([[[0.5]]]), torch.tensor([[[0.0, 1], [0.25, 0.75]]])
    np.testing.assert_array_equal(fuse_maps([small, large]), [[[0.5, 1.5], [0.75, 1.25]]])
    np.testing.assert_array_equal(fuse_maps([small, large], fuse="mean"), [[[0.25, 0.75], [0.375, 0.625]]])
    np.testing.assert_array_equal(fuse_maps([small, large], fuse="max"), [[[0.5, 1], [0.5, 0.75]]])
    np.testing.assert_array_equal(fuse_maps([large], large.shape[1:]), large)


def test_linear_head_by_hand() -> None:
    """logits = W mean(A), so dS_k / dA_c = W_kc / (h w) everywhere, and maps are relu(sum_c W_kc A_c) / (h w).

    LayerCAM takes the positive W only.
    """
    net, images = Net(), pictures()
    labels = torch.arange(4)
    weight = net.head.weight[labels].detach()[:, :, None, None]
    with AttributionHook(net, ["body.4"]) as hook:
        logits = net(images)
        activations = hook._seen["body.4"].detach()
        score = logits.gather(1, labels[:, None])[:, 0]
        for method, w in (("layer_cam", weight.relu()), ("grad_cam", weight), ("hires_cam", weight)):
            expected = (w * activations).sum(1).relu() / 30
            np.testing.assert_allclose(hook.maps(score, method=method, norm="none"), expected, rtol=1e-5, atol=1e-8)
            np.testing.assert_allclose(
                hook.maps(score.sum(), method=method, norm="none"), expected, rtol=1e-5, atol=1e-8
            )
        expected = ((-weight).relu() * activations).sum(1) / 30
        np.testing.assert_allclose(hook.maps(score, norm="none", sign="neg_loss"), expected, rtol=1e-5, atol=1e-8)


def test_input_gradient_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 2, bias=False))
    expected = model[1].weight.detach().view(2, 3, 4, 5).abs().amax(1)
    with AttributionHook(model) as hook:
        score = model(pictures(2, 4, 5)).gather(1, torch.tensor([[0], [1]]))[:, 0]
        np.testing.assert_allclose(hook.maps(score, method="input_gradient", norm="none"), expected, rtol=1e-6)


# ------------------------------------------------------------------ other programs


def one_by_one(net: Net, images: Tensor, labels: list[int], method: str, size: tuple[int, int]) -> Tensor:
    """Maps of LAYERS summed, each sample alone, by an ordinary backward pass with tensor hooks."""
    total = []
    for image, label in zip(images, labels, strict=True):
        kept: dict[int, tuple[Tensor, list[Tensor]]] = {}
        x = image[None]
        for i, layer in enumerate(net.body):
            x = layer(x)
            if f"body.{i}" in LAYERS:
                kept[i] = (x.detach().clone(), [])
                x.register_hook(kept[i][1].append)
                x = x.clone()
        net.head(x.mean((2, 3)))[0, label].backward()
        maps = []
        for a, (g,) in kept.values():
            weights = {"layer_cam": g.clamp(min=0), "grad_cam": g.mean((2, 3), True), "hires_cam": g}[method]
            m = (weights * a).sum(1).clamp(min=0)
            m = (m - m.min()) / (m.max() - m.min())
            maps.append(F.interpolate(m[None], size, mode="bilinear")[0])
        total.append(maps[0] + maps[1])
    return torch.cat(total)


@pytest.mark.parametrize("method", CAMS)
def test_batched_equals_one_by_one(method: str) -> None:
    net, images, labels = Net(inplace=False).eval(), pictures(5), [0, 1, 2, 3, 4]
    with AttributionHook(net, LAYERS) as hook:
        score = net(images).gather(1, torch.tensor(labels)[:, None])
        got = hook.maps(score[:, 0], method=method, size=(24, 20))
    np.testing.assert_allclose(got, one_by_one(net, images, labels, method, (24, 20)), atol=1e-5)


@pytest.mark.parametrize("method", CAMS)
@pytest.mark.parametrize("layers", [["body.4"], LAYERS])
def test_pytorch_grad_cam_agrees(method: str, layers: list[str]) -> None:
    import pytorch_grad_cam as cams  # slow to import
    from pytorch_grad_cam.utils import model_targets as targets

    net, images, labels = Net().eval(), pictures(4), [3, 0, 4, 1]
    program = {"layer_cam": cams.LayerCAM, "grad_cam": cams.GradCAM, "hires_cam": cams.HiResCAM}[method]
    with program(net, [net.get_submodule(name) for name in layers]) as cam:
        expected = cam(images, [targets.ClassifierOutputTarget(label) for label in labels])
    with AttributionHook(net, layers) as hook:
        score = net(images).gather(1, torch.tensor(labels)[:, None])[:, 0]
        fused = hook.maps(score, method=method, size=(12, 10), fuse="mean")
    # The program adds 1e-7 to each peak, which is about 1e-5 of the peaks here, and scales its result once more.
    np.testing.assert_allclose(normalise_maps(fused)[0], expected, atol=1e-4)


# ------------------------------------------------------------------ transformers


def transformer() -> nn.Module:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16)
    nn.init.normal_(model.heads.head.weight)
    return model


def test_patch_tokens_become_a_picture() -> None:
    tokens = torch.arange(2 * 8 * 3.0).view(2, 8, 3)  # two prefix tokens, then 2 x 3 patches
    got = token_grid(2, 3)(tokens)
    assert got.shape == (2, 3, 2, 3)
    for n, c, y, x in np.ndindex(2, 3, 2, 3):
        assert got[n, c, y, x] == tokens[n, 2 + 3 * y + x, c]
    with pytest.raises(ValueError, match=r"shape \(2, 8, 3\), expected tokens \(N, T, C\) with T >= 3 \* 3"):
        token_grid(3, 3)(tokens)


def test_vision_transformer() -> None:
    model, images = transformer(), pictures(3, 32, 32)
    first, last = "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"
    with AttributionHook(model, [first], reshape=token_grid(4, 4)) as hook:
        maps = hook.maps(model(images)[:, 0])
        assert maps.shape == (3, 4, 4) and hook.fallbacks == Fallbacks(3, 0, 0)
        np.testing.assert_allclose(maps.amax((1, 2)), 1)
    with AttributionHook(model, [first, last], reshape=token_grid(4, 4)) as hook:
        np.testing.assert_array_equal(hook.maps(model(images)[:, 0]), maps)  # the head reads the class token only
        assert hook.fallbacks == Fallbacks(6, 3, 0)


def test_channels_last_layers() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.turned = Net(), nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            features = self.turned(self.net.body(images).movedim(1, -1))
            return self.net.head(features.mean((1, 2)))

    model, net = Last(), Net()
    with AttributionHook(model, ["turned"], reshape=lambda y: y.movedim(-1, 1)) as hook:
        got = hook.maps(loss_of(model(pictures())))
    with AttributionHook(net, ["body.4"]) as hook:
        np.testing.assert_allclose(got, hook.maps(loss_of(net(pictures()))), atol=1e-6)


# ------------------------------------------------------------------ maps that say nothing


@pytest.mark.parametrize("norm", ["image", "batch", "none"])
@pytest.mark.parametrize("scale", ["none", "tanh"])
@pytest.mark.parametrize("bad", [0.0, 3.0, float("nan"), float("inf")])
def test_empty_maps_are_zeros_and_leave_the_others_alone(norm: str, scale: str, bad: float) -> None:
    good = torch.rand((2, 3, 4), generator=torch.Generator().manual_seed(0))
    spoiled = torch.full((1, 3, 4), bad) if np.isfinite(bad) else good[:1].clone()
    spoiled[0, 1, 1] = bad
    got, flat, nonfinite = normalise_maps(torch.cat([good[:1], spoiled, good[1:]]), norm, scale)
    expected, _, _ = normalise_maps(good, norm, scale)
    assert torch.equal(got[[0, 2]], expected) and not got[1].any()
    assert flat.tolist() == [False, bool(np.isfinite(bad)), False]
    assert nonfinite.tolist() == [False, not np.isfinite(bad), False]


def test_all_maps_empty() -> None:
    for norm in ("image", "batch", "none"):
        for value in (0.0, 1.0, float("nan")):
            assert not normalise_maps(torch.full((2, 3, 3), value), norm)[0].any()


def test_rounding_is_no_contrast() -> None:
    maps = 0.1 + 1e-8 * torch.arange(4.0).view(1, 2, 2)
    assert normalise_maps(maps)[1].tolist() == [True]
    assert normalise_maps(1e-30 * torch.arange(4.0).view(1, 2, 2))[1].tolist() == [False]


def test_fallbacks_are_counted() -> None:
    net = Net()
    nn.init.zeros_(net.head.weight)
    with AttributionHook(net, LAYERS) as hook:
        assert hook.fallbacks == Fallbacks(0, 0, 0)
        assert not hook.maps(loss_of(net(pictures()))).any()
        assert hook.fallbacks == Fallbacks(8, 8, 0)
        loss = loss_of(net(pictures()))
        assert not hook.maps(loss * float("inf")).any()
        assert hook.fallbacks == Fallbacks(16, 8, 8)


# ------------------------------------------------------------------ bad input


def test_unknown_layers() -> None:
    with pytest.raises(ValueError, match=r"Net has no layer 'body.9', expected one such as .*'body.4'"):
        AttributionHook(Net(), ["body.4", "body.9"])
    with pytest.raises(ValueError, match=r"no layer 'x', expected one such as 'body', 'body.0'"):
        AttributionHook(Net(), "x")
    with pytest.raises(TypeError, match="use DistributedDataParallel"):
        AttributionHook(nn.DataParallel(Net()), LAYERS)


@pytest.mark.parametrize(
    ("layer", "message"),
    [("head", r"'head' has shape \(4, 5\), expected \(N, C, h, w\): name a layer before the pooling, or .*token_grid")],
)
def test_layers_that_are_not_spatial(layer: str, message: str) -> None:
    net = Net()
    with AttributionHook(net, [layer]) as hook, pytest.raises(ValueError, match=message):
        hook.maps(loss_of(net(pictures())))


def test_layers_that_give_no_tensor() -> None:
    model = nn.Sequential(nn.LSTM(3, 3))
    with AttributionHook(model, ["0"]), pytest.raises(TypeError, match="'0' is a tuple, expected one floating tensor"):
        model(torch.zeros(2, 2, 3))
    with AttributionHook(Net()) as hook, pytest.raises(TypeError, match=r"'input' is a torch.uint8, expected"):
        hook.model(pictures().byte())


def test_no_forward_to_read_from() -> None:
    net = Net()
    hook = AttributionHook(net, LAYERS)
    before = loss_of(net(pictures()))
    with hook:
        with pytest.raises(RuntimeError, match=r"no output of 'body.1' was kept: run hook.model .* gradients"):
            hook.maps(before)
        with torch.no_grad():
            loss = loss_of(net(pictures()))
        with pytest.raises(ValueError, match="target has no gradient"):
            hook.maps(loss)
        net(pictures())
        with pytest.raises(ValueError, match=r"target does not depend on 'body.1' in the last forward"):
            hook.maps(before)
        after = loss_of(net(pictures()))
    with pytest.raises(RuntimeError, match=r"no output of 'body.1' was kept"):
        hook.maps(after)


def test_target_after_backward() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(pictures()))
        loss.backward()
        with pytest.raises(RuntimeError, match=r"read maps\(\) before target.backward\(\)"):
            hook.maps(loss)


def test_layers_that_run_twice() -> None:
    class Twice(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + super().forward(images.flip(3))

    net = Twice()
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(pictures()))
        with pytest.raises(RuntimeError, match=r"layer 'body.1' ran more than once in the last forward"):
            hook.maps(loss)


def test_wrong_options() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook, AttributionHook(net) as pixels:
        logits = net(pictures())
        with pytest.raises(ValueError, match=r"target has shape \(4, 5\), expected a scalar or \(N,\).*gather"):
            hook.maps(logits)
        for name in ("method", "norm", "fuse", "scale", "sign"):
            with pytest.raises(ValueError, match=f"{name} is 'best', expected one of '"):
                hook.maps(loss_of(logits), **{name: "best"})
        with pytest.raises(ValueError, match=r"method is 'input_gradient', which needs .* without layers"):
            hook.maps(loss_of(logits), method="input_gradient")
        with pytest.raises(ValueError, match=r"method is 'layer_cam', which needs .*\(model, layers\)"):
            pixels.maps(loss_of(logits))


@pytest.mark.parametrize("size", [(0, 7), (7,), (7.0, 7.0), (7, 7, 7)])
def test_bad_size(size: tuple[int, int]) -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook, pytest.raises(ValueError, match="expected a pair"):
        hook.maps(net(pictures()).sum(), size=size)
