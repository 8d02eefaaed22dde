"""Runs of fine-tuning: their files, and those that were stopped, killed, finished or cannot begin."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from teaching import CLASSES, TINY, contents, new_trainer, photos
from tinysd import WIDTH, tiny

from fastmix.datasets import open_source
from fastmix.offline import finetune as teacher
from fastmix.offline.finetune import CHECKPOINT, Trainer, finetune
from fastmix.offline.finetuning import Finetuning, add_arguments, run
from fastmix.offline.folder import write
from fastmix.offline.generator import FINETUNED, Adapted, Generator
from fastmix.offline.pipelines import load_pipeline

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder that nothing disturbed, and its losses."""
    out = tmp_path_factory.mktemp("finished") / "out"
    return out, finetune(open_source(photos()), out, TINY, tiny())


def test_files_of_a_finished_run(finished):
    out, losses = finished
    assert len(losses) == 4 and np.isfinite(losses).all()
    words = {f"tokens/{number:04d}.safetensors" for number in range(CLASSES)}
    assert set(contents(out)) == {"adapter/pytorch_lora_weights.safetensors", FINETUNED} | words
    about = json.loads((out / FINETUNED).read_text())
    assert about["classes"] == sorted(about["classes"]) and about["classes"][1] == "cat" and len(about["classes"]) == 10
    assert about["tokens"] == [f"<class_{number}>" for number in range(CLASSES)]
    assert (about["metaclass"], about["rank"], about["seed"], about["model"]) == ("bird", 2, 0, tiny())
    assert about["model_hash"] == Generator(tiny()).hashes["model"]
    for number in range(CLASSES):
        ((token, vector),) = load_file(out / "tokens" / f"{number:04d}.safetensors").items()
        assert token == f"<class_{number}>" and vector.shape == (WIDTH,) and vector.dtype == torch.float32


def test_what_was_learned_is_loaded(finished):
    out, _ = finished
    generator, plain = Adapted.finetuned(out).load(), Generator(tiny())
    assert len(generator.token_names) == CLASSES and None not in generator.hashes.values()
    images, how = np.random.default_rng(1).random((1, 16, 16, 3), np.float32), (0.5, 4, 5.0, [1])
    made = [each.refine(images, ["a photo of a bird"], *how) for each in (generator, plain)]
    assert abs(made[0] - made[1]).max() > 1e-3  # LoRA
    made += [generator.refine(images, [f"a photo of a <class_{number}> bird"], *how) for number in (0, 1)]
    assert abs(made[2] - made[3]).max() > 1e-5  # words
    # Trained and loaded, the network says the same of the same noisy latents.
    trainer = new_trainer()
    for step in range(4):
        trainer.step(trainer.read(step))
    (samples,), parts = trainer.read(4), generator._pipeline
    with torch.no_grad():
        noisy = samples.noise[:, 0]
        expected = trainer.learner(noisy, samples.times, samples.words)
        got = parts.unet(noisy, samples.times, parts.text_encoder(samples.words)[0]).sample
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_a_finished_run_does_nothing(finished):
    out, _ = finished
    before = contents(out)
    assert finetune(open_source(photos()), out, replace(TINY, checkpoint=1), tiny()) is None
    assert contents(out) == before


class Stop(Exception):
    """What stops a run in the middle."""


def stopped(out, settings, step, monkeypatch):
    """A run that is stopped before a step."""
    real = Trainer.read

    def read(self, number):
        if number == step:
            raise Stop
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "read", read)
        with pytest.raises(Stop):
            finetune(open_source(photos()), out, settings, tiny())


@pytest.mark.parametrize(("every", "step", "left"), [(2, 3, 2), (1, 3, 1), (3, 2, 4)])
def test_a_resumed_run_equals_an_undisturbed_one(finished, tmp_path, monkeypatch, every, step, left):
    out, settings = tmp_path / "out", replace(TINY, checkpoint=every)
    stopped(out, settings, step, monkeypatch)
    torch.rand(7)  # draws of others change nothing
    assert finetune(open_source(photos()), out, settings, tiny()) == finished[1][-left:]
    assert contents(out) == contents(finished[0])


