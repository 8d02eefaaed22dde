"""Tiny Stable Diffusion pipelines of random weights, made from configurations alone: nothing is downloaded."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when diffusers is imported: nothing may be asked of a hub

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from fastmix.offline.pipelines import quietly

torch.set_num_threads(1)

WORDS = ("photo", "of", "with", "background", "the", "style", "object", "bird", "cat", "dog", "snowy", "sunset")
FACTOR = 2  # pixels a latent is wide
WIDTH = 16  # of the embeddings of words
_START, _END = "<|startoftext|>", "<|endoftext|>"


def tiny_stable_diffusion(
    folder: str | Path, seed: int = 0, *, edits: bool = False, prediction: str = "epsilon", words: int = 77
) -> Path:
    """Save a pipeline of some 100 000 weights below `folder`, as save_pretrained does; returns the folder.

    edits: InstructPix2Pix, whose network sees the picture beside the noise.  prediction: "epsilon" or "v_prediction".
    words: how many tokens a prompt may have.  Pictures are of any even size.
    """
    tokenizer = _tokenizer(words)
    marks = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    sizes = {"hidden_size": WIDTH, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = CLIPTextConfig(vocab_size=len(tokenizer), max_position_embeddings=words, **sizes, **marks)
    noise = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    kind: Any = StableDiffusionInstructPix2PixPipeline if edits else StableDiffusionPipeline
    with quietly():
        torch.manual_seed(seed)
        pipeline = kind(
            vae=_autoencoder(),
            text_encoder=CLIPTextModel(text),
            tokenizer=tokenizer,
            unet=_network(8 if edits else 4),
            scheduler=EulerAncestralDiscreteScheduler(**noise)
            if edits
            else DDIMScheduler(**noise, clip_sample=False, set_alpha_to_one=False, prediction_type=prediction),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        pipeline.save_pretrained(folder)
    return Path(folder)


@cache
def tiny(seed: int = 0, **options: Any) -> str:
    """The folder of such a pipeline, made once a run.  Nobody may write to it."""
    folder = tempfile.mkdtemp(prefix="tinysd-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(tiny_stable_diffusion(folder, seed, **options))


def _autoencoder() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    )


def _network(channels: int) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=channels,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def _tokenizer(limit: int) -> CLIPTokenizer:
    """WORDS are one token each; any other text is one token a byte, as far as it is of these characters."""
    characters = [chr(code) for code in range(33, 127)]
    vocabulary = [_START, _END, *characters, *(f"{each}</w>" for each in characters)]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left, *rest = [*word[:-1], f"{word[-1]}</w>"]
        for right in rest:
            if (left, right) not in merges:
                merges.append((left, right))
                vocabulary.append(left + right)
            left += right
    with tempfile.TemporaryDirectory() as name:  # files read by from_pretrained: alike in transformers 4 and 5
        folder = Path(name)
        numbers = {token: number for number, token in enumerate(vocabulary)}
        (folder / "vocab.json").write_text(json.dumps(numbers))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n")
        special = {"bos_token": _START, "eos_token": _END, "unk_token": _END, "pad_token": _END}
        settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": limit, **special}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        made = CLIPTokenizer.from_pretrained(folder)
    assert len(made) == len(vocabulary)
    return made
