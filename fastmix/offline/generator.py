"""Stable Diffusion as a function: pictures, prompts and seeds in, pictures out.

Each picture has a generator of its own, on the CPU, so that neither the batch nor the device moves its noise.  What
diffusers would pass over in silence is refused: a token that nobody knows, weights that fit nowhere, no step to do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .expansion import executed_steps
from .pipelines import (
    ADAPTER_FILE,
    adapter_file,
    check_tokens,
    digest,
    from_pictures,
    load_adapter,
    load_pipeline,
    load_tokens,
    move,
    quietly,
    shorten,
    token_numbers,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINETUNED", "Adapted", "Generator", "executed_steps", "read_finetuned"]

F32 = NDArray[np.float32]

FINETUNED = "finetuned.json"
_TOLD = {"classes": list, "tokens": list, "metaclass": str, "model": str, "model_hash": str}  # by it


@dataclass(frozen=True)
class Adapted:
    """Where a model is, and what was learned for it.

    model: a folder of a diffusers pipeline, or the name of one on the hub.  adapter: LoRA weights, a safetensors file
    or a folder with one.  tokens: a folder with a safetensors file for each token.  model_hash: of the model that the
    two were trained with, if known.
    """

    model: str
    adapter: str | None = None
    tokens: str | None = None
    model_hash: str | None = None

    @classmethod
    def finetuned(cls, folder: str | Path, model: str | None = None) -> Adapted:
        """What `fastmix finetune` wrote; model: where it is now, if it was moved.

        Raises FileNotFoundError for a folder that it has not finished.
        """
        about = read_finetuned(folder)
        adapter, tokens = Path(folder) / "adapter" / ADAPTER_FILE, Path(folder) / "tokens"
        return cls(about["model"] if model is None else model, str(adapter), str(tokens), about["model_hash"])

    def load(self, device: str = "cpu", dtype: str = "float32") -> Generator:
        """The generator.  Raises as that does, and ValueError for another model than the one that was fine-tuned."""
        generator = Generator(self.model, self.adapter, self.tokens, device, dtype)
        if self.model_hash not in (None, generator.hashes["model"]):
            raise ValueError(
                f"model {self.model} has SHA-256 {generator.hashes['model']}, expected {self.model_hash}, that of the "
                "model the adapter was trained with: name that one, or fine-tune this one"
            )
        return generator


def read_finetuned(folder: str | Path) -> dict[str, Any]:
    """What the list of a finished fine-tuning says.  Raises FileNotFoundError or ValueError without a sound one."""
    file = Path(folder) / FINETUNED
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no {FINETUNED}, expected a folder that `fastmix finetune` has finished: run it again, "
            "it goes on where it was"
        )
    cure = "put it back as it was, or fine-tune into a new folder"
    try:
        about: Any = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"cannot read {file}: {error}; {cure}") from error
    for name, kind in _TOLD.items():
        if not isinstance(about, dict) or not isinstance(about.get(name), kind):
            raise ValueError(f"{file} does not tell {name}: {cure}")
    told: dict[str, Any] = about
    return told


class Generator:
    """A diffusion model with what was learned for it, on one device.

    model, adapter, tokens: as in `Adapted`.  dtype: float32, float16 or bfloat16.  A model that edits by instructions
    (InstructPix2Pix) keeps its scheduler and executes all steps at any strength; any other Stable Diffusion gets
    DPM-Solver++ (Lu et al., 2022) with the model's noise schedule.  A safety checker stays as the model has it: what it
    flags comes back black.

    hashes: "model", "adapter" and "tokens" to the SHA-256 of their files, None without.  token_names: the tokens that
    were added.  dtype: as it was given.  edits: whether it is one by instructions.

    Raises OSError where there is no such model, and ValueError where something does not fit it.
    """

    def __init__(
        self,
        model: str | Path,
        adapter: str | Path | None = None,
        tokens: str | Path | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ):
        self.dtype = dtype
        folder, pipeline = load_pipeline(model, dtype)
        with quietly():
            self._pipeline, self.edits = from_pictures(pipeline, folder)
            self.token_names = load_tokens(self._pipeline, Path(tokens)) if tokens is not None else []
            if adapter is not None:
                load_adapter(self._pipeline, adapter_file(Path(adapter)))
            move(self._pipeline, device)
        self._pipeline.set_progress_bar_config(disable=True)
        self.hashes = {
            "model": digest(folder),
            "adapter": digest(adapter_file(Path(adapter))) if adapter is not None else None,
            "tokens": digest(Path(tokens)) if tokens is not None else None,
        }

    @property
    def factor(self) -> int:
        """Pixels by which the sides of pictures must divide."""
        return int(self._pipeline.vae_scale_factor)

    def executed_steps(self, strength: float, steps: int) -> int:
        """As the function of this name; all of them for a model that edits by instructions."""
        return steps if self.edits else executed_steps(strength, steps)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Raise ValueError for a prompt with a token, <like this>, that was not added, or of too many tokens."""
        tokenizer = self._pipeline.tokenizer
        limit = min(tokenizer.model_max_length, self._pipeline.text_encoder.config.max_position_embeddings)
        room = limit - tokenizer.num_special_tokens_to_add()
        there = f"added are: {shorten(', '.join(self.token_names) or 'none', 200)}.  Name the folder with its file "
        there += "(`--tokens`, or `--finetuned`), or mend the prompt"
        for prompt in dict.fromkeys(prompts):
            check_tokens(tokenizer, prompt, "prompt", there)
            full = self._pipeline.maybe_convert_prompt(prompt, tokenizer)
            count = len(token_numbers(tokenizer, full))
            if count > room:
                raise ValueError(
                    f"prompt {shorten(prompt, 80)!r} has {count} tokens, expected at most {room}: what is beyond would "
                    "be cut off, so shorten it"
                )

    def refine(
        self,
        images: NDArray[Any],
        prompts: Sequence[str],
        strength: float,
        steps: int,
        guidance: float,
        seeds: Sequence[int],
    ) -> F32:
        """Pictures brought to their prompts: (B, H, W, 3) float32 in [0, 1], or uint8, to float32 of the same shape.

        strength: 0 < strength <= 1, how much noise they get first.  steps: of the whole way, see `executed_steps`.
        guidance: weight of the prompt; 1 is none.  seeds: one a picture, 0 <= seed < 2^64; a picture is a function of
        its own row alone, up to the rounding of another batch size.

        Raises ValueError for what does not fit.
        """
        import torch

        x = self._tensor(images)
        if not len(x) == len(prompts) == len(seeds):
            raise ValueError(f"{len(x)} pictures have {len(prompts)} prompts and {len(seeds)} seeds, expected one each")
        self.check_prompts(prompts)
        self.executed_steps(strength, steps)
        how = {} if self.edits else {"strength": strength}
        with quietly():
            made = self._pipeline(
                prompt=list(prompts),
                image=x,
                num_inference_steps=steps,
                guidance_scale=guidance,
                generator=[torch.Generator().manual_seed(int(seed)) for seed in seeds],
                output_type="np",
                **how,
            ).images
        # Half precision may overflow: such a picture is black, as one that the safety checker flags.
        return np.nan_to_num(np.asarray(made, np.float32), nan=0.0)

    def round_trip(self, images: NDArray[Any]) -> F32:
        """The pictures through the autoencoder alone, without noise or prompt; shapes as in `refine`."""
        import torch

        vae = self._pipeline.vae
        x = self._tensor(images).to(vae.device, vae.dtype)
        with torch.inference_mode():
            made = vae.decode(vae.encode(2 * x - 1).latent_dist.mode()).sample
        made = (made.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
        return np.nan_to_num(np.ascontiguousarray(made, np.float32), nan=0.0)

    def _tensor(self, images: NDArray[Any]) -> Tensor:
        """(B, 3, H, W) float32 in [0, 1] of checked pictures."""
        import torch

        shape, factor = images.shape, self.factor
        if images.ndim != 4 or shape[-1] != 3 or 0 in shape:
            raise ValueError(f"images have shape {shape}, expected (B, H, W, 3)")
        if shape[1] % factor or shape[2] % factor:
            raise ValueError(f"images are {shape[1]} x {shape[2]} px, expected multiples of {factor}: resize them")
        if images.dtype != np.uint8 and (images.dtype.kind != "f" or not 0 <= images.min() <= images.max() <= 1):
            raise ValueError(f"images are {images.dtype} {images.min()} to {images.max()}, expected [0, 1] or uint8")
        x = images / np.float32(255) if images.dtype == np.uint8 else images
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32))
