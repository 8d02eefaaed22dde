"""The training step with a hook on it: what it must leave alone, and the kinds of steps there are."""

import gc
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from seeing import LAYERS, Net, all_equal, grads_of, hooks_on, loss_of, pictures
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastmix.attribution import AttributionHook

# ------------------------------------------------------------------ nothing is changed


def test_the_training_step_is_the_same() -> None:
    """Three steps with and without the hook: gradients, parameters, buffers and the generator are equal bit for bit."""

    def train(hooked: bool) -> tuple[list[Tensor], list[Tensor], Tensor]:
        torch.manual_seed(5)
        net = Net(dropout=0.3)
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        gradients = []
        with AttributionHook(net, LAYERS) if hooked else nullcontext() as hook:
            for step in range(3):
                loss = loss_of(net(pictures(8, seed=step)))
                if hook:
                    maps = hook.maps(loss)
                    assert maps.shape == (8, 12, 10) and not maps.requires_grad and maps.dtype == torch.float32
                    assert step or all(p.grad is None for p in net.parameters())
                loss.backward()
                gradients += grads_of(net)
                optimiser.step()
                optimiser.zero_grad(set_to_none=False)
        return gradients, list(net.state_dict().values()), torch.get_rng_state()

    plain, hooked = train(False), train(True)
    assert all_equal(plain[0], hooked[0]) and all_equal(plain[1], hooked[1])
    assert torch.equal(plain[2], hooked[2])


def test_one_forward_and_the_mode_of_each_module() -> None:
    net, calls = Net(), []
    net.body[0][1].eval()
    modes = [m.training for m in net.modules()]
    net.register_forward_hook(lambda *_: calls.append(1))
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(pictures()))
        hook.maps(loss)
        hook.maps(loss, method="grad_cam", norm="batch", fuse="max")
    assert len(calls) == 1 and [m.training for m in net.modules()] == modes


def test_reading_maps_leaves_gradients_alone() -> None:
    net = Net()
    loss_of(net(pictures())).backward()
    before = grads_of(net)
    with AttributionHook(net, LAYERS) as hook:
        hook.maps(loss_of(net(pictures(seed=1))))
    assert all_equal(before, grads_of(net))


def live_tensors() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("layers", [LAYERS, []])
def test_memory_is_flat_without_the_garbage_collector(layers: list[str]) -> None:
    net, counts = Net(), []
    method = "layer_cam" if layers else "input_gradient"
    gc.collect()
    gc.disable()
    try:
        with AttributionHook(net, layers) as hook:
            for step in range(500):
                loss = loss_of(net(pictures(2, 6, 6)))
                hook.maps(loss, method=method)
                loss.backward()
                net.zero_grad()
                del loss
                if step % 100 == 9:
                    counts.append((live_tensors(), hooks_on(net)))
        assert hook._seen == {}
    finally:
        gc.enable()
    assert counts[0][1] > 0 and len(set(counts)) == 1 and len(counts) == 5
    assert hooks_on(net) == 0


def test_hooks_go_when_the_block_fails() -> None:
    net = Net()
    hook = AttributionHook(net, LAYERS)
    with pytest.raises(KeyError), hook:
        raise KeyError
    assert hooks_on(net) == 0
    with hook:  # and it can be opened again
        assert hook.maps(loss_of(net(pictures()))).any()
        with pytest.raises(RuntimeError, match="open already"), hook:
            pass
    assert hooks_on(net) == 0


def test_forwards_without_gradients_leave_no_trace() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(pictures()))
        expected = hook.maps(loss)
        with torch.no_grad():
            net(pictures(seed=1))
        with torch.inference_mode():
            net(pictures(seed=2))
        assert torch.equal(hook.maps(loss), expected)


def test_the_last_forward_counts() -> None:
    net = Net().eval()
    with AttributionHook(net, LAYERS) as hook:
        net(pictures(3))
        loss = loss_of(net(pictures(2, seed=1)))
        got = hook.maps(loss)
        assert torch.equal(got, hook.maps(loss_of(net(pictures(2, seed=1)))))
    assert len(got) == 2


# ------------------------------------------------------------------ kinds of models and loops


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("layer", ["body.0", "body.0.1", "body.3"])
def test_a_relu_in_place_after_the_layer(layer: str, frozen: bool) -> None:
    """By Grad-CAM: the other maps of an output and of its ReLU are equal, for gradients are zero where these differ."""
    maps, gradients = [], []
    for inplace in (False, True):
        net = Net(inplace=inplace)
        net.body.requires_grad_(not frozen)
        with AttributionHook(net, [layer]) as hook:
            loss = loss_of(net(pictures()))
            maps.append(hook.maps(loss, method="grad_cam"))
            loss.backward()
        gradients.append(grads_of(net))
    assert maps[0].any() and torch.equal(*maps) and all_equal(*gradients)


