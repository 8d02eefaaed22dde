"""fastmix: image mixing augmentation at the price of a crop.

Everything is loaded when it is first used; importing the package loads NumPy alone.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasets import ArrayDataset
    from .engine.jitter import ColorJitter
    from .loaders.torch import DataLoader
    from .maps import MapBank
    from .methods.attentivecutmix import AttentiveCutMix
    from .methods.augmix import AugMix
    from .methods.cutmix import CutMix
    from .methods.gradmix import GradMix
    from .methods.ipmix import IPMix
    from .methods.layermix import LayerMix
    from .methods.mixup import MixUp
    from .methods.pixmix import PixMix
    from .mixing import mix
    from .pools import default_pool, make_pool, pack_pool
    from .types import Batch, FastmixError, Key, Method, Params, Pool, Targets

__all__ = [
    "ArrayDataset",
    "AttentiveCutMix",
    "AugMix",
    "Batch",
    "ColorJitter",
    "CutMix",
    "DataLoader",
    "FastmixError",
    "GradMix",
    "IPMix",
    "Key",
    "LayerMix",
    "MapBank",
    "Method",
    "MixUp",
    "Params",
    "PixMix",
    "Pool",
    "Targets",
    "default_pool",
    "make_pool",
    "mix",
    "pack_pool",
]

_METHODS = ("AttentiveCutMix", "AugMix", "CutMix", "GradMix", "IPMix", "LayerMix", "MixUp", "PixMix")
_HOMES = {
    "datasets": ("ArrayDataset",),
    "engine.jitter": ("ColorJitter",),
    "loaders.torch": ("DataLoader",),
    "maps": ("MapBank",),
    "mixing": ("mix",),
    "pools": ("default_pool", "make_pool", "pack_pool"),
    "types": ("Batch", "FastmixError", "Key", "Method", "Params", "Pool", "Targets"),
    **{f"methods.{name.lower()}": (name,) for name in _METHODS},
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("fastmix")
        except PackageNotFoundError as error:
            raise AttributeError("fastmix is not installed, so it has no __version__") from error
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fastmix' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
