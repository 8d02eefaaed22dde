"""A small fine-tuning, for the tests of it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from tinysd import tiny

from fastmix.datasets import open_source
from fastmix.offline.finetune import Trainer
from fastmix.offline.finetuning import Finetuning
from fastmix.offline.pipelines import load_pipeline
from fastmix.offline.sources import classes_of
from fastmix.photos import cut_photos

CLASSES = 10
TINY = Finetuning(
    metaclass="bird", steps=4, batch_size=4, size=16, rank=2, learning_rate=1e-2, weight_decay=0.1, checkpoint=2
)


@cache
def photos() -> str:
    """A folder of 12 photographs of 10 classes, of the sizes that photographs have; made once a run."""
    folder = tempfile.mkdtemp(prefix="photos-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cut_photos(folder, 12)
    return folder


def new_trainer(settings: Finetuning = TINY, model: str | Path | None = None) -> Trainer:
    """One that has done nothing yet."""
    source = open_source(photos())
    return Trainer(load_pipeline(model or tiny())[1], source, classes_of(source), settings)


def contents(folder: str | Path) -> dict[str, bytes]:
    """All files of a folder but for the lock, by their names below it."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
