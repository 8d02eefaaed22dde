"""What is made of a data set by diffusion, as settings: the programs of four papers, and changes to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

__all__ = ["PRESETS", "Expansion", "check_apart", "check_prompt", "executed_steps"]

PRESETS = ("sgdmix", "diffusemix", "diffmix", "da_fusion")

_PHOTO = "a photo of a {token} {name}"
_STYLES: tuple[str, ...] = ("autumn", "snowy", "watercolor art", "sunset", "rainbow", "aurora", "mosaic", "ukiyo-e")
_STYLES += ("a sketch with crayon",)
_SLOTS = ("{token}", "{name}")
_CHOICES = {
    "prompt_class": ("source", "target"),
    "same_class": ("allow", "forbid", "require"),
    "picture": ("png", "jpg"),
}
_BOUNDS: dict[str, tuple[float, float]] = {  # least and largest
    "fractal": (0, 1),
    "guidance": (0, 1000),
    "min_area": (0, 1),
    "max_area": (0, 1),
    "steps": (1, 1000),
    "multiplier": (1, 1000),
    "candidates": (1, 1 << 20),
    "size": (8, 4096),
    "seed": (0, (1 << 64) - 1),
}
_INTEGERS = ("steps", "multiplier", "candidates", "size", "seed")
_FLAGS = ("compose", "concatenate", "needs_token")


@dataclass(frozen=True)
class Expansion:
    """Everything that decides what is made, but for the pictures and the weights of the model.

    prompts: templates; {token} becomes the token of the prompt's class and {name} the metaclass.  The copies of a
    source take them in turn, in an order of its own.
    strengths: of noising, in (0, 1]; each record draws one of them, all as likely.
    steps: of the whole schedule, of which int(strength * steps) are run.  guidance: how strongly the prompt counts.
    multiplier: copies of each source.
    compose: paste the source's object into the background of a target with a similar saliency map, before refining.
    candidates: how many are drawn to choose the target from.  same_class: whether they may, must not or must be of the
    source's class.
    min_area, max_area: shares of the picture between which the mask's must be.
    prompt_class: whose class is in the prompt, the source's or that of a target, which is drawn from all classes.
    gamma: None: the source's label counts 1; else 1 - strength ** gamma, and the target's the rest.
    concatenate: one half of the picture is the source's, the other one refined.  fractal: share of a fractal in it.
    needs_token: every prompt must have {token}.  metaclass: None: the class's own name.
    size: side of the square pictures that the model sees, px, a multiple of 8.  picture: kind of the files.

    Raises ValueError that names the field, what was expected and the fix.
    """

    compose: bool = True
    concatenate: bool = False
    fractal: float = 0.0
    prompts: tuple[str, ...] = (_PHOTO,)
    prompt_class: str = "source"
    needs_token: bool = True
    metaclass: str | None = "object"
    strengths: tuple[float, ...] = (0.5, 0.7, 0.9)
    steps: int = 25
    guidance: float = 7.5
    multiplier: int = 5
    candidates: int = 32
    same_class: str = "allow"
    gamma: float | None = None
    min_area: float = 0.02
    max_area: float = 0.95
    size: int = 512
    seed: int = 0
    picture: str = "png"

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("prompts", "strengths"):
            object.__setattr__(self, name, _tuple(name, getattr(self, name)))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected True or False")
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(words)}")
        for name, (least, largest) in _BOUNDS.items():
            _check_number(name, getattr(self, name), least, largest)
        if self.size % 8:
            raise ValueError(f"size is {self.size}, expected a multiple of 8, such as {self.size // 8 * 8 + 8}")
        if self.min_area >= self.max_area:
            raise ValueError(f"min_area is {self.min_area}, expected less than max_area ({self.max_area})")
        for strength in self.strengths:
            executed_steps(strength, self.steps)
        self._check_labels()
        self._check_prompts()

    def _check_labels(self) -> None:
        if self.compose and self.prompt_class == "target":
            raise ValueError(
                "prompt_class is 'target' with compose, expected 'source': the target gives its background alone"
            )
        if self.gamma is None:
            return
        _check_number("gamma", self.gamma, 0, 1000)
        if self.gamma == 0 or self.prompt_class == "source":
            raise ValueError(
                f"gamma is {self.gamma} with prompt_class {self.prompt_class!r}, expected None (the picture has its "
                "source's label), or more than 0 with prompt_class 'target'"
            )

    def _check_prompts(self) -> None:
        if self.metaclass is not None and (not isinstance(self.metaclass, str) or not self.metaclass.strip()):
            raise ValueError(f"metaclass is {self.metaclass!r}, expected a word such as 'bird', or None")
        for prompt in self.prompts:
            check_prompt("prompt", prompt)
            if self.needs_token and "{token}" not in prompt:
                raise ValueError(
                    f"prompt {prompt!r} has no {{token}}, so it says nothing of the class: expected one such as "
                    f"{_PHOTO!r}, or needs_token=False"
                )

    @classmethod
    def sgdmix(cls, **changes: Any) -> Expansion:
        """SGD-Mix (Dong, Su & Chiang, WACV 2026): the object in another background, refined in the name of its class.

        Steps, guidance, multiplier and candidates are those of Diff-Mix or guesses, for want of published ones.
        """
        return cls(**changes)

    @classmethod
    def diffmix(cls, **changes: Any) -> Expansion:
        """Diff-Mix (Wang et al., CVPR 2024): the source turned towards any class, and a label between the two."""
        given: dict[str, Any] = {"strengths": (0.3, 0.5, 0.7, 0.9), "gamma": 0.8, **changes}
        return cls(**{"compose": False, "prompt_class": "target", **given})

    @classmethod
    def da_fusion(cls, **changes: Any) -> Expansion:
        """DA-Fusion (Trabucco et al., ICLR 2024): the source refined in the name of its own class."""
        return cls(**{"compose": False, "strengths": (1.0, 0.75, 0.5, 0.25), "multiplier": 10, **changes})

    @classmethod
    def diffusemix(cls, **changes: Any) -> Expansion:
        """DiffuseMix (Islam et al., CVPR 2024): half the source, half restyled, under a fractal.

        For InstructPix2Pix, which has no strength.  Every prompt is used once a source; the seam is a linear blend of
        20 px.
        """
        looks: dict[str, Any] = {"compose": False, "concatenate": True, "fractal": 0.2}
        words: dict[str, Any] = {"prompts": _STYLES, "needs_token": False, "strengths": (1.0,), "guidance": 4.0}
        return cls(**{**looks, **words, "multiplier": len(_STYLES), "size": 256, **changes})

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Expansion:
        """The one that `dataclasses.asdict` and JSON were given.  Raises ValueError for fields of another version."""
        known = {field.name for field in fields(cls)}
        names = set(given) if isinstance(given, Mapping) else set()
        if names != known:
            raise ValueError(
                f"the settings differ from this version's in {', '.join(sorted(known ^ names))}: read the set "
                "with the fastmix that made it"
            )
        return cls(**given)

    def with_plain_names(self) -> Expansion:
        """Classes go by their own names: {token} is dropped from the prompts, and {name} is the name of the class."""
        prompts = tuple(" ".join(prompt.replace("{token}", " ").split()) for prompt in self.prompts)
        return replace(self, prompts=prompts, needs_token=False, metaclass=None)

    def prompt(self, number: int, token: str, class_name: str) -> str:
        """Template `number`, filled in."""
        name = class_name.replace("_", " ") if self.metaclass is None else self.metaclass
        return self.prompts[number].replace("{token}", token).replace("{name}", name)


def executed_steps(strength: float, steps: int) -> int:
    """int(strength * steps), as diffusers counts them.  Raises ValueError for none, or a strength outside (0, 1]."""
    _check_number("strength", strength, 0, 1)
    if int(strength * steps) < 1:
        raise ValueError(
            f"strength {strength} of {steps} steps leaves none to run, expected strength * steps >= 1: raise either"
        )
    return int(strength * steps)


def check_prompt(what: str, text: Any) -> None:
    """Raise ValueError for a prompt, or a caption, that is no words or has other slots than {token} and {name}."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a {what} is {text!r}, expected words such as {_PHOTO!r}")
    if unknown := [slot for slot in re.findall(r"\{[^}]*\}?", text) if slot not in _SLOTS]:
        raise ValueError(f"{what} {text!r} has {unknown[0]}, expected none but {' and '.join(_SLOTS)}")


def check_apart(data: str | Path, out: str | Path) -> None:
    """Raise ValueError for a folder to write to that lies in the data: it would be a class of the next run."""
    if Path(out).resolve().is_relative_to(Path(data).resolve()):
        raise ValueError(f"{out} lies in the data {data}, where it would become a class: name a folder elsewhere")


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, tuple | list) or not value:
        raise ValueError(f"{name} is {value!r}, expected a list of one or more")
    return tuple(value)


def _check_number(name: str, value: Any, least: float, largest: float) -> None:
    kinds = int if name in _INTEGERS else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= largest:
        kind = "an integer" if name in _INTEGERS else "a number"
        raise ValueError(f"{name} is {value!r}, expected {kind} from {least} to {largest}")