def test_a_run_that_was_stopped_while_it_wrote_its_result(finished, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def put(path, data):
        if path.name == "0005.safetensors":
            path.with_name(f".{path.name}.1").write_bytes(b"half")
            raise Stop
        write(path, data)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(teacher, "write", put)
        finetune(open_source(photos()), out, TINY, tiny())
    assert finetune(open_source(photos()), out, TINY, tiny()) == []
    assert contents(out) == contents(finished[0])


def test_the_command(finished, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    options = {"metaclass": "bird", "steps": 4, "batch-size": 4, "size": 16, "rank": 2, "learning-rate": 0.01}
    options |= {"weight-decay": 0.1, "checkpoint": 3}
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(quiet=False)  # its bar is for terminals only
    given = [photos(), str(out), "--model", tiny()]
    defaults = {name: value for name, value in vars(parser.parse_args(given)).items() if hasattr(Finetuning, name)}
    assert Finetuning(**defaults) == Finetuning()
    given += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    for expected in (
        f"wrote {out}: the loss was {np.mean(finished[1]):.4f} in the last 4 steps",
        f"{out} is finished: nothing to do",
    ):
        run(parser.parse_args(given))
        assert capsys.readouterr() == (f"{expected}\n", "")
    assert contents(out) == contents(finished[0])
    monkeypatch.setenv("RANK", "1")
    run(parser.parse_args(given))
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run(parser.parse_args([*given[:1], str(tmp_path / "other"), *given[2:]]))
    assert "fine-tuning: 100%" in capsys.readouterr().err


def test_a_killed_run_goes_on(finished, tmp_path):
    """Killed as soon as there is a checkpoint; half of another one is left lying about."""
    out = tmp_path / "out"
    words = ["finetune", photos(), str(out), "--model", tiny()]
    code = (
        "import sys, argparse, torch; torch.set_num_threads(1)\n"
        "from fastmix.offline.finetuning import add_arguments, run\n"
        "parser = argparse.ArgumentParser(); add_arguments(parser); parser.set_defaults(quiet=True)\n"
        "run(parser.parse_args(sys.argv[2:]))"
    )
    options = {"metaclass": "bird", "steps": 4, "batch-size": 4, "size": 16, "rank": 2, "learning-rate": 0.01}
    options |= {"weight-decay": 0.1, "checkpoint": 1}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([sys.executable, "-c", code, *words, *given], cwd=ROOT, stderr=subprocess.PIPE)
    while not (out / CHECKPOINT).is_file() and process.poll() is None:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert b"Error" not in process.communicate()[1]
    assert (out / CHECKPOINT).is_file() or (out / FINETUNED).is_file()
    (out / f".{CHECKPOINT}.1").write_bytes(b"half of a")
    losses = finetune(open_source(photos()), out, replace(TINY, checkpoint=1), tiny())
    assert losses is None or losses == finished[1][-len(losses) :]
    assert {name for name in contents(out) if not name.startswith(".")} == set(contents(finished[0]))
    for name, data in contents(finished[0]).items():
        assert contents(out)[name] == data


def test_what_a_folder_was_begun_with(finished, tmp_path, monkeypatch):
    source, out = open_source(photos()), tmp_path / "out"
    stopped(out, TINY, 3, monkeypatch)
    for folder in (out, finished[0]):
        with pytest.raises(ValueError, match="was begun with rank = 2, and now it is 3: go on with the same, or name"):
            finetune(source, folder, replace(TINY, rank=3), tiny())
        with pytest.raises(ValueError, match="was begun with model_hash"):
            finetune(source, folder, TINY, tiny(1))
    with pytest.raises(FileNotFoundError, match="expected a folder that `fastmix finetune` has finished"):
        Adapted.finetuned(out)
    (out / CHECKPOINT).write_bytes((out / CHECKPOINT).read_bytes()[:500])
    with pytest.raises(ValueError, match=r"cannot read .*checkpoint\.pt: .*; delete it to begin again"):
        finetune(source, out, TINY, tiny())


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no fine-tuning: name a new folder"):
        finetune(open_source(photos()), tmp_path / "full", TINY, tiny())
    with pytest.raises(ValueError, match="is a file, expected a folder"):
        finetune(open_source(photos()), tmp_path / "full" / "thesis.txt", TINY, tiny())


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, monkeypatch):
    out, real = tmp_path / "out", Trainer.loss

    def loss(self, samples):
        return real(self, samples) * (torch.nan if (out / CHECKPOINT).is_file() else 1)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="loss of step 2 is nan: set a lower learning"):
        patch.setattr(Trainer, "loss", loss)
        finetune(open_source(photos()), out, TINY, tiny())
    assert set(contents(out)) == {CHECKPOINT}
    assert len(finetune(open_source(photos()), out, TINY, tiny())) == 2


def test_models_that_cannot_be_taught(tmp_path):
    source = open_source(photos())
    with pytest.raises(ValueError, match="sees more than noise"):
        finetune(source, tmp_path / "out", TINY, tiny(edits=True))
    with pytest.raises(ValueError, match="predicts 'sample', expected epsilon or v_prediction"):
        finetune(source, tmp_path / "out", TINY, tiny(prediction="sample"))
    with pytest.raises(ValueError, match="size is 15, expected a multiple of 2"):
        finetune(source, tmp_path / "out", replace(TINY, size=15), tiny())
    with pytest.raises(ValueError, match=r"caption 'a photo of a <class_0> bird' has 8 tokens, expected at most 7"):
        finetune(source, tmp_path / "out", TINY, tiny(words=7))
    pipeline = load_pipeline(tiny())[1]
    pipeline.tokenizer.add_tokens(["<class_4>"])
    pipeline.save_pretrained(tmp_path / "named")
    with pytest.raises(ValueError, match="token <class_4> is already in the model's vocabulary"):
        finetune(source, tmp_path / "out", TINY, tmp_path / "named")
    assert not (tmp_path / "out").exists()


def test_nobody_else_sees_the_draws(capfd, tmp_path):
    torch.rand(3)  # or it might stand where the last one left it
    before = torch.get_rng_state()
    finetune(open_source(photos()), tmp_path / "out", replace(TINY, steps=1), tiny())
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")
