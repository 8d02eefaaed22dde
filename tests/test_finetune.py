"""The steps of fine-tuning a tiny model: what moves and what stays, the loss by hand, the draws, the settings."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from PIL import Image
from safetensors.torch import load_file
from teaching import CLASSES, TINY, new_trainer, photos
from tinysd import WIDTH, tiny

from fastmix.datasets import open_source
from fastmix.offline.finetuning import Finetuning
from fastmix.offline.learner import loss_weights
from fastmix.offline.pipelines import load_pipeline


def copies(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("steps", [1, 2])
def test_only_lora_and_new_words_move(steps):
    trainer = new_trainer()
    before, vae = copies(trainer.learner), copies(trainer.vae)
    for step in range(steps):
        trainer.step(trainer.read(step))
    after = copies(trainer.learner)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if "lora_" in name or name.endswith(".rows")}
    assert sum("lora_B" in name for name in moved) == 4 * 8  # 4 layers of 2 attentions in each of 4 blocks
    assert len(trainer.learner.learned()) == 2 * 4 * 8 + 1
    assert all(torch.equal(value, vae[name]) for name, value in trainer.vae.state_dict().items())


def test_words_without_pictures_in_the_batch_stay():
    """Weight decay does not pull at them, and they start where the metaclass is."""
    trainer = new_trainer(replace(TINY, batch_size=1))
    model = load_file(f"{tiny()}/text_encoder/model.safetensors")
    (table,) = (value for name, value in model.items() if name.endswith("token_embedding.weight"))
    bird = json.loads(Path(tiny(), "tokenizer", "tokenizer.json").read_text())["model"]["vocab"]["bird</w>"]
    rows = trainer.learner.words.rows
    np.testing.assert_array_equal(rows.detach(), table[bird].expand(CLASSES, WIDTH))
    (samples,) = trainer.read(0)
    seen = int(np.flatnonzero((trainer.captions == samples.words).all(1))[0])
    trainer.step([samples])
    assert {int(row) for row in np.flatnonzero((rows != table[bird]).any(1))} == {seen}


def test_an_unknown_metaclass_starts_at_the_mean_of_its_parts():
    trainer = new_trainer(replace(TINY, metaclass="wug", batch_size=1))
    model = load_file(f"{tiny()}/text_encoder/model.safetensors")
    (table,) = (value for name, value in model.items() if name.endswith("token_embedding.weight"))
    vocabulary = json.loads(Path(tiny(), "tokenizer", "tokenizer.json").read_text())["model"]["vocab"]
    expected = sum(table[vocabulary[part]] for part in ("w", "u", "g</w>")) / 3
    np.testing.assert_allclose(trainer.learner.words.rows[3].detach(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("gamma", [None, 5.0])
def test_the_loss_by_hand(prediction, gamma):
    """With the model's own parts, before any step: LoRA adds nothing yet, and a new word means what the metaclass does.

    The noise schedule, the noisy latents and the velocity are written out: Salimans & Ho, "Progressive distillation"
    (2022); the weights as in Hang et al., "Efficient diffusion training via min-SNR" (2023).
    """
    model = tiny(prediction=prediction)
    trainer = new_trainer(replace(TINY, snr_gamma=gamma), model)
    (samples,) = trainer.read(0)
    parts = load_pipeline(model)[1]
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = np.cumprod(1 - betas)[samples.times].reshape(-1, 1, 1, 1)
    with torch.no_grad():
        moments = parts.vae.quant_conv(parts.vae.encoder(samples.pictures)).double().numpy()
        mean, spread = moments[:, :4], np.exp(np.clip(moments[:, 4:], -30, 20) / 2)
        first, noise = samples.noise.double().numpy().transpose(1, 0, 2, 3, 4)
        clean = (mean + spread * first) * 0.18215
        noisy = np.sqrt(kept) * clean + np.sqrt(1 - kept) * noise
        wanted = noise if prediction == "epsilon" else np.sqrt(kept) * noise - np.sqrt(1 - kept) * clean
        words = parts.tokenizer(["a photo of a bird bird"], padding="max_length", return_tensors="pt").input_ids
        hidden = parts.text_encoder(words)[0].expand(4, -1, -1)
        made = parts.unet(torch.from_numpy(noisy).float(), samples.times, hidden).sample.double().numpy()
    ratio = kept / (1 - kept)
    weight = 1.0 if gamma is None else np.minimum(ratio, gamma) / (ratio + (prediction == "v_prediction"))
    expected = (weight * (made - wanted) ** 2).mean()
    assert trainer.step([samples]) == pytest.approx(expected, rel=1e-4)


def test_weights_of_noise_levels():
    """At a signal-to-noise ratio of 9 and of 1/3."""

    class Schedule:
        alphas_cumprod = torch.tensor([0.9, 0.25], dtype=torch.float64)

        class config:
            prediction_type = "epsilon"

    np.testing.assert_allclose(loss_weights(Schedule, 5.0), [5 / 9, 1])
    Schedule.config.prediction_type = "v_prediction"
    np.testing.assert_allclose(loss_weights(Schedule, 5.0), [5 / 10, 1 / 4])
    np.testing.assert_array_equal(loss_weights(Schedule, None), [1, 1])


def test_pictures_are_squashed_and_some_mirrored():
    """Every picture once a pass, whole: as Pillow resizes it, within a level."""
    trainer, source = new_trainer(replace(TINY, size=32)), open_source(photos())
    expected = []
    for number in range(12):
        with Image.open(source.path(number)) as image:
            small = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR), np.float32)
        expected += [small, small[:, ::-1]]
    for positions in (np.arange(12), np.arange(12, 24)):
        samples = trainer.samples(positions)
        levels = (samples.pictures.permute(0, 2, 3, 1).numpy() + 1) * 127.5
        far = np.array([[abs(each - other).max() for other in expected] for each in levels])
        best = far.argmin(1)
        assert far.min(1).max() < 1.5
        assert sorted(best // 2) == list(range(12)) and 0 < (best % 2).sum() < 12
        classes = [source.read(number).label for number in best // 2]
        np.testing.assert_array_equal(samples.words, trainer.captions[classes])
    assert (new_trainer(replace(TINY, flip=False)).samples(np.arange(12)).pictures).shape == (12, 3, 16, 16)


def test_draws_are_of_the_pass_and_the_sample():
    trainer = new_trainer()
    whole, again = trainer.samples(np.arange(24)), trainer.samples(np.array([20, 7]))
    for one, other in zip(whole, again, strict=True):
        assert torch.equal(one[[20, 7]], other)
    noise = whole.noise.reshape(48, -1)
    assert len(noise.unique(dim=0)) == 48
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05
    assert 0 <= whole.times.min() and whole.times.max() < 1000 and len(whole.times.unique()) > 20
    other = new_trainer(replace(TINY, seed=1))
    assert not torch.equal(other.samples(np.arange(24)).times, whole.times)


def test_accumulated_steps_are_the_same_steps():
    """Four parts of one picture, or one part of four: the same loss, and the same gradient, which Adam's mean shows."""
    made = []
    for accumulate in (1, 4):
        trainer = new_trainer(replace(TINY, accumulate=accumulate))
        parts = trainer.read(0)
        assert [len(part.times) for part in parts] == [4 // accumulate] * accumulate
        loss = trainer.step(parts)
        mean = [trainer.optimizer.state[weight]["exp_avg"] for weight in trainer.learner.learned().values()]
        made.append((loss, torch.cat([part.times for part in parts]), torch.cat([each.flatten() for each in mean])))
    (loss, times, mean), (other_loss, other_times, other_mean) = made
    assert other_loss == pytest.approx(loss, rel=1e-5) and torch.equal(times, other_times)
    np.testing.assert_allclose(other_mean, mean, rtol=0, atol=1e-4 * abs(mean).max())


def test_processes_share_a_batch(monkeypatch):
    """What three of them read is the batch, each sample once, and their mean loss is its loss."""
    trainer = new_trainer(replace(TINY, batch_size=6))
    (whole,), parts = trainer.read(5), []
    for rank in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "accelerator", SimpleNamespace(num_processes=3, process_index=rank))
            patch.setattr(trainer, "share", 2)
            parts += trainer.read(5)
    for one, others in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(others), one)
    with torch.no_grad():
        losses = [float(trainer.loss(part)) for part in parts]
        assert np.mean(losses) == pytest.approx(float(trainer.loss(whole)), rel=1e-5)


