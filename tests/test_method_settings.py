"""Presets of the methods, and what they say to settings and pools that cannot work."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from fastmix.methods.augmix import AugMix
from fastmix.methods.cutmix import CutMix
from fastmix.methods.ipmix import IPMix
from fastmix.methods.layermix import LayerMix
from fastmix.methods.mixup import MixUp
from fastmix.methods.pixmix import PixMix
from fastmix.rng import Key
from fastmix.types import Batch, Method, Pool

POOL = Pool(np.zeros((5, 40, 37, 3), np.uint8))
KEY = Key(7, 2)


def batch(size: tuple[int, int]) -> Batch:
    """Two black pictures."""
    return Batch.of(np.zeros((2, *size, 3), np.uint8), [0, 1])


def test_presets_hold_the_papers_settings() -> None:
    """Numbers of the papers' runs; changes win over them."""
    assert (PixMix.cifar().k, PixMix.cifar().beta, PixMix.cifar().severity) == (4, 3, 3)
    assert (PixMix.imagenet().k, PixMix.imagenet().beta, PixMix.imagenet().severity) == (4, 4, 1)
    assert (IPMix.cifar().beta, IPMix.cifar().severity, IPMix.cifar().patch_sizes) == (3, 3, (4, 8, 16, 32))
    assert (IPMix.imagenet().beta, IPMix.imagenet().severity, IPMix.imagenet().patch_source) == (4, 1, "either")
    assert IPMix.imagenet().patch_sizes == (4, 8, 16, 32, 64, 224)
    assert (LayerMix.cifar().magnitude, LayerMix.cifar().beta) == (8, 3)
    assert (LayerMix.imagenet().magnitude, LayerMix.imagenet().beta) == (1, 4)
    assert (AugMix.cifar().severity, AugMix.imagenet().severity) == (3, 1)
    assert (MixUp.cifar().alpha, MixUp.imagenet().alpha, CutMix.cifar().alpha, CutMix.imagenet().alpha) == (
        1,
        0.2,
        1,
        1,
    )
    for kind in (MixUp, CutMix, AugMix, PixMix, IPMix, LayerMix):
        assert not kind.cifar(enabled=False).enabled and kind.imagenet().enabled  # type: ignore[attr-defined]
        assert isinstance(kind(), Method) and fields(kind)[-1].name == "enabled"
        assert kind.label_preserving == (kind not in (MixUp, CutMix))


NAN = float("nan")
BAD: list[tuple[Any, dict[str, Any]]] = [
    *((kind, {"alpha": value}) for kind in (MixUp, CutMix, AugMix) for value in (0, -1.0, NAN, float("inf"))),
    *((kind, {"group": value}) for kind in (MixUp, CutMix) for value in (0, 2.5)),
    *((kind, {"mode": "pair"}) for kind in (MixUp, CutMix)),
    *((kind, {"num_classes": 0}) for kind in (MixUp, CutMix)),
    *((kind, {"beta": value}) for kind in (PixMix, IPMix, LayerMix) for value in (0, -3, NAN)),
    *((kind, {"severity": value}) for kind in (AugMix, PixMix, IPMix) for value in (0.1, 10.5, NAN)),
    *((LayerMix, {"magnitude": value}) for value in (0, 11)),
    *((AugMix, {"depth": value}) for value in (0, -2, 1.5)),
    *((kind, {"width": -1}) for kind in (AugMix, IPMix)),
    *((LayerMix, {"min_bits": value}) for value in (-1, 5)),
    *((IPMix, {"patch_sizes": value}) for value in ((), (4, 0))),
    (PixMix, {"k": -1}),
    (IPMix, {"depth": -1}),
    (IPMix, {"patch_source": "self"}),
    (IPMix, {"overflow": "none"}),
]


@pytest.mark.parametrize(("kind", "setting"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_settings(kind: Any, setting: dict[str, Any]) -> None:
    """One ValueError that names the setting, what is expected and a fix."""
    [(field, value)] = setting.items()
    with pytest.raises(ValueError, match=rf"{field}.* is .*, expected .*: .") as error:
        kind(**setting)
    assert str(value if field != "patch_sizes" or not value else 0) in str(error.value)


@pytest.mark.parametrize("kind", [PixMix, IPMix, LayerMix])
def test_bad_pools(kind: Any) -> None:
    """A missing pool and a pool that is too small in either direction."""
    with pytest.raises(ValueError, match=r"pool is None.*default_pool\(\)"):
        kind().draw(KEY, batch((9, 9)))
    for size in ((41, 5), (5, 38)):
        with pytest.raises(ValueError, match=rf"40 x 37.*{size[0]} x {size[1]}.*pool make --size {max(size)}"):
            kind(pool=POOL).draw(KEY, batch(size))
