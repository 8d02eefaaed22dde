"""Launch code with devices that only record: which memory, stream and grid a launch gets, in which order."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_host import HostDevice

from fastmix.kernels import Mode, Program, Source, backend_for, cuda_device
from fastmix.kernels.cuda import Cuda
from fastmix.kernels.cuda_device import CupyDevice
from fastmix.loaders.torch.device import CudaLane

NO_KEY = np.zeros(3, np.uint32)


class FakeArray:
    """A CuPy array, as far as launches look at it; its memory is NumPy's."""

    def __init__(self, memory: Any) -> None:
        self.memory = np.asarray(memory)
        self.data = SimpleNamespace(memset_async=self._clear)

    def _clear(self, value: int, size: int) -> None:
        assert size == self.memory.nbytes
        LOG.append("memset")
        self.memory[...] = value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.memory.ctypes.data, False), "typestr": self.memory.dtype.str}

    shape = property(lambda self: self.memory.shape)
    nbytes = property(lambda self: self.memory.nbytes)

    def view(self, dtype: Any) -> FakeArray:
        return FakeArray(self.memory.view(dtype))

    def reshape(self, *shape: Any) -> FakeArray:
        return FakeArray(self.memory.reshape(*shape))

    def __getitem__(self, at: Any) -> FakeArray:
        return FakeArray(self.memory[at])

    def __setitem__(self, at: Any, value: FakeArray) -> None:
        self.memory[at] = value.memory


LOG: list[Any] = []


def as_fake(given: Any) -> FakeArray:
    if isinstance(given, FakeArray):
        return given
    return FakeArray(given.memory if hasattr(given, "memory") else given)


class FakeTensor:
    """A CUDA tensor that torch made; `pinned` ones are the host's."""

    def __init__(self, size: int, pinned: bool) -> None:
        self.memory, self.pinned = np.full(size, 77, np.uint8), pinned

    def numpy(self) -> Any:
        assert self.pinned
        return self.memory

    def to(self, device: str, non_blocking: bool) -> FakeTensor:
        assert device == "cuda:3" and non_blocking and self.pinned
        LOG.append("copy")
        made = FakeTensor(self.memory.size, False)
        made.memory[:] = self.memory
        return made


@contextmanager
def entered(name: Any) -> Any:
    LOG.append(("enter", name))
    yield SimpleNamespace(id=0)
    LOG.append(("leave", name))


def fake_torch() -> Any:
    def empty(size: int, dtype: Any, device: str = "cpu", pin_memory: bool = False) -> FakeTensor:
        assert dtype == "bytes" and (device == "cuda:3") != pin_memory
        LOG.append("torch pinned" if pin_memory else "torch memory")
        return FakeTensor(size, pin_memory)

    def current_stream(number: int) -> Any:
        assert number == 3  # that of the tensors, whatever the current device
        return SimpleNamespace(cuda_stream=4242)

    there = SimpleNamespace(current_stream=current_stream, device=lambda number: entered(("torch", number)))
    return SimpleNamespace(empty=empty, uint8="bytes", cuda=there)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy that records; launches go to the CPU's kernels."""
    LOG.clear()
    host = HostDevice()

    class Function:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, grid: tuple[int, int], block: tuple[int], args: tuple[Any, ...]) -> None:
            LOG.append(("launch", self.name, grid, block))
            host.launch(self.name, grid, block[0], *(a.memory if isinstance(a, FakeArray) else a for a in args))

    class Device:
        def __init__(self, number: int) -> None:
            self.inside = entered(("device", number))
            self.synchronize = lambda: LOG.append("wait for the device")

        def __enter__(self) -> Any:
            return self.inside.__enter__()

        def __exit__(self, *error: Any) -> Any:
            return self.inside.__exit__(*error)

    def fresh(shape: Any, dtype: Any) -> FakeArray:
        LOG.append("cupy memory")
        return FakeArray(np.full(shape, 77, dtype))

    made = SimpleNamespace(
        asarray=as_fake,
        empty=fresh,
        cuda=SimpleNamespace(
            Device=Device,
            Stream=SimpleNamespace(from_external=lambda stream: entered(("stream", stream.cuda_stream))),
            get_current_stream=lambda: SimpleNamespace(ptr=11, synchronize=lambda: LOG.append("wait")),
        ),
    )
    monkeypatch.setattr(cuda_device, "_cupy", lambda: made)
    monkeypatch.setattr(cuda_device, "_module", lambda: SimpleNamespace(get_function=Function))
    return made


def programs(count: int, size: tuple[int, int]) -> Program:
    made = Program.empty(np.arange(count), NO_KEY, size, layers=1, chain=0, steps=1)
    made.layers["source"], made.layers["index"][:, 0] = Source.MATE, np.arange(count)[::-1]
    made.steps["mode"], made.steps["a"], made.steps["b"] = Mode.LINEAR, 0.5, 0.5
    return made


