"""fastmix as it is measured: the papers' settings, and one loader on which the methods take turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastmix import AugMix, CutMix, DataLoader, IPMix, LayerMix, Method, MixUp, PixMix

PLAIN = "plain"
METHODS: dict[str, Method | None] = {
    PLAIN: None,
    "mixup": MixUp.imagenet(),
    "cutmix": CutMix.imagenet(),
    "augmix": AugMix.imagenet(),
    "pixmix": PixMix.imagenet(),
    "ipmix": IPMix.imagenet(),
    "layermix": LayerMix.imagenet(),
}


def own_loader(dataset: Any, **options: Any) -> DataLoader:
    """What `baselines.torch_loader` is, in fastmix: the same batches, order and number of workers."""
    common = {"batch_size": 128, "shuffle": True, "num_workers": 2, "drop_last": True, "seed": 0}
    return DataLoader(dataset, **{**common, **options})


@dataclass(frozen=True)
class Turn:
    """An epoch of `loader` with one method.

    The methods share a loader, and so its batch buffers: seven loaders would keep two gigabytes that no user keeps.
    """

    loader: DataLoader
    mix: Method | None

    def __iter__(self) -> Iterator[Any]:
        self.loader.mix = self.mix
        return iter(self.loader)
