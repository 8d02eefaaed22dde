"""Fixtures shared by all tests."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import pytest

from fastmix.kernels import Backend


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend in turn, imported when it is first asked for."""
    return cast(Backend, import_module(f"fastmix.kernels.{request.param}"))


@pytest.fixture
def cpu() -> Backend:
    """The fast backend, for tests that compare it with the reference."""
    return cast(Backend, import_module("fastmix.kernels.cpu"))
