"""Maps from the gradients that the ordinary backward pass leaves at the named layers."""

import gc
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import join, leave, run_two_ranks
from seeing import LAYERS, Net, all_equal, grads_of, hooks_on, loss_of, pictures
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastmix.attribution import AttributionHook, token_grid

CAMS = ["layer_cam", "grad_cam", "hires_cam"]


def keeping(model: nn.Module, layers: Sequence[str] = (), **options: Any) -> AttributionHook:
    return AttributionHook(model, layers, keep_gradients=True, **options)


# ------------------------------------------------------------------ the maps


def test_linear_head_by_hand() -> None:
    """logits = W mean(A), so the cross-entropy's dL / dA_c = sum_k (p_k - y_k) W_kc / (N h w) everywhere."""
    net, labels = Net(), torch.arange(4)
    seen: list[Tensor] = []
    net.body[4].register_forward_hook(lambda _m, _a, out: seen.append(out.detach()))
    with keeping(net, ["body.4"]) as hook:
        logits = net(pictures())
        loss_of(logits).backward()
        share = logits.detach().softmax(1) - F.one_hot(labels, 5)
        g = (share @ net.head.weight.detach() / (4 * 30))[:, :, None, None]
        expected = {"layer_cam": g.relu(), "grad_cam": g, "hires_cam": g}
        for method, weight in expected.items():
            np.testing.assert_allclose(
                hook.maps(method=method, norm="none"), (weight * seen[0]).sum(1).relu(), rtol=1e-4, atol=1e-7
            )
        low = ((-g).relu() * seen[0]).sum(1)
        assert low.max() > 1e-3
        np.testing.assert_allclose(hook.maps(norm="none", sign="neg_loss"), low, rtol=1e-4, atol=1e-7)


def test_input_gradient_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 2, bias=False))
    expected = model[1].weight.detach().view(2, 3, 4, 5).abs().amax(1)
    images = pictures(2, 4, 5)
    with keeping(model) as hook:
        model(images).gather(1, torch.tensor([[0], [1]])).sum().backward()
        np.testing.assert_allclose(hook.maps(method="input_gradient", norm="none"), expected, rtol=1e-6)
    assert not images.requires_grad and images.grad is None


@pytest.mark.parametrize("method", [*CAMS, "input_gradient"])
@pytest.mark.parametrize("sign", ["loss", "neg_loss"])
def test_equal_to_maps_of_the_same_loss(method: str, sign: str) -> None:
    net = Net()
    with keeping(net, [] if method == "input_gradient" else LAYERS) as hook:
        loss = loss_of(net(pictures()))
        options: list[dict[str, Any]] = [
            {},
            {"norm": "none", "size": (7, 9)},
            {"norm": "batch", "fuse": "max", "scale": "tanh"},
        ]
        expected = [hook.maps(loss, method=method, sign=sign, **each) for each in options]
        loss.backward()
        got = [hook.maps(method=method, sign=sign, **each) for each in options]
    assert all(each.any() for each in expected) and all_equal(got, expected)
    assert not any(each.requires_grad for each in got) and hook.fallbacks.maps == 6 * 4 * len(hook._layers or "1")


def test_vision_transformer() -> None:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=8, mlp_dim=16)
    nn.init.normal_(model.heads.head.weight)
    layers = ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1.ln_1"]
    with keeping(model, layers, reshape=token_grid(4, 4)) as hook:
        loss = loss_of(model(pictures(3, 32, 32))[:, :5])
        expected = [hook.maps(loss, method=method) for method in CAMS]
        loss.backward()
        assert expected[0].any() and all_equal([hook.maps(method=method) for method in CAMS], expected)
    assert expected[0].shape == (3, 4, 4)


# ------------------------------------------------------------------ which gradient counts


def test_the_last_backward_counts() -> None:
    """Alone, not summed with those before it."""
    net = Net()
    with keeping(net, LAYERS) as hook:
        logits = net(pictures())
        one, two = loss_of(logits), logits[:, 0].square().sum()
        expected = [hook.maps(each, norm="none") for each in (one, two)]
        one.backward(retain_graph=True)
        assert torch.equal(hook.maps(norm="none"), expected[0])
        two.backward()
        assert torch.equal(hook.maps(norm="none"), expected[1]) and not torch.equal(*expected)


def test_reading_a_target_is_no_backward() -> None:
    net = Net()
    with keeping(net, LAYERS) as hook:
        logits = net(pictures())
        hook.maps(logits[:, 0])
        with pytest.raises(RuntimeError, match=r"no gradient has reached layer 'body.1'"):
            hook.maps()
        loss = loss_of(logits)
        expected = hook.maps(loss)
        loss.backward(retain_graph=True)
        assert not torch.equal(hook.maps(logits[:, 0]), expected)
        assert torch.equal(hook.maps(), expected)


