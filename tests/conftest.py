"""Fixtures shared by all tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from typing import cast

import bare  # noqa: F401  # first: it fills in for packages that the others import
import pytest
from cuda_real import has_gpu
from loading import threads

from fastmix.kernels import Backend


def _named(name: str) -> Backend:
    """A backend, imported when it is first asked for; "cuda" are the GPU's kernels on a CPU, "gpu" on a GPU."""
    if name in ("cuda", "gpu"):
        return cast(Backend, import_module("cuda_host" if name == "cuda" else "cuda_real").backend())
    return cast(Backend, import_module(f"fastmix.kernels.{name}"))


@pytest.fixture(params=["reference", "cpu", "cuda", pytest.param("gpu", marks=pytest.mark.gpu)][: 3 + has_gpu()])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend in turn; the GPU only where there is one, for it would be hundreds of skipped tests."""
    return _named(request.param)


@pytest.fixture(params=["reference", "cpu"])
def host_backend(request: pytest.FixtureRequest) -> Backend:
    """Those that make maps of pictures, and fractals, which the GPU does not."""
    return _named(request.param)


@pytest.fixture
def cpu() -> Backend:
    """The fast backend, for tests that compare it with the reference."""
    return cast(Backend, import_module("fastmix.kernels.cpu"))


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """The threads of a loader are gone within a second after the test."""
    yield
    deadline = time.monotonic() + 1
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == []
