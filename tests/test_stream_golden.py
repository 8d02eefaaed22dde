"""The promise that outlives a release: the same seed gives the batches that are recorded in data/streams.json.

The pictures come from integer arithmetic and are stored without loss, so no decoder's version matters.  A draw is
computed in float64 and rounded to float32 or to whole pixels before it touches a picture, and the pixels from
IEEE-exact float32 operations: so digests agree over CPUs and NumPy builds, whose float64 logarithms differ in the last
place, but for one draw in about 10^8.

Run this file to record the digests anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastmix import (
    AttentiveCutMix,
    AugMix,
    ColorJitter,
    CutMix,
    DataLoader,
    GradMix,
    GuidedMixup,
    IPMix,
    LayerMix,
    MapBank,
    MixUp,
    PixMix,
    Pool,
    SaliencyMix,
    SGMix,
)
from fastmix.engine.progress import STREAM_VERSION

RECORDED = Path(__file__).parent / "data" / "streams.json"
CLASSES, SEED, EPOCHS = 5, 2024, 2


def picture(number: int, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8: rings, edges and some noise, by integers alone."""
    y, x, c = np.indices((height, width, 3), np.int64)
    rings = ((x - 7 * number) ** 2 + (y - 11) ** 2 * (number + 1)) // (40 + 9 * c)
    noise = (x * 7919 + y * 104729 + c * 1299709 + number * 15485863) * 2654435761 >> 13
    edges = 90 * (x * 3 > width * (1 + c % 2)) + 60 * (y * (number % 3 + 1) > height)
    return (rings % 96 + noise % 24 + edges).astype(np.uint8)


POOL = Pool(np.stack([picture(40 + i, 52, 56) for i in range(4)]))
METHODS = {
    "plain": None,
    "mixup": MixUp(alpha=0.4),
    "cutmix": CutMix(mode="elem"),
    "augmix": AugMix.cifar(all_ops=True),
    "pixmix": PixMix.cifar(pool=POOL),
    "ipmix": IPMix.imagenet(pool=POOL),
    "layermix": LayerMix.cifar(pool=POOL),
}


def png_folder(root: Path) -> Any:
    """21 files of 3 sizes in 3 classes."""
    for i, size in enumerate([(61, 83), (120, 75), (48, 49)] * 7):
        folder = root / f"class{i % 3}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture(i, *size)).save(folder / f"{i:02d}.png")
    return root


def arrays(_root: Path) -> Any:
    """37 pictures of 32 x 32 in memory."""
    return np.stack([picture(i, 32, 32) for i in range(37)]), np.arange(37) % CLASSES


def mixed_sizes(_root: Path) -> Any:
    """A list of 20 arrays, taller, wider and smaller than the crop."""
    return [(picture(i, 31 + 5 * (i % 7), 77 - 9 * (i % 5)), i % CLASSES) for i in range(20)]


SETS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "png-random_resized": (png_folder, {"crop": "random_resized", "size": (40, 44), "batch_size": 8}),
    "arrays-pad4": (arrays, {"crop": "pad4", "size": 32, "batch_size": 18}),
    "list-center": (mixed_sizes, {"crop": "center", "size": 36, "hflip": 0.5, "batch_size": 7}),
}


OTHERS: dict[str, dict[str, Any]] = {
    "two-views": {"views": 2, "jitter": ColorJitter()},
    "two-views-cutmix": {"views": 2, "jitter": ColorJitter(), "mix": CutMix()},
    "gradmix": {"mix": GradMix.paper(), "maps": 1},
    "gradmix-two-views": {"mix": GradMix.repo(), "maps": 2, "views": 2},
    "attentivecutmix": {"mix": AttentiveCutMix(), "maps": 1},
    "saliencymix": {"mix": SaliencyMix(), "maps": 1},
    "guidedmixup": {"mix": GuidedMixup(blur=0), "maps": 1},
    "sgmix": {"mix": SGMix(), "maps": 1},
}


def other_digest(dataset: Any, options: dict[str, Any], name: str) -> str:
    """Of a stream with settings of its own; maps are levels of the pictures that they belong to."""
    other = dict(OTHERS[name])
    if "maps" in other:
        other["maps"] = MapBank(len(dataset[0]), (4, 4), views=other["maps"])
    return stream_digest(dataset, {**options, **other}, "plain")


def stream_digest(dataset: Any, options: dict[str, Any], name: str) -> str:
    """sha256 over ids, uint8 pictures, both labels and weights of all batches of some epochs."""
    options = {"mix": METHODS[name], **options}
    loader = DataLoader(dataset, shuffle=True, seed=SEED, output="uint8", labels="pair", **options)
    made = hashlib.sha256()
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        made.update(np.fromiter(loader.sampler, "<i8").tobytes())
        for images, (a, b, w) in loader:
            for tensor, dtype in ((images, "u1"), (a, "<i8"), (b, "<i8"), (w, "<f4")):
                made.update(tensor.numpy().astype(dtype).tobytes())
            if loader.maps is not None:
                made.update(loader.delivered.weights.astype("<f4").tobytes())
                clean = images[: len(loader.delivered.ids) * loader.maps.views]
                loader.put_maps(clean[:, 0, ::8, ::8].contiguous())
    return made.hexdigest()


def record(root: Path) -> dict[str, Any]:
    """The digests of every data set with every method."""
    digests = {}
    for kind, (make, options) in SETS.items():
        folder = root / kind
        folder.mkdir()
        dataset = make(folder)
        digests[kind] = {name: stream_digest(dataset, options, name) for name in METHODS}
    digests["others"] = {name: other_digest(arrays(root), SETS["arrays-pad4"][1], name) for name in OTHERS}
    return {"stream_version": STREAM_VERSION, "digests": digests}


@functools.cache
def recorded() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(RECORDED.read_text())
    return made


@pytest.mark.parametrize("kind", SETS)
def test_streams_are_those_of_earlier_releases(kind: str, tmp_path: Path) -> None:
    make, options = SETS[kind]
    dataset, want = make(tmp_path), recorded()["digests"][kind]
    found = {name: stream_digest(dataset, options, name) for name in METHODS}
    changed = [name for name in METHODS if found[name] != want[name]]
    assert not changed, (
        f"the batches of {', '.join(changed)} on {kind} are no longer those of stream version {STREAM_VERSION}: undo "
        "that, or raise STREAM_VERSION, tell of it in CHANGELOG.md and run tests/test_stream_golden.py"
    )


@pytest.mark.parametrize("name", OTHERS)
def test_other_streams_are_those_of_earlier_releases(name: str, tmp_path: Path) -> None:
    found = other_digest(arrays(tmp_path), SETS["arrays-pad4"][1], name)
    assert found == recorded()["digests"]["others"][name], f"the batches of {name} have changed: see the test above"


@pytest.mark.parametrize("part", ["numpy", "kernels"])
def test_streams_do_not_depend_on_the_vector_units(part: str, tmp_path: Path) -> None:
    """NumPy without its vectorised functions, which differ in the last place; kernels compiled for plain AVX2."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if part == "numpy" and not found:
        pytest.skip("NumPy found no vector units here that could be switched off")
    if part == "kernels" and platform.machine() != "x86_64":
        pytest.skip(f"{platform.machine()} is not x86_64, where kernels can be compiled for a smaller processor")
    change = {"NPY_DISABLE_CPU_FEATURES": " ".join(found)} if part == "numpy" else {"NUMBA_CPU_NAME": "x86-64-v3"}
    here = Path(__file__)
    env = {**os.environ, **change, "PYTHONPATH": f"{here.parent}:{here.parents[1]}"}
    code = "import json, sys; import test_stream_golden as t; json.dump(t.record(t.Path(sys.argv[1])), sys.stdout)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=here.parents[1], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == recorded()


def test_the_recorded_version_is_the_programs() -> None:
    assert recorded()["stream_version"] == STREAM_VERSION


def test_every_stream_is_another() -> None:
    """A method that did nothing, or a crop that was ignored, would have the digest of another stream."""
    digests = [digest for streams in recorded()["digests"].values() for digest in streams.values()]
    assert len(set(digests)) == len(SETS) * len(METHODS) + len(OTHERS) == 29


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        RECORDED.write_text(json.dumps(record(Path(scratch)), indent=1) + "\n")
