"""Pipelines of diffusers, and what is added to them, loaded with an error wherever that is not what was meant."""

from __future__ import annotations

import hashlib
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ADAPTER_FILE = "pytorch_lora_weights.safetensors"
_NAME = "fastmix"  # of the adapter, inside peft
_DTYPES = ("float32", "float16", "bfloat16")
_HASHED = (".safetensors", ".bin", ".json", ".txt")  # weights, settings, and the merges of a tokenizer
_PARTS = ("unet", "vae", "text_encoder", "tokenizer")
_BRACKETS = re.compile(r"<[^<>]*>")


def load_pipeline(model: str | Path, dtype: str = "float32") -> tuple[Path, Any]:
    """The folder of a model and its diffusers pipeline, which is checked to have the parts of Stable Diffusion."""
    check_installed()
    import diffusers
    import torch

    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}")
    folder = _model_folder(str(model))
    with quietly():
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=getattr(torch, dtype))
        except Exception as error:  # a damaged or incomplete model fails in many ways
            raise ValueError(
                f"cannot load model {model}: {shorten(str(error))}; expected a folder that save_pretrained wrote"
            ) from error
    missing = [part for part in _PARTS if getattr(pipeline, part, None) is None]
    if missing:
        kind = type(pipeline).__name__
        raise ValueError(f"model {model} ({kind}) has no {', '.join(missing)}, expected a Stable Diffusion pipeline")
    return folder, pipeline


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, diffusers and transformers show no bars, and torch's own generator is put back where it was."""
    import torch
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    loggers = [each for each in (diffusers_logging, transformers_logging) if each.is_progress_bar_enabled()]
    for each in loggers:
        each.disable_progress_bar()
    state = torch.default_generator.get_state()
    try:
        with warnings.catch_warnings():
            # Schedulers of diffusers hand tensors to np.array, which NumPy 2 wants to be done otherwise.
            warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)
            yield
    finally:
        torch.default_generator.set_state(state)
        for each in loggers:
            each.enable_progress_bar()


def digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's weights and settings."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.suffix in _HASHED}
    for name in sorted(files):
        if files[name].is_file() and not any(part.startswith(".") for part in name.split("/")):
            total.update(f"{name} {digest(files[name])}\n".encode())
    return total.hexdigest()


def check_installed() -> None:
    """Raise one ModuleNotFoundError that names the extra."""
    try:
        import diffusers  # noqa: F401
        import peft  # noqa: F401
        import safetensors  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f'diffusion models need {missing.name}, not installed: pip install "fastmix[diffusion]"'
        ) from missing


def _model_folder(model: str) -> Path:
    import diffusers

    if not model.strip():
        raise ValueError(f"model is {model!r}, expected a folder that save_pretrained wrote, or a name on the hub")
    if Path(model).is_dir():
        if not (Path(model) / "model_index.json").is_file():
            raise FileNotFoundError(f"{model} has no model_index.json, expected a folder that save_pretrained wrote")
        return Path(model)
    try:
        return Path(diffusers.DiffusionPipeline.download(model))
    except Exception as error:  # names that cannot be, no network, no such model: errors of several libraries
        raise FileNotFoundError(
            f"model {model!r} is neither a folder nor found on the hub or in its cache: {shorten(str(error))}"
        ) from error


def from_pictures(pipeline: Any, folder: Path) -> tuple[Any, bool]:
    """The pipeline as one that starts from pictures, and whether it edits by instructions."""
    import diffusers

    if isinstance(pipeline, diffusers.StableDiffusionInstructPix2PixPipeline):
        return pipeline, True
    try:
        made = diffusers.AutoPipelineForImage2Image.from_pipe(pipeline)
    except ValueError as error:
        raise ValueError(f"model {folder} cannot start from a picture: {shorten(str(error))}") from error
    solver = diffusers.DPMSolverMultistepScheduler
    if solver not in made.scheduler.compatibles:
        name = type(made.scheduler).__name__
        raise ValueError(f"model {folder} has a {name}, expected a scheduler that DPM-Solver++ can stand in for")
    made.scheduler = solver.from_config(made.scheduler.config)
    return made, False