@pytest.mark.usefixtures("cupy")
def test_tensors_are_mixed_on_torchs_stream_in_torchs_memory() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    out = FakeArray(np.zeros_like(images))
    Cuda(CupyDevice(3, fake_torch())).mix(FakeArray(images), FakeArray(images[:0]), programs(3, (8, 8)), out, 0, 3)
    np.testing.assert_array_equal(out.memory, np.uint8((images.astype(int) + images[::-1] + 1) // 2))
    assert [entry[1] for entry in LOG if entry[0] == "launch"] == ["fold"]
    assert "cupy memory" not in LOG and "torch memory" in LOG
    launched = next(i for i, entry in enumerate(LOG) if entry[0] == "launch")
    for inside in (("device", 3), ("torch", 3), ("stream", 4242)):
        assert LOG[:launched].count(("enter", inside)) == LOG[:launched].count(("leave", inside)) + 1


@pytest.mark.usefixtures("cupy")
def test_cupy_arrays_need_no_torch() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    out = FakeArray(np.zeros_like(images))
    Cuda(CupyDevice(3)).mix(FakeArray(images), FakeArray(images[:0]), programs(2, (5, 7)), out, 0, 2)
    np.testing.assert_array_equal(out.memory, np.uint8((images.astype(int) + images[::-1] + 1) // 2))
    assert "torch memory" not in LOG


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("torch_", [None, "torch"])
def test_uploads_are_one_copy_of_aligned_parts(torch_: str | None) -> None:
    parts = (
        np.arange(5, dtype=np.uint8),
        np.arange(3, dtype=np.float64),
        np.zeros(0, np.int32),
        np.arange(7, dtype=">i2"),
    )
    sent = CupyDevice(3, fake_torch() if torch_ else None).upload(*parts)
    assert LOG.count("copy") == (1 if torch_ else 0)
    start = sent[0].memory.ctypes.data
    for part, each in zip(parts, sent, strict=True):
        assert each.memory.tobytes() == part.tobytes() and (each.memory.ctypes.data - start) % 16 == 0


@pytest.mark.usefixtures("cupy")
def test_memory_is_cleared_and_pools_are_sent_once() -> None:
    device = CupyDevice(3, fake_torch())
    made = device.empty((3, 2), np.int32)
    device.clear(made)
    assert made.shape == (3, 2) and not made.memory.any() and "memset" in LOG
    pool = np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3)
    kept = device.keep(pool[:])
    np.testing.assert_array_equal(kept.memory, pool)
    assert LOG.index("wait") > LOG.index("copy")
    LOG.clear()
    assert device.keep(pool[:]) is kept and "copy" not in LOG
    assert len(device._kept) == 1
    del pool
    assert len(device._kept) == 0 and LOG[-1] == "wait for the device"


def test_backends_by_array(monkeypatch: pytest.MonkeyPatch) -> None:
    class There(FakeArray):
        is_cuda, device = True, SimpleNamespace(index=2, id=1)

    array = There(np.zeros(1))
    monkeypatch.setattr(torch, "Tensor", There)
    of_torch: Any = backend_for(array)
    assert (of_torch._device._number, of_torch._device._torch) == (2, sys.modules["torch"])
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=There))
    of_cupy: Any = backend_for(array)
    assert (of_cupy._device._number, of_cupy._device._torch) == (1, None)
    for other in (torch.zeros(1), FakeArray(np.zeros(1)), [0]):
        with pytest.raises(TypeError, match=r"no backend for .*: pass a NumPy array, a CUDA tensor or a CuPy array"):
            backend_for(other)


def test_pictures_that_no_grid_can_hold() -> None:
    large = np.zeros((1, 4097, 4097, 3), np.uint8)
    with pytest.raises(ValueError, match="filter3x3 takes 65569 blocks a picture, a GPU has 65535: mix such pictures"):
        Cuda(HostDevice()).filter3x3(large, np.zeros((3, 3), np.float32), large, 0, 1)


def test_a_lane_orders_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    users = SimpleNamespace(wait_event=lambda event: LOG.append(("wait", event)))
    own = SimpleNamespace(record_event=lambda: "event")
    inside: list[Any] = []

    @contextmanager
    def streaming(stream: Any) -> Any:
        inside.append(stream)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device", lambda device: entered(device))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: own)
    monkeypatch.setattr(torch.cuda, "stream", streaming)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: inside[-1] if inside else users)
    lane = CudaLane(torch.device("cuda:1"))
    assert LOG == []
    with lane.working():
        done = lane.mark()
    assert done == "event"
    tensor: Any = SimpleNamespace(record_stream=lambda stream: LOG.append(("record", stream)))
    assert lane.hand_over(tensor, done) is tensor
    assert LOG[-3:-1] == [("wait", "event"), ("record", users)]
