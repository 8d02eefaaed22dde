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
    from .mapfile import MapFile
    from .maps import MapBank
    from .methods.attentivecutmix import AttentiveCutMix
    from .methods.augmix import AugMix
    from .methods.cutmix import CutMix
    from .methods.gradmix import GradMix
    from .methods.guidedmixup import GuidedMixup
    from .methods.ipmix import IPMix
    from .methods.layermix import LayerMix
    from .methods.mixup import MixUp
    from .methods.pixmix import PixMix
    from .methods.saliencymix import SaliencyMix
    from .methods.sgmix import SGMix
    from .mixing import mix
    from .pools import default_pool, make_pool, pack_pool
    from .saliency import SpectralResidual
    from .synthetic import Synthetic
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
    "GuidedMixup",
    "IPMix",
    "Key",
    "LayerMix",
    "MapBank",
    "MapFile",
    "Method",
    "MixUp",
    "Params",
    "PixMix",
    "Pool",
    "SGMix",
    "SaliencyMix",
    "SpectralResidual",
    "Synthetic",
    "Targets",
    "default_pool",
    "make_pool",
    "mix",
    "pack_pool",
]

_METHODS = (
    "AttentiveCutMix",
    "AugMix",
    "CutMix",
    "GradMix",
    "GuidedMixup",
    "IPMix",
    "LayerMix",
    "MixUp",
    "PixMix",
    "SGMix",
    "SaliencyMix",
)
_HOMES = {
    "datasets": ("ArrayDataset",),
    "engine.jitter": ("ColorJitter",),
    "loaders.torch": ("DataLoader",),
    "mapfile": ("MapFile",),
    "maps": ("MapBank",),
    "mixing": ("mix",),
    "pools": ("default_pool", "make_pool", "pack_pool"),
    "saliency": ("SpectralResidual",),
    "synthetic": ("Synthetic",),
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