def test_batches_that_cannot_be_shared(monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    with pytest.raises(ValueError, match="batch_size is 4, expected a multiple of the 6 parts of 3 processes"):
        new_trainer(replace(TINY, accumulate=2))


@pytest.fixture
def fresh_accelerate():
    """accelerate keeps one precision a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_mixed_precision(fresh_accelerate):  # noqa: ARG001
    trainer, plain = new_trainer(replace(TINY, precision="bf16")), []
    losses = [trainer.step(trainer.read(0))]
    kinds = {name: value.dtype for name, value in trainer.learner.named_parameters()}
    assert {kinds[name] for name in trainer.learner.learned()} == {torch.float32}
    assert {kind for name, kind in kinds.items() if name not in trainer.learner.learned()} == {torch.bfloat16}
    AcceleratorState._reset_state(reset_partial_state=True)
    plain = new_trainer()
    losses.append(plain.step(plain.read(0)))
    assert losses[0] == pytest.approx(losses[1], rel=0.02)  # bfloat16 has 8 bits
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0, expected an integer from 1"),
        ({"batch_size": 2.0}, r"batch_size is 2\.0, expected an integer"),
        ({"batch_size": 4, "accumulate": 3}, r"batch_size is 4, expected a multiple of accumulate \(3\)"),
        ({"learning_rate": 0}, "learning_rate is 0, expected more"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1, expected a number from 0 to 1"),
        ({"snr_gamma": 0}, "snr_gamma is 0, expected a number"),
        ({"precision": "half"}, "precision is 'half', expected one of no, fp16, bf16"),
        ({"metaclass": " "}, "metaclass is ' ', expected a word such as 'bird'"),
        ({"caption": "a photo of a {name}"}, r"expected one with \{token\}"),
        ({"rank": True}, "rank is True, expected an integer"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        Finetuning(**changes)