def move(pipeline: Any, device: str) -> None:
    """Bring a pipeline to a device.  Raises ValueError for one that is not there."""
    try:
        pipeline.to(device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise ValueError(f"the model cannot be run on {device!r}: {shorten(str(error))}") from error


def adapter_file(path: Path) -> Path:
    """The file of LoRA weights that a path means: itself, or the one in a folder."""
    if path.is_file():
        return path
    if (path / ADAPTER_FILE).is_file():
        return path / ADAPTER_FILE
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise ValueError(f"adapter {path} has {len(files)} safetensors files, expected one of LoRA weights: name it")
    return files[0]


def load_adapter(pipeline: Any, file: Path) -> None:
    """Put LoRA weights where they belong.  Raises ValueError unless all of them have a place."""
    from diffusers.utils import logging

    given = [name for name in _tensors(file, "adapter") if "lora" in name and not name.endswith(".alpha")]
    if not given:
        raise ValueError(f"adapter {file} holds no LoRA weights, expected those that `fastmix finetune` wrote")
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # what it would say of weights without a place is found out below
    try:
        pipeline.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=_NAME)
    except Exception as error:  # peft and torch refuse with many kinds
        raise ValueError(f"adapter {file} does not fit the model: {shorten(str(error))}") from error
    finally:
        logging.set_verbosity(verbosity)
    hosts = [part for name in ("unet", "text_encoder", "text_encoder_2") if (part := getattr(pipeline, name, None))]
    taken = sum(f".{_NAME}." in name for part in hosts for name, _ in part.named_parameters())
    if taken < len(given):
        raise ValueError(
            f"adapter {file}: {len(given) - taken} of its {len(given)} LoRA weights have no place "
            "in the model: it was trained with another one"
        )


def load_tokens(pipeline: Any, folder: Path) -> list[str]:
    """Add the tokens of a folder, with their embeddings; returns their names."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        problem = "has no *.safetensors" if folder.is_dir() else "is no folder"
        raise ValueError(f"tokens {folder} {problem}, expected a folder with one file for each token")
    if getattr(pipeline, "tokenizer_2", None) is not None:
        raise ValueError(f"tokens {folder} are for one text encoder, but the model has two: leave them out")
    tokenizer = pipeline.tokenizer
    width = pipeline.text_encoder.get_input_embeddings().weight.shape[1]
    found: dict[str, Any] = {}
    for file in files:
        tensors = _tensors(file, "token")
        if len(tensors) != 1:
            raise ValueError(f"token file {file} holds {len(tensors)} tensors, expected one, named as its token")
        ((name, vector),) = tensors.items()
        if name in found or name in tokenizer.get_vocab():
            where = "another file" if name in found else "the model's vocabulary"
            raise ValueError(f"token {name!r} of {file} is already in {where}: remove one, or name it otherwise")
        if vector.ndim not in (1, 2) or vector.shape[-1] != width:
            raise ValueError(
                f"token {name!r} of {file} has shape {tuple(vector.shape)}, expected ({width},) or (n, {width}): it "
                "was made for another model"
            )
        found[name] = vector
    count = sum(1 if vector.ndim == 1 else len(vector) for vector in found.values())
    # Here, so that no time is lost on rows that are overwritten at once; then there is nothing left to be resized.
    pipeline.text_encoder.resize_token_embeddings(len(tokenizer) + count, mean_resizing=False)
    pipeline.load_textual_inversion([{name: vector} for name, vector in found.items()])
    for name in found:  # the tokenizer may change the case of letters, so that one token hides another
        if token_numbers(tokenizer, name) != [tokenizer.convert_tokens_to_ids(name)]:
            raise ValueError(f"token {name!r} of {folder} cannot be told from another one: name it otherwise")
    return list(found)


def _tensors(file: Path, what: str) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Any] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {what} file {file}: {shorten(str(error))}; expected safetensors") from error
    return tensors


def token_numbers(tokenizer: Any, text: str) -> list[int]:
    """What a text is to the text encoder, without start and end; of any length."""
    # With a limit of its own, far off, the tokenizer says nothing of the model's, which the caller checks.
    numbers: list[int] = tokenizer(text, add_special_tokens=False, truncation=True, max_length=1 << 20).input_ids
    return numbers


def check_tokens(tokenizer: Any, text: str, what: str, there: str) -> None:
    """Raise ValueError for a token, <like this>, in a text that was not added.  there: what was, in words."""
    added = tokenizer.get_added_vocab().values()
    for word in _BRACKETS.findall(text):
        numbers = token_numbers(tokenizer, word)
        if len(numbers) != 1 or numbers[0] not in added:
            raise ValueError(
                f"token {word} of {what} {shorten(text, 80)!r} is unknown to the model, which would read it as "
                f"{len(numbers)} other tokens; {there}"
            )


def shorten(text: str, width: int = 300) -> str:
    """Text in one line of at most `width` characters."""
    return textwrap.shorten(text, width)
