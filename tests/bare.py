"""Stand-ins for what only reading files, and keeping compiled kernels, needs: machines with a GPU may lack them."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def stand_in() -> list[str]:
    """Put modules in the place of packages that are not installed; returns their names."""
    missing = [name for name in ("simplejpeg", "platformdirs") if name not in sys.modules and find_spec(name) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
    if "platformdirs" in missing:
        folder = Path(tempfile.gettempdir()) / "fastmix-cache"
        sys.modules["platformdirs"].user_cache_dir = lambda name: str(folder / name)  # type: ignore[attr-defined]
    return missing


MISSING = stand_in()