def test_gradients_accumulate() -> None:
    plain, hooked = Net(), Net()
    with AttributionHook(hooked, LAYERS) as hook:
        for part in (0, 1):
            (loss_of(plain(pictures(seed=part))) / 2).backward()
            loss = loss_of(hooked(pictures(seed=part))) / 2
            assert hook.maps(loss).any()
            loss.backward()
    assert all_equal(grads_of(plain), grads_of(hooked))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    plain, net, images = Net(), Net(), pictures(8)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)

    def step(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return scaler.scale(loss_of(model(images)))

    with AttributionHook(net, LAYERS) as hook:
        exact = hook.maps(loss_of(net(images)))
        net.load_state_dict(plain.state_dict())
        loss = step(net)
        got = hook.maps(loss)
        assert got.dtype == torch.float32 and hook.fallbacks.nonfinite == 0
        loss.backward()
    step(plain).backward()
    assert all_equal(grads_of(plain), grads_of(net))
    assert np.corrcoef(exact.flatten(), got.flatten())[0, 1] > 0.99


def test_the_scale_of_the_loss_cancels() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(pictures()))
        for norm in ("image", "batch"):
            assert torch.equal(hook.maps(loss * 2.0**16, norm=norm), hook.maps(loss, norm=norm))


def test_a_frozen_body() -> None:
    """Maps equal those of the trainable model; the head's gradients are untouched."""
    free, frozen, plain = Net(), Net(), Net()
    frozen.body.requires_grad_(False)
    plain.body.requires_grad_(False)
    loss_of(plain(pictures())).backward()
    with AttributionHook(free, LAYERS) as hook:
        expected = hook.maps(loss_of(free(pictures())))
    with AttributionHook(frozen, LAYERS) as hook:
        loss = loss_of(frozen(pictures()))
        assert torch.equal(hook.maps(loss), expected)
        loss.backward()
    assert all_equal(grads_of(frozen), grads_of(plain)) and len(grads_of(frozen)) == 2


def test_two_hooks_at_once() -> None:
    net, images = Net(), pictures()
    with AttributionHook(net, LAYERS) as cam, AttributionHook(net, ["body.4"]) as late, AttributionHook(net) as grad:
        loss = loss_of(net(images))
        both, one, pixels = cam.maps(loss), late.maps(loss), grad.maps(loss, method="input_gradient")
    with AttributionHook(net, ["body.4"]) as hook:
        assert torch.equal(one, hook.maps(loss_of(net(images))))
    assert both.shape == pixels.shape == (4, 12, 10) and one.shape == (4, 6, 5)
    assert not images.requires_grad and images.grad is None


def test_a_part_of_the_model_run_by_itself() -> None:
    net = Net()
    with AttributionHook(net, LAYERS) as hook:
        expected = hook.maps(loss_of(net(pictures())))
        with pytest.raises(RuntimeError, match="expected input"):
            net(pictures()[:, :2])
        for _ in range(3):
            features = net.body(pictures())
        assert torch.equal(hook.maps(loss_of(net.head(features.mean((2, 3))))), expected)


class Checkpointed(Net):
    reentrant = False

    def forward(self, images: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, images, use_reentrant=self.reentrant).mean((2, 3)))


def test_activation_checkpoints() -> None:
    net, plain, images = Checkpointed(), Net(), pictures()
    with AttributionHook(net, LAYERS) as hook, AttributionHook(plain, LAYERS) as other:
        loss, loss_plain = loss_of(net(images)), loss_of(plain(images))
        assert torch.equal(hook.maps(loss), other.maps(loss_plain))
        assert torch.equal(hook.maps(loss), other.maps(loss_plain))
        loss.backward()
        loss_plain.backward()
    assert all_equal(grads_of(net), grads_of(plain))
    net.reentrant = True
    with AttributionHook(net, LAYERS) as hook:
        loss = loss_of(net(images.requires_grad_()))
        with pytest.raises(RuntimeError, match="reentrant checkpoint"):
            hook.maps(loss)


def test_compiled_models_are_read_uncompiled() -> None:
    net, images = Net(), pictures()
    with AttributionHook(net, LAYERS) as hook:
        expected = hook.maps(loss_of(net(images)))
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager")
    with AttributionHook(compiled, LAYERS) as hook:
        assert hook.model is net
        loss = loss_of(compiled(images))
        with pytest.raises(RuntimeError, match=r"run hook.model .* uncompiled"):
            hook.maps(loss)
        assert torch.equal(hook.maps(loss_of(hook.model(images))), expected)
        loss_of(compiled(images)).backward()
    assert hooks_on(net) == 0


def test_distributed_model(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain, net, images = Net(), Net(), pictures()
        model = nn.parallel.DistributedDataParallel(net)
        with AttributionHook(model, LAYERS) as hook, AttributionHook(plain, LAYERS) as other:
            for _ in range(3):
                loss, loss_plain = loss_of(model(images)), loss_of(plain(images))
                assert torch.equal(hook.maps(loss), other.maps(loss_plain))
                (loss + loss_of(model(images.flip(3)))).backward()
                (loss_plain + loss_of(plain(images.flip(3)))).backward()
        assert all_equal(grads_of(net), grads_of(plain))
    finally:
        torch.distributed.destroy_process_group()
