"""Fixtures shared by all tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from typing import cast

import pytest
from loading import threads

from fastmix.kernels import Backend


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend in turn, imported when it is first asked for."""
    return cast(Backend, import_module(f"fastmix.kernels.{request.param}"))


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