def test_gradients_of_former_forwards_do_not_count() -> None:
    net = Net().eval()
    with keeping(net, LAYERS) as hook:
        old = loss_of(net(pictures(3)))
        old.backward(retain_graph=True)
        loss = loss_of(net(pictures(2, seed=1)))
        old.backward()
        with pytest.raises(RuntimeError, match=r"no gradient has reached layer 'body.1'"):
            hook.maps()
        expected = hook.maps(loss)
        loss.backward()
        with torch.no_grad():
            net(pictures(5, seed=2))
        assert torch.equal(hook.maps(), expected)
        parts = [net.body(pictures(seed=seed)).mean((2, 3)) for seed in (3, 4)]  # without the forward of the whole
        expected = hook.maps(loss_of(net.head(parts[1])))
        loss_of(net.head(parts[1])).backward()
        loss_of(net.head(parts[0])).backward()
        assert torch.equal(hook.maps(), expected)


def test_gradients_accumulate() -> None:
    plain, net, other = Net(), Net(), Net()
    with keeping(net, LAYERS) as hook, AttributionHook(other, LAYERS) as before:
        for part in (0, 1, 2):
            images = pictures(seed=part)
            (loss_of(plain(images)) / 3).backward()
            expected = before.maps(loss_of(other(images)) / 3, norm="none")
            (loss_of(net(images)) / 3).backward()
            assert expected.any() and torch.equal(hook.maps(norm="none"), expected)
    assert all_equal(grads_of(plain), grads_of(net))


def test_a_leaf_whose_gradient_is_changed_before_maps_are_read() -> None:
    net, images = Net(), pictures().requires_grad_()
    with keeping(net) as hook:
        loss = loss_of(net(images))
        expected = hook.maps(loss, method="input_gradient", norm="none")
        loss.backward()
        images.grad.zero_()
        assert expected.any() and torch.equal(hook.maps(method="input_gradient", norm="none"), expected)
    loss_of(net(images)).backward()
    assert not images._backward_hooks


def test_a_chunk_that_the_loss_does_not_see() -> None:
    class Halves(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.split = nn.Identity(), nn.Conv2d(8, 16, 1)

        def forward(self, images: Tensor) -> Tensor:
            first, second = self.split(self.body(images)).chunk(2, 1)
            self.first(first)
            return self.head(second.mean((2, 3)))

    net = Halves()
    with keeping(net, ["first"]) as hook:
        loss_of(net(pictures())).backward()
        with pytest.raises(RuntimeError, match=r"no gradient has reached layer 'first'"):
            hook.maps()


# ------------------------------------------------------------------ nothing is changed


@pytest.mark.parametrize("layers", [LAYERS, []])
def test_the_training_step_is_the_same(layers: list[str]) -> None:
    """Three steps with and without the hook: gradients, parameters, buffers and the generator are equal bit for bit."""

    def train(hooked: bool) -> tuple[list[Tensor], list[Tensor], Tensor]:
        torch.manual_seed(5)
        net = Net(dropout=0.3)
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        gradients = []
        with keeping(net, layers) if hooked else nullcontext() as hook:
            for step in range(3):
                loss_of(net(pictures(8, seed=step))).backward()
                gradients += grads_of(net)
                optimiser.step()
                if hook:
                    assert hook.maps(method="layer_cam" if layers else "input_gradient").any()
                optimiser.zero_grad(set_to_none=False)
        return gradients, list(net.state_dict().values()), torch.get_rng_state()

    plain, hooked = train(False), train(True)
    assert all_equal(plain[0], hooked[0]) and all_equal(plain[1], hooked[1])
    assert torch.equal(plain[2], hooked[2])


def live_tensors() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("layers", [LAYERS, []])
def test_memory_is_flat_without_the_garbage_collector(layers: list[str]) -> None:
    net, counts = Net(), []
    gc.collect()
    gc.disable()
    try:
        with keeping(net, layers) as hook:
            for step in range(300):
                loss_of(net(pictures(2, 6, 6))).backward()
                hook.maps(method="layer_cam" if layers else "input_gradient")
                net.zero_grad()
                if step % 60 == 9:
                    counts.append((live_tensors(), hooks_on(net)))
    finally:
        gc.enable()
    assert counts[0][1] > 0 and len(set(counts)) == 1 and len(counts) == 5
    assert hooks_on(net) == 0


def test_parts_that_run_by_themselves_leave_nothing() -> None:
    """No forward of the whole drops what is kept of the last one."""
    net, counts = Net(), []
    gc.collect()
    gc.disable()
    try:
        with keeping(net, LAYERS) as hook:
            for _ in range(20):
                loss_of(net.head(net.body(pictures()).mean((2, 3)))).backward()
                assert hook.maps().any()
                counts.append(live_tensors())
    finally:
        gc.enable()
    assert len(set(counts[2:])) == 1


def test_gradients_go_with_the_next_forward_and_the_block() -> None:
    """Even if the loss, and the graph with it, lives on."""
    net, losses = Net(), []
    with keeping(net, LAYERS) as hook:
        for _ in range(2):
            losses.append(loss_of(net(pictures())))
            losses[-1].backward(retain_graph=True)
            hook.maps()
            passing = list(hook._passing.values())
            assert all(each.gradient is not None for each in passing)
            net(pictures())
            losses[-1].backward(retain_graph=True)
            assert len(passing) == 2 and all(each.gradient is None for each in passing)
        loss = loss_of(net(pictures()))
        passing = list(hook._passing.values())
    loss.backward()
    assert len(passing) == 2 and all(each.gradient is None for each in passing)
    with pytest.raises(RuntimeError, match=r"no output of 'body.1' was kept"):
        hook.maps()


# ------------------------------------------------------------------ kinds of models and loops


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layer", ["body.0", "body.0.1", "body.3"])
def test_relus_in_place_and_frozen_bodies(layer: str, inplace: bool, frozen: bool) -> None:
    """Grad-CAM tells an output from its ReLU: the other maps of both are equal."""
    plain, net, other = Net(inplace=inplace), Net(inplace=inplace), Net(inplace=False)
    for each in (plain, net):
        each.body.requires_grad_(not frozen)
    loss_of(plain(pictures())).backward()
    with AttributionHook(other, [layer]) as before:
        expected = before.maps(loss_of(other(pictures())), method="grad_cam")
    with keeping(net, [layer]) as hook:
        loss_of(net(pictures())).backward()
        assert expected.any() and torch.equal(hook.maps(method="grad_cam"), expected)
    assert all_equal(grads_of(net), grads_of(plain)) and len(grads_of(net)) == (2 if frozen else 10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    plain, net, images = Net(), Net(), pictures(8)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)

    def step(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return scaler.scale(loss_of(model(images)))

    step(plain).backward()
    with AttributionHook(Net(), LAYERS) as exact:
        expected = exact.maps(loss_of(exact.model(images)))
    with keeping(net, LAYERS) as hook:
        loss = step(net)
        same = hook.maps(loss)
        loss.backward()
        got = hook.maps()
    assert got.dtype == torch.float32 and torch.equal(got, same) and hook.fallbacks.nonfinite == 0
    assert np.corrcoef(expected.flatten(), got.flatten())[0, 1] > 0.99
    assert all_equal(grads_of(plain), grads_of(net))


def test_the_factor_of_a_scaler_cancels() -> None:
    plain, net, images = Net(), Net(), pictures()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with keeping(plain, LAYERS) as one, keeping(net, LAYERS) as two:
        loss_of(plain(images)).backward()
        scaler.scale(loss_of(net(images))).backward()
        for norm in ("image", "batch"):
            assert one.maps(norm=norm).any() and torch.equal(one.maps(norm=norm), two.maps(norm=norm))
        assert torch.equal(one.maps(norm="none") * 2.0**16, two.maps(norm="none"))


class Checkpointed(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, images, use_reentrant=False).mean((2, 3)))


@pytest.mark.parametrize("frozen", [False, True])
def test_activation_checkpoints(frozen: bool) -> None:
    net, plain = Checkpointed(), Net()
    for each in (net, plain):
        each.body.requires_grad_(not frozen)
    runs: list[int] = []
    net.body[3].register_forward_hook(lambda *_: runs.append(1))
    with keeping(net, LAYERS) as hook, keeping(plain, LAYERS) as other:
        for seed in (0, 1):
            loss_of(net(pictures(seed=seed))).backward()
            loss_of(plain(pictures(seed=seed))).backward()
            assert other.maps().any() and torch.equal(hook.maps(), other.maps())
    assert len(runs) == 4 and all_equal(grads_of(net), grads_of(plain))


@pytest.mark.parametrize("layers", [LAYERS, []])
def test_a_checkpoint_around_the_model(layers: list[str]) -> None:
    net, plain, images = Net(), Net(), pictures()
    method = "layer_cam" if layers else "input_gradient"
    with keeping(net, layers) as hook, keeping(plain, layers) as other:
        loss_of(checkpoint(net, images, use_reentrant=False)).backward()
        loss_of(plain(images)).backward()
        assert other.maps(method=method).any() and torch.equal(hook.maps(method=method), other.maps(method=method))
    assert all_equal(grads_of(net), grads_of(plain))


def test_a_reentrant_checkpoint_is_refused() -> None:
    net = Net()
    with keeping(net, LAYERS) as hook:
        loss_of(net.head(checkpoint(net.body, pictures().requires_grad_(), use_reentrant=True).mean((2, 3)))).backward()
        with pytest.raises(RuntimeError, match=r"no output of 'body.1' was kept.*reentrant checkpoint"):
            hook.maps()


def test_two_hooks_at_once() -> None:
    net, images = Net(), pictures()
    with keeping(net, LAYERS) as cam, keeping(net, ["body.4"]) as late, keeping(net) as grad:
        loss = loss_of(net(images))
        expected = [cam.maps(loss), late.maps(loss), grad.maps(loss, method="input_gradient")]
        loss.backward()
        assert all_equal([cam.maps(), late.maps(), grad.maps(method="input_gradient")], expected)
    assert hooks_on(net) == 0


def train_on_a_rank(rank: int, folder: Path) -> None:
    join(rank, folder)
    nets = [Net(seed=rank), Net(seed=rank)]  # the wrapper gives all ranks the parameters of rank 0
    model, plain = (nn.parallel.DistributedDataParallel(net) for net in nets)
    optimisers = [torch.optim.SGD(net.parameters(), 0.05) for net in nets]
    same = []
    with keeping(model, LAYERS) as hook:
        for step in range(20):
            images = pictures(4, seed=2 * step + rank)
            loss = loss_of(model(images))
            expected = hook.maps(loss)
            loss.backward()
            same.append(bool(expected.any()) and torch.equal(hook.maps(), expected))
            loss_of(plain(images)).backward()
            same.append(all_equal(*map(grads_of, nets)))
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
    left = {"same": same, "states": [list(net.state_dict().values()) for net in nets], "maps": expected}
    torch.save(left, folder / f"{rank}.pt")
    leave()


def test_two_ranks(tmp_path: Path) -> None:
    run_two_ranks(train_on_a_rank, tmp_path)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for each in (one, two):
        assert len(each["same"]) == 40 and all(each["same"]) and all_equal(*each["states"])
    assert not torch.equal(one["maps"], two["maps"])


# ------------------------------------------------------------------ bad input


def test_no_target_and_no_gradients() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook:
        loss_of(net(pictures())).backward()
        with pytest.raises(
            ValueError, match=r"target is None, .* keeps no gradients: make it with keep_gradients=True"
        ):
            hook.maps()


def test_before_the_backward() -> None:
    net = Net()
    with keeping(net, LAYERS) as hook:
        with pytest.raises(RuntimeError, match=r"no output of 'body.1' was kept: run hook.model"):
            hook.maps()
        loss = loss_of(net(pictures()))
        with pytest.raises(RuntimeError, match=r"reached layer 'body.1': call loss.backward\(\) first"):
            hook.maps()
        loss.backward()
        assert hook.maps().any()
        with pytest.raises(RuntimeError, match="after it without a target, from a hook with keep_gradients=True"):
            hook.maps(loss)
        assert hook.maps().any()


def test_layers_that_run_twice() -> None:
    class Twice(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + super().forward(images.flip(3))

    net = Twice()
    with keeping(net, LAYERS) as hook:
        loss_of(net(pictures())).backward()
        with pytest.raises(RuntimeError, match=r"layer 'body.1' ran more than once in the last forward"):
            hook.maps()


def test_wrong_options() -> None:
    net = Net()
    with keeping(net, ["head"]) as hook, keeping(net) as pixels:
        loss_of(net(pictures())).backward()
        with pytest.raises(ValueError, match=r"'head' has shape \(4, 5\), expected \(N, C, h, w\)"):
            hook.maps()
        for name in ("method", "norm", "fuse", "scale", "sign"):
            with pytest.raises(ValueError, match=f"{name} is 'best', expected one of '"):
                hook.maps(**{name: "best"})
        with pytest.raises(ValueError, match=r"method is 'layer_cam', which needs .*\(model, layers\)"):
            pixels.maps()


def test_compiled_models() -> None:
    net, images = Net(), pictures()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager")
    with keeping(compiled, LAYERS) as hook:
        loss_of(compiled(images)).backward()
        with pytest.raises(RuntimeError, match=r"run hook.model .* uncompiled"):
            hook.maps()
        loss_of(hook.model(images)).backward()
        assert hook.maps().any()
    assert hooks_on(net) == 0
