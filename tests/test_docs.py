"""What the documents say: their snippets run, their links lead somewhere, and no public name is missing."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_lane import HostLane
from PIL import Image

import fastmix
from fastmix import pools
from fastmix.__main__ import _parser
from fastmix.loaders.torch import loader as loader_module
from fastmix.loaders.torch.device import Sender
from fastmix.photos import cut_photos

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def blocks(document: Path) -> Iterator[tuple[str, str, str | None]]:
    """Language and text of each fenced block, and the text block right behind it: what it prints."""
    text = document.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    for block, after in zip(found, [*found, None][1:], strict=True):
        follows = after is not None and after[1] == "text" and after.start() == block.end() + 1
        yield block[1], block[2], after[2] if after is not None and follows else None


def commands(document: Path) -> list[str]:
    """The lines of its bash blocks, without comments."""
    lines = "".join(text for language, text, _ in blocks(document) if language == "bash").splitlines()
    return [line.partition("#")[0].strip() for line in lines]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/train and photos/val, a few photographs in a folder for each of ten classes."""
    folder = tmp_path_factory.mktemp("docs")
    cut_photos(folder / "photos" / "train", 40)
    cut_photos(folder / "photos" / "val", 20, seed=1)
    return folder


@pytest.fixture
def workplace(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with links to the photographs, and a default pool of three fractals."""
    for part in ("train", "val"):
        for name in (photos / "photos" / part).iterdir():
            link = tmp_path / "photos" / part / name.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pools, "_COUNT", 3)
    monkeypatch.setattr(pools, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})  # two threads are no more than the cores there are


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_snippets_run(document: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace, and print what the text block behind them says."""
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 10))
    names: dict[str, Any] = {"__name__": "__main__", "model": model}
    if document.stem == "gpu":  # its GPU is the CPU in disguise, and the tensor there an array
        lane = Sender(HostLane(), torch.bfloat16)
        monkeypatch.setattr(loader_module, "sender", lambda *_: lane)
        names |= {"pictures": np.zeros((4, 8, 8, 3), np.uint8), "classes": np.arange(4)}
    for language, text, printed in blocks(document):
        if language == "python":
            exec(compile(text, f"{document.name}: {text[:40]!r}", "exec", dont_inherit=True), names)
            assert (printed or "") == capsys.readouterr().out


def test_snippets_are_found() -> None:
    """So that a changed fence does not silence the test above."""
    count = {path.stem: sum(language == "python" for language, _, _ in blocks(path)) for path in DOCUMENTS}
    assert count["README"] >= 4 and count["index"] == 5 and count["loader"] >= 3 and count["architecture"] == 1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link.partition("#")[0]).exists()] == []


def test_public_names_occur() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md")
    assert [name for name in fastmix.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_option_of_the_loader_is_in_the_readme() -> None:
    """Those that torch's loader does not have."""
    own = vars(fastmix.DataLoader)["__init__"].__annotations__.keys()
    theirs = torch.utils.data.DataLoader.__init__.__annotations__.keys()
    text = README.read_text(encoding="utf-8")
    assert [name for name in own - theirs if not re.search(rf"^\|[^|]*`{name}`", text, re.MULTILINE)] == []


_COMMANDS = {"info", "show", "pool", "bench", "demo", "explain", "finetune", "refine", "agreement"}


def test_commands_are_understood() -> None:
    """Every `fastmix ...` of the documents has arguments that the command line takes."""
    parser = _parser()
    found = [part for path in DOCUMENTS for line in commands(path) for part in line.split("&&")]
    ours = [part for part in map(str.strip, found) if part.startswith("fastmix ")]
    assert {line.split()[1] for line in ours} == _COMMANDS
    for line in ours:
        assert callable(parser.parse_args(shlex.split(line)[1:]).run)


def test_the_readmes_commands_are_those_of_ci() -> None:
    """`.ci/run` takes its test command from the README by a pattern; it is the second one that installs."""
    installs = [line for line in commands(README) if line.startswith("pip install")]
    assert installs[:2] == ['pip install ".[demo]" && fastmix demo', 'pip install -e ".[test]" && python -m pytest -q']
    pattern = re.search(r"grep -m 1 '(.*?)' README\.md", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert pattern is not None
    done = subprocess.run(["grep", "-m", "1", pattern[1], str(README)], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n") == installs[1]


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("name", ["train_jsd", "train_layermix"])
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["photos/train", "photos/val", "--size", "32", "--batch-size", "8", "--workers", "0"]
    arguments += ["--checkpoint", "run.pt"] if name == "train_layermix" else []
    for epochs in ("1", "2") if name == "train_layermix" else ("2",):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--epochs", epochs])
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "epoch 1: loss " in out and "accuracy " in out
    if name == "train_layermix":
        assert "going on with epoch 1, batch 0" in out and out.count("epoch 0: loss ") == 1


def test_the_sheets_of_saliency_are_drawn(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sgmix_sheet", str(photos / "photos" / "train"), "a.jpg", "b.jpg"])
    runpy.run_path(str(ROOT / "examples" / "sgmix_sheet.py"), run_name="__main__")
    with Image.open("a.jpg") as first, Image.open("b.jpg") as second:
        assert first.width == second.width == 1000 and first.height > second.height > 300
