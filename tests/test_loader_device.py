"""Crops that are sent to a device and mixed there: all of the loader, with a device that is the CPU in disguise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cuda_lane import HostLane

import fastmix
from fastmix.loaders.torch import device as device_module
from fastmix.loaders.torch import loader as loader_module
from fastmix.loaders.torch.device import Sender

SIZE = 48


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> HostLane:
    """device="cuda" is this lane."""
    made = HostLane()

    def sender(device: Any, output: str, kept: Any) -> Any:
        return device and kept.once(output, lambda: Sender(made, getattr(torch, output)))

    monkeypatch.setattr(loader_module, "sender", sender)
    return made


def pictures(count: int = 11) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    small = torch.from_numpy(rng.integers(0, 256, (count, 3, 7, 9)).astype(np.float32))
    large = torch.nn.functional.interpolate(small, (60, 70), mode="bilinear")
    return large.permute(0, 2, 3, 1).to(torch.uint8).numpy().copy(), np.arange(count) % 3


def batches(device: str | None, epochs: int = 2, **options: Any) -> list[Any]:
    settings = {"batch_size": 4, "shuffle": True, "seed": 5, "size": SIZE, "num_classes": 3, "device": device} | options
    loader = fastmix.DataLoader(pictures(), **settings)
    return [batch for _ in range(epochs) for batch in loader]


def assert_close(made: list[Any], expected: list[Any], share: float = 1e-3) -> None:
    """The same labels, and levels that differ by one at most, in few values."""
    assert len(made) == len(expected)
    for (images, labels), (wanted, other) in zip(made, expected, strict=True):
        torch.testing.assert_close(labels, other, rtol=0, atol=0)
        assert images.dtype == wanted.dtype and images.shape == wanted.shape
        apart = (images.to(torch.int64) - wanted.to(torch.int64)).abs()
        assert apart.max() <= 1 and (apart > 0).double().mean() <= share


POOL = fastmix.Pool(np.random.default_rng(1).integers(0, 256, (3, 50, 61, 3), dtype=np.uint8))
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixup": {"mix": fastmix.MixUp()},
    "cutmix": {"mix": fastmix.CutMix()},
    "augmix": {"mix": fastmix.AugMix()},
    "augmix, three views": {"mix": fastmix.AugMix(), "views": 3},
    "pixmix": {"mix": fastmix.PixMix(pool=POOL)},
    "ipmix": {"mix": fastmix.IPMix(pool=POOL)},
    "layermix": {"mix": fastmix.LayerMix(pool=POOL)},
    "layermix, two views": {"mix": fastmix.LayerMix(pool=POOL), "views": 2},
    "sgmix": {"mix": fastmix.SGMix(group=4), "maps": fastmix.SpectralResidual()},
    "saliencymix": {"mix": fastmix.SaliencyMix(), "maps": fastmix.SpectralResidual()},
    "guidedmixup": {"mix": fastmix.GuidedMixup(), "maps": fastmix.SpectralResidual()},
    "jitter": {"jitter": fastmix.ColorJitter()},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_device_makes_the_pictures_of_cpus(lane: HostLane, name: str, threads: int) -> None:
    options = {"output": "uint8", "num_workers": threads, **METHODS[name]}
    assert_close(batches("cuda", **options), batches(None, **options))
    assert lane.calls.count("hand over") == lane.calls.count("upload") == lane.calls.count("mark") == 6


@pytest.mark.usefixtures("lane")
@pytest.mark.parametrize("output", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_outputs(output: str, form: torch.memory_format) -> None:
    options = {"output": output, "memory_format": form, "mix": fastmix.MixUp()}
    for (made, labels), (images, other) in zip(batches("cuda", **options), batches(None, **options), strict=True):
        assert made.dtype == images.dtype and made.stride() == images.stride()
        assert torch.equal(made, images) and torch.equal(labels, other)


@pytest.mark.usefixtures("lane")
def test_labels_come_along() -> None:
    for labels in ("soft", "pair"):
        options = {"mix": fastmix.CutMix(), "labels": labels, "output": "uint8"}
        for (_, made), (_, expected) in zip(batches("cuda", **options), batches(None, **options), strict=True):
            torch.testing.assert_close(made, expected, rtol=0, atol=0)


def test_crops_are_lent_again_only_when_they_are_copied(lane: HostLane) -> None:
    loader = fastmix.DataLoader(pictures(), batch_size=1, size=SIZE, seed=1, device="cuda", output="uint8")
    for _ in loader:
        pass
    assert lane.calls.count("memory") <= 3
    lane.calls.clear()
    lane.finished = False
    for _ in loader:
        pass
    assert lane.calls.count("memory") >= 9


def test_an_error_on_the_device_is_told(lane: HostLane, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_array: Any) -> Any:
        raise MemoryError("no room on the device")

    monkeypatch.setattr(lane, "upload", refuse)
    with pytest.raises(fastmix.FastmixError, match="stage send: MemoryError: no room on the device"):
        batches("cuda", num_workers=2)


@pytest.mark.usefixtures("lane")
def test_resume_and_explain() -> None:
    loader = fastmix.DataLoader(
        pictures(),
        batch_size=4,
        shuffle=True,
        seed=2,
        size=SIZE,
        device="cuda",
        output="uint8",
        mix=fastmix.MixUp(),
        num_classes=3,
    )
    whole = [batch for _ in range(2) for batch in loader]
    loader.set_epoch(0)
    first = next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    rest = [batch for _ in range(2) for batch in loader][:5]
    for (made, _), (expected, _) in zip([first, *rest], whole, strict=True):
        assert torch.equal(made, expected)
    assert loader.explain(3, 0).id == 3
    assert loader.memory_bound() > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_told_when_it_is_needed() -> None:
    loader = fastmix.DataLoader(pictures(), size=SIZE, device="cuda")
    assert not torch.cuda.is_initialized()
    with pytest.raises(RuntimeError, match="device is 'cuda', but torch finds no GPU here: pass device=None"):
        next(iter(loader))


def test_devices() -> None:
    assert device_module.check_device(None) is None and device_module.check_device("cpu") is None
    assert device_module.check_device("cuda:1") == torch.device("cuda:1")
    for wrong in ("xpu", "gpu", "", "cuda:-1", 1.5, []):
        with pytest.raises(ValueError, match=r"device is .*, expected None, 'cpu' or 'cuda'"):
            device_module.check_device(wrong)
