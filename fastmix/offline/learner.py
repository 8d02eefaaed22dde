"""What learns in a fine-tuning: the LoRA layers of a network and the rows of new words, in a model that is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .finetuning import Finetuning
from .pipelines import check_tokens, token_numbers

__all__ = ["Learner", "captions_of", "check_model", "learner_of", "loss_weights"]

_LAYERS = ["to_k", "to_q", "to_v", "to_out.0"]
_PREDICTIONS = ("epsilon", "v_prediction")
_FROZEN = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Learner(nn.Module):
    """The network with its LoRA layers, and the text encoder with rows for new words; nothing else is trained.

    first: number of the first new word.  rows: (n, width) float32, their embeddings.
    """

    def __init__(self, unet: Any, text_encoder: Any, first: int, rows: Tensor):
        super().__init__()
        self.words = _Words(text_encoder.get_input_embeddings(), first, rows)
        text_encoder.set_input_embeddings(self.words)
        self.unet, self.text_encoder = unet, text_encoder

    def forward(self, noisy: Tensor, times: Tensor, words: Tensor) -> Tensor:
        """What the network makes of (B, C, h, w) noisy latents at times (B,), given words (B, L)."""
        made: Tensor = self.unet(noisy, times, self.text_encoder(words)[0]).sample
        return made

    def learned(self) -> dict[str, Tensor]:
        """All that is trained, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}


class _Words(nn.Module):
    """An embedding whose rows from `first` on are trained; the others are another tensor, which nothing moves."""

    def __init__(self, known: nn.Embedding, first: int, rows: Tensor):
        super().__init__()
        self.known, self.first, self.rows = known, first, nn.Parameter(rows)

    def forward(self, numbers: Tensor) -> Tensor:
        old = self.known(numbers.clamp(max=self.first - 1))
        new = self.rows[(numbers - self.first).clamp(min=0)]
        return torch.where((numbers >= self.first)[..., None], new.to(old.dtype), old)


def learner_of(pipeline: Any, tokens: Sequence[str], settings: Finetuning, seed: int) -> Learner:
    """The network and text encoder of a pipeline, frozen but for LoRA layers and a row for each of some new tokens.

    seed: of the layers.  To be called in `quietly`, which puts torch's own generator back.  Raises ValueError for a
    token that the model knows already.
    """
    from peft import LoraConfig

    tokenizer, unet, text_encoder = pipeline.tokenizer, pipeline.unet, pipeline.text_encoder
    known = text_encoder.get_input_embeddings().weight.detach()
    rows = known[token_numbers(tokenizer, settings.metaclass)].float().mean(0, keepdim=True)
    if taken := [token for token in tokens if token in tokenizer.get_vocab()]:
        raise ValueError(f"token {taken[0]} is already in the model's vocabulary, expected a model without it")
    tokenizer.add_tokens([*tokens])
    first = tokenizer.convert_tokens_to_ids(tokens[0])
    for part in (unet, text_encoder):
        nn.Module.to(part.requires_grad_(False), _FROZEN[settings.precision])  # diffusers' own `to` warns of nothing
    torch.default_generator.manual_seed(seed)  # peft draws from it
    unet.add_adapter(
        LoraConfig(r=settings.rank, lora_alpha=settings.rank, init_lora_weights="gaussian", target_modules=_LAYERS)
    )
    for weight in unet.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return Learner(unet, text_encoder, first, rows.repeat(len(tokens), 1))


def captions_of(pipeline: Any, tokens: Sequence[str], settings: Finetuning) -> Tensor:
    """(C, L) numbers of the caption of each class."""
    tokenizer, captions = pipeline.tokenizer, settings.captions(tokens)
    limit = min(tokenizer.model_max_length, pipeline.text_encoder.config.max_position_embeddings)
    for caption in captions:
        check_tokens(tokenizer, caption, "caption", "write it without < and >: the tokens of classes go by {token}")
        count = len(token_numbers(tokenizer, caption)) + tokenizer.num_special_tokens_to_add()
        if count > limit:
            raise ValueError(f"caption {caption!r} has {count} tokens, expected at most {limit}: shorten it")
    numbers: Tensor = tokenizer(captions, padding="max_length", max_length=limit, return_tensors="pt").input_ids
    return numbers


def loss_weights(scheduler: Any, gamma: float | None) -> Tensor:
    """(T,) how much the loss of each step of the noise counts."""
    kept = scheduler.alphas_cumprod
    if gamma is None:
        return torch.ones_like(kept)
    ratio = kept / (1 - kept)
    weights: Tensor = ratio.clamp(max=gamma) / (ratio + (scheduler.config.prediction_type == "v_prediction"))
    return weights


def check_model(pipeline: Any, settings: Finetuning) -> None:
    """Raise ValueError for a pipeline that cannot be taught from captions and noise alone."""
    kind, factor = type(pipeline).__name__, pipeline.vae_scale_factor
    if getattr(pipeline, "text_encoder_2", None) is not None:
        raise ValueError(f"the model ({kind}) has two text encoders, expected Stable Diffusion 1 or 2")
    if pipeline.unet.config.in_channels != pipeline.vae.config.latent_channels:
        raise ValueError(f"the model ({kind}) sees more than noise, expected one that makes pictures from words alone")
    if pipeline.scheduler.config.prediction_type not in _PREDICTIONS:
        found = pipeline.scheduler.config.prediction_type
        raise ValueError(f"the model predicts {found!r}, expected {' or '.join(_PREDICTIONS)}")
    if settings.size % factor:
        raise ValueError(f"size is {settings.size}, expected a multiple of {factor}")
