"""Teach a diffusion model the classes of a data set: LoRA on its network and one new word a class, together.

LoRA: Hu et al., "LoRA: low-rank adaptation of large language models" (2021).  Words: Gal et al., "An image is worth one
word" (2022), textual inversion.  Both at once, one word a class over a whole training set, as Diff-Mix (Wang et al.,
"Enhance image classification via inter-class image mixup with diffusion model", CVPR 2024) does.

    OUT/checkpoint.pt                            while it is at work: weights, optimiser, step
    OUT/adapter/pytorch_lora_weights.safetensors
    OUT/tokens/NNNN.safetensors                  one a class
    OUT/finetuned.json                           written last: classes, tokens, settings

Which pictures, their mirroring, noise and time are keyed draws of the pass and the sample.  So a run that was stopped
and went on equals one that was not, to the bit where the arithmetic does.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from ..datasets import Source
from ..kernels import backend_for
from ..rng import Key, integers, shuffle
from .composing import picture_of
from .finetuning import Finetuning
from .folder import check_same, locked, write
from .generator import FINETUNED, read_finetuned
from .learner import captions_of, check_model, learner_of, loss_weights
from .pipelines import digest, load_pipeline, quietly, shorten
from .records import Classes
from .sources import classes_of, contents_of, digests_of, names_of

__all__ = ["CHECKPOINT", "Finetuning", "Samples", "Trainer", "finetune"]

CHECKPOINT = "checkpoint.pt"
_UNFINISHED = (f".{CHECKPOINT}.*", f".{FINETUNED}.*", "adapter/.*.safetensors.*", "tokens/.*.safetensors.*")
_ORDER, _FLIP, _TIME, _NOISE, _START = range(1110, 1115)  # streams of their own: nothing else draws from them


def finetune(
    source: Source, out: str | Path, settings: Finetuning, model: str | Path, quiet: bool = True
) -> list[float] | None:
    """Teach `model` the classes of `source`, and write what was learned into the folder `out`.

    A run that was stopped goes on after its last checkpoint.  Several processes (torchrun, accelerate launch) share the
    batches.  quiet: no bar on stderr.

    Returns the loss of each step that was done, or None if the folder was finished already.  Raises ValueError for a
    folder that holds something else or that another run is at, a model that cannot be taught so, or a loss that is no
    number; FastmixError for a picture that cannot be read, before the first step; OSError where a file cannot be
    written.
    """
    folder, classes = Path(out), classes_of(source)
    _check_folder(folder)
    place, pipeline = load_pipeline(model)
    about = _about(settings, classes, digest(place))
    done = _is_finished(folder, about)
    trainer = None if done else Trainer(pipeline, source, classes, settings)
    about["contents"] = contents_of(digests_of(source, range(len(source)), quiet or not _leads()))
    if trainer is None:
        check_same(folder, read_finetuned(folder), about)
        return None
    with locked(folder) if trainer.leads else nullcontext():
        trainer.accelerator.wait_for_everyone()
        if _is_finished(folder, about):  # by another run, meanwhile
            return None
        losses = _taught(trainer, folder, about, quiet)
        where = str(Path(model).resolve()) if Path(model).is_dir() else str(model)
        trainer.save(folder, {**about, "model": where})
    return losses


def _taught(trainer: Trainer, folder: Path, about: dict[str, Any], quiet: bool) -> list[float]:
    """Do the steps that are left; their losses."""
    settings, done = trainer.settings, trainer.resume(folder, about)
    losses = []
    bar = tqdm(total=settings.steps, initial=done, desc="fine-tuning", unit="step", disable=quiet or not trainer.leads)
    with bar:
        for step, parts in trainer.batches(done):
            losses.append(trainer.step(parts))
            if not np.isfinite(losses[-1]):
                raise ValueError(
                    f"the loss of step {step} is {losses[-1]}: set a lower learning rate, or another precision than "
                    f"{settings.precision!r}; {folder} goes on after its last checkpoint if these are put back"
                )
            bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
            bar.update()
            if (step + 1) % settings.checkpoint == 0 or step + 1 == settings.steps:
                trainer.keep(folder, about, step + 1)
    return losses


class Samples(NamedTuple):
    """pictures: (B, 3, S, S) float32 in [-1, 1].  noise: (B, 2, C, h, w) normal, for the autoencoder and the latents.

    times: (B,) steps of the noise.  words: (B, L) numbers of the captions' tokens.
    """

    pictures: Tensor
    noise: Tensor
    times: Tensor
    words: Tensor


class Trainer:
    """One process of a fine-tuning.  Raises ValueError for a model, or a number of processes, that does not fit."""

    def __init__(self, pipeline: Any, source: Source, classes: Classes, settings: Finetuning):
        from accelerate import Accelerator
        from diffusers import DDPMScheduler

        self.source, self.classes, self.settings = source, classes, settings
        check_model(pipeline, settings)
        self.accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),  # or else several processes on CPUs would not know of each other
            mixed_precision=settings.precision,
            gradient_accumulation_steps=settings.accumulate,
        )
        parts = self.accelerator.num_processes * settings.accumulate
        if settings.batch_size % parts:
            raise ValueError(
                f"batch_size is {settings.batch_size}, expected a multiple of the {parts} parts of "
                f"{self.accelerator.num_processes} processes with accumulate {settings.accumulate}"
            )
        self.share = settings.batch_size // parts
        with quietly():
            self.scheduler = DDPMScheduler.from_config(pipeline.scheduler.config)
            start = _seed(Key(settings.seed), np.zeros(1, np.int64), _START)
            self.learner = learner_of(pipeline, classes.tokens, settings, start)
        self.captions = captions_of(pipeline, classes.tokens, settings)
        self.vae = pipeline.vae.requires_grad_(False).to(self.accelerator.device)
        side = settings.size // pipeline.vae_scale_factor
        self.latent = (self.vae.config.latent_channels, side, side)
        learned = self.learner.learned()
        rows = learned.pop("words.rows")
        groups: list[dict[str, Any]] = [{"params": [*learned.values()]}, {"params": [rows], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
        )
        self.model, self.optimizer = self.accelerator.prepare(self.learner, optimizer)
        self.weights = loss_weights(self.scheduler, settings.snr_gamma).to(self.accelerator.device)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and shows the bar."""
        return bool(self.accelerator.is_main_process)

    def batches(self, start: int) -> Iterator[tuple[int, list[Samples]]]:
        """The parts of each step from `start` on, the next of them read meanwhile."""
        steps = range(start, self.settings.steps)
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(self.read, start) if steps else None
            for step in steps:
                assert coming is not None
                parts = coming.result()
                coming = reader.submit(self.read, step + 1) if step + 1 < self.settings.steps else None
                yield step, parts

    def read(self, step: int) -> list[Samples]:
        """This process's share of a step, in parts."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        starts = [(part * processes + rank) * self.share for part in range(self.settings.accumulate)]
        first = step * self.settings.batch_size
        return [self.samples(np.arange(first + start, first + start + self.share)) for start in starts]

    def samples(self, positions: NDArray[np.int64]) -> Samples:
        """What comes at some positions of the endless order: all samples, shuffled, pass after pass."""
        count, seed = len(self.source), self.settings.seed
        pictures, flips, times, noise = [], [], [], []
        ids = np.empty(len(positions), np.int64)
        for row, position in enumerate(positions):
            key = Key(seed, epoch=int(position) // count)
            ids[row : row + 1] = one = shuffle(positions[row : row + 1] % count, count, key, _ORDER)
            pictures.append(picture_of(self.source, int(one[0])))
            flips.append(self.settings.flip and key.uniform(one, _FLIP, 1)[0, 0] < 0.5)
            times.append(int(integers(key.uniform(one, _TIME, 1)[0, 0], 0, len(self.weights))))
            noise.append(torch.empty(2, *self.latent).normal_(generator=_generator(key, one, _NOISE)))
        out = np.empty((len(ids), self.settings.size, self.settings.size, 3), np.uint8)
        boxes = np.array([[0, 0, each.shape[1], each.shape[0]] for each in pictures], np.float64)
        backend_for(out).crop_resize(pictures, boxes, np.array(flips, np.bool_), out, 0, len(ids))
        x = torch.from_numpy(out).permute(0, 3, 1, 2).float() / 127.5 - 1
        words = self.captions[torch.from_numpy(self.classes.labels[ids])]
        return Samples(x, torch.stack(noise), torch.tensor(times), words)

    def loss(self, samples: Samples) -> Tensor:
        """Mean squared error of the noise that the network sees, or of the velocity if it was trained on that."""
        pictures, noise, times, words = (each.to(self.accelerator.device) for each in samples)
        with torch.no_grad():
            seen = self.vae.encode(pictures).latent_dist
            clean = (seen.mean + seen.std * noise[:, 0]) * self.vae.config.scaling_factor
        noise = noise[:, 1]
        made = self.model(self.scheduler.add_noise(clean, noise, times), times, words).float()
        velocity = self.scheduler.config.prediction_type == "v_prediction"
        wanted = self.scheduler.get_velocity(clean, noise, times) if velocity else noise
        each = F.mse_loss(made, wanted, reduction="none").mean((1, 2, 3))
        return (each * self.weights[times]).mean()

    def step(self, parts: list[Samples]) -> float:
        """One update; the mean loss over the batch of all processes."""
        total = torch.zeros((), device=self.accelerator.device)
        for samples in parts:
            with self.accelerator.accumulate(self.model):
                loss = self.loss(samples)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.detach()
        return float(self.accelerator.reduce(total / len(parts), "mean"))

    def keep(self, folder: Path, about: dict[str, Any], step: int) -> None:
        """Write a checkpoint, under another name first: after `step` steps."""
        if self.leads:
            weights = {name: weight.detach().cpu() for name, weight in self.learner.learned().items()}
            state = {"about": about, "step": step, "weights": weights, "optimizer": self.optimizer.state_dict()}
            if self.accelerator.scaler is not None:
                state["scaler"] = self.accelerator.scaler.state_dict()
            data = io.BytesIO()
            torch.save(state, data)
            write(folder / CHECKPOINT, data.getvalue())
        self.accelerator.wait_for_everyone()

    def resume(self, folder: Path, about: dict[str, Any]) -> int:
        """Go back to the checkpoint, if there is one; the number of steps that it has seen."""
        file = folder / CHECKPOINT
        if self.leads:
            for part in [part for pattern in _UNFINISHED for part in folder.glob(pattern)]:
                part.unlink()  # of a run that was killed: no other one is at it
        self.accelerator.wait_for_everyone()
        if not file.is_file():
            return 0
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            there, step, weights = state["about"], int(state["step"]), state["weights"]
        except Exception as error:  # a damaged file fails in many ways
            raise ValueError(f"cannot read {file}: {shorten(str(error))}; delete it to begin again") from error
        check_same(folder, there, about)
        with torch.no_grad():
            for name, weight in self.learner.learned().items():
                weight.copy_(weights[name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        return step

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """Write what was learned; its list comes last, and then the checkpoint goes."""
        from diffusers import StableDiffusionPipeline
        from diffusers.utils import convert_state_dict_to_diffusers
        from peft.utils import get_peft_model_state_dict
        from safetensors.torch import save

        def put(weights: dict[str, Tensor], file: str | Path) -> None:
            write(Path(file), save(weights, {"format": "pt"}))

        if self.leads:
            layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(self.learner.unet))
            layers = {name: weight.detach().cpu() for name, weight in layers.items()}
            StableDiffusionPipeline.save_lora_weights(folder / "adapter", unet_lora_layers=layers, save_function=put)
            rows = self.learner.words.rows.detach().cpu()
            for number, token in enumerate(self.classes.tokens):
                put({token: rows[number].clone()}, folder / "tokens" / f"{number:04d}.safetensors")
            write(folder / FINETUNED, json.dumps(about, indent=2).encode())
            (folder / CHECKPOINT).unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()


def _about(settings: Finetuning, classes: Classes, model_hash: str) -> dict[str, Any]:
    """What a result depends on: of another one, a folder must not be gone on with."""
    chosen = asdict(settings)
    del chosen["checkpoint"]
    names = {"classes": list(classes.names), "tokens": list(classes.tokens)}
    return {**names, **chosen, "model_hash": model_hash, "data": names_of(classes)}


def _leads() -> bool:
    """Whether this is the first of several processes, as far as the one that started them tells."""
    return os.environ.get("RANK", "0") == "0"


def _is_finished(folder: Path, about: dict[str, Any]) -> bool:
    """Raises ValueError if it is, with other settings."""
    done = (folder / FINETUNED).is_file()
    if done:
        check_same(folder, read_finetuned(folder), about)
    return done


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder to write to: name another one")
    ours = any((folder / name).is_file() for name in (FINETUNED, CHECKPOINT))
    if folder.is_dir() and not ours and any(not each.name.startswith(".") for each in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no fine-tuning: name a new folder")


def _generator(key: Key, one: NDArray[np.int64], stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(_seed(key, one, stream))


def _seed(key: Key, one: NDArray[np.int64], stream: int) -> int:
    low, high = key.bits(one, stream, 2)[0].tolist()
    return int(low | high << 32)
