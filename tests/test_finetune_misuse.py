"""Fine-tuning where something is wrong: a second run, a full disk, broken or changed pictures, damaged files."""

import errno
import fcntl
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from teaching import TINY, contents, photos
from tinysd import tiny

from fastmix import FastmixError
from fastmix.datasets import open_source
from fastmix.offline.finetune import CHECKPOINT, Trainer, finetune
from fastmix.offline.finetuning import Finetuning
from fastmix.offline.generator import FINETUNED, Adapted

SHORT = replace(TINY, steps=1, checkpoint=1)


@pytest.fixture
def data(tmp_path):
    shutil.copytree(photos(), tmp_path / "data")
    return tmp_path / "data"


def test_two_runs_never_write_one_folder(tmp_path):
    out, source = tmp_path / "out", open_source(photos())
    out.mkdir()
    unfinished = out / f".{CHECKPOINT}.77"
    unfinished.write_bytes(b"half of a checkpoint, by the other run")
    with (out / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            ValueError, match=r"out is being written by another run: wait for it, or name another folder"
        ):
            finetune(source, out, SHORT, tiny())
        assert unfinished.exists()
    assert len(finetune(source, out, SHORT, tiny())) == 1 and not unfinished.exists()


def test_a_run_that_had_to_wait_finds_what_the_other_one_made(tmp_path, monkeypatch):
    out, source, real = tmp_path / "out", open_source(photos()), Trainer.__init__

    def late(self, *given):
        monkeypatch.setattr(Trainer, "__init__", real)
        finetune(source, out, SHORT, tiny())  # another one, from its begin to its end
        real(self, *given)

    monkeypatch.setattr(Trainer, "__init__", late)
    assert finetune(source, out, SHORT, tiny()) is None


@pytest.mark.parametrize("name", [CHECKPOINT, "pytorch_lora_weights.safetensors", "0003.safetensors", FINETUNED])
def test_a_full_disk_is_one_error_and_no_half_file(tmp_path, monkeypatch, name):
    out, source, real = tmp_path / "out", open_source(photos()), Path.write_bytes

    def full(path, data):
        if name in path.name:
            real(path, data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match=rf"cannot write .*{name}: No space left .*; make"),
    ):
        patch.setattr(Path, "write_bytes", full)
        finetune(source, out, SHORT, tiny())
    assert name not in {Path(file).name for file in contents(out)}
    assert not [file for file in contents(out) if Path(file).name.startswith(".")]
    losses = finetune(source, out, SHORT, tiny())  # nothing is done twice that was kept
    assert len(losses) == (name == CHECKPOINT) and (out / FINETUNED).is_file()


def test_a_broken_picture_is_told_before_the_first_step(data, tmp_path, monkeypatch):
    file = sorted(data.rglob("*.jpg"))[-1]
    file.write_bytes(file.read_bytes()[:900])
    monkeypatch.setattr(Trainer, "step", None)
    with pytest.raises(FastmixError, match=rf"{file.name}.*; put a sound picture of the same name in its place"):
        finetune(open_source(data), tmp_path / "out", SHORT, tiny())
    assert not (tmp_path / "out").exists()


def test_changed_pictures_are_refused(data, tmp_path):
    out, file = tmp_path / "out", sorted(data.rglob("*.jpg"))[0]
    finetune(open_source(data), out, SHORT, tiny())
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(file)
    with pytest.raises(ValueError, match="was begun with other pictures under the same names: go on with the same, or"):
        finetune(open_source(data), out, SHORT, tiny())


def test_other_classes_are_told_by_what_differs(data, tmp_path):
    finetune(open_source(data), tmp_path / "out", SHORT, tiny())
    (data / "cat").rename(data / "tiger")
    with pytest.raises(ValueError, match=r"was begun with other classes \(missing: 'cat'; new: 'tiger'\)"):
        finetune(open_source(data), tmp_path / "out", SHORT, tiny())


def test_captions_are_checked_as_prompts_are(tmp_path):
    with pytest.raises(ValueError, match=r"caption 'a \{foo\} of \{token\}' has \{foo\}, expected none but \{token\}"):
        Finetuning(caption="a {foo} of {token}")
    for caption in (" ", 3):
        with pytest.raises(ValueError, match=r"a caption is .*, expected words such as"):
            Finetuning(caption=caption)
    with pytest.raises(
        ValueError, match=r"token <bar> of caption 'a <bar> of <class_0>' is unknown to the model, which"
    ):
        finetune(open_source(photos()), tmp_path / "out", replace(SHORT, caption="a <bar> of {token}"), tiny())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_a_damaged_list_is_named(tmp_path, text):
    (tmp_path / FINETUNED).write_text(text)
    for again in (
        lambda: finetune(open_source(photos()), tmp_path, SHORT, tiny()),
        lambda: Adapted.finetuned(tmp_path),
    ):
        with pytest.raises(
            ValueError, match=r"finetuned\.json.*[:;] put it back as it was, or fine-tune into a new folder"
        ):
            again()


def test_an_empty_name_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="model is '', expected a folder that save_pretrained wrote"):
        finetune(open_source(photos()), tmp_path / "out", SHORT, "")
