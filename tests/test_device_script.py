"""`benchmarks.device`, which runs where there is a GPU: all of it on tiny pictures, and what becomes of failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_host import Cuda, HostDevice

from benchmarks import device, device_clock, device_figures
from benchmarks.device_clock import TINY, Recorder, Row

ROOT = Path(__file__).parents[1]


def test_a_dry_run_has_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.device", "--dry-run", "--json", str(tmp_path / "made.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert made["around"]["gpu"] == "dry run" and made["around"]["torch"] is not None
    rows = {(row["part"], row["name"]): row for row in made["rows"]}
    assert len(rows) == len(made["rows"])
    assert {*rows} == {(name, row) for name, part in device.PARTS.items() for row in part.rows}
    for (part, name), row in rows.items():
        assert name in done.stdout and row["verdict"] == ""
        if part in ("tests", "sanitizer"):
            assert row["said"] == "not run"
        elif row["said"]:
            assert part == "peers" and row["said"] == "not there"
        else:
            assert all(value > 0 for value in row["values"]) or part == "memory"


def good(_: Any) -> Iterator[Row | str]:
    yield "at work"
    yield Row("first", [1.0])


def raises(_: Any) -> Iterator[Row | str]:
    yield Row("first", [1.0])
    raise RuntimeError("an illegal address")


def crashes(_: Any) -> Iterator[Row | str]:
    yield Row("first", [1.0])
    time.sleep(0.2)
    os.abort()


def hangs(_: Any) -> Iterator[Row | str]:
    yield Row("first", [1.0])
    time.sleep(600)


@pytest.mark.parametrize(
    ("run", "seconds", "said"),
    [
        (good, 60, "not run"),
        (raises, 60, "failed: RuntimeError: an illegal address"),
        (crashes, 60, "failed: its process ended with -6"),
        (hangs, 5, "failed: not ready after 5 s"),
    ],
)
def test_a_part_that_fails_leaves_what_it_made(run: Any, seconds: float, said: str) -> None:
    told: list[str] = []
    if run is hangs:  # torch is imported before the clock runs
        device.rows_of(device.Part(good, [], 60), TINY, 60, told.append)
        told.clear()
    rows = device.rows_of(device.Part(run, ["first", "second"], seconds), TINY, seconds, told.append)
    assert rows == [Row("first", [1.0]), Row("second", said=said)]
    assert told == (["at work"] if run is good else [])


def test_a_kernel_that_fails_leaves_the_others() -> None:
    def make() -> Iterator[Row]:
        yield Row("first", [1.0])
        raise ValueError("no\nmore")

    rows = list(device_clock.guarded(["first", "second"], make))
    assert rows == [Row("first", [1.0]), Row("second", said="failed: ValueError: no")]


def test_recorded_launches_do_the_work_again() -> None:
    recorder = Recorder(HostDevice())
    kernels, images = Cuda(recorder), np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    out, matrices = np.zeros_like(images), np.tile([1.0, 0, 0, 0, 1, 0], (2, 1))
    for call in (
        lambda: kernels.to_float(images, np.tile(np.arange(256, dtype=np.uint8), (3, 1)), out, True, 0, 2),
        lambda: kernels.warp(images, matrices, out, 0, 2),
    ):
        recorder.launches = []
        call()
        np.testing.assert_array_equal(out, images)
        out[...] = 0
        assert len(recorder.launches) == 1
        recorder.launches[0]()
        np.testing.assert_array_equal(out, images)
        out[...] = 0


@pytest.mark.parametrize(("needed", "late"), [(1 << 20, 0), (1 << 24, 0), (1 << 40, 1)])
def test_the_gpu_sleeps_until_all_is_launched(monkeypatch: pytest.MonkeyPatch, needed: int, late: int) -> None:
    """Where a device has begun before that, a longer sleep is tried, a few times."""
    slept: list[int] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def query(self) -> bool:
            return slept[-1] < needed

        def elapsed_time(self, _: Any) -> float:
            return 3.0

        def record(self) -> None:
            pass

        synchronize = record

    monkeypatch.setattr(device_clock, "torch", SimpleNamespace(cuda=SimpleNamespace(Event=Event, _sleep=slept.append)))
    there, worked = device_clock.Gpu(), []
    assert there.seconds(lambda: worked.append(1)) == 0.003
    assert there.late == late and len(worked) == len(slept)
    assert slept == sorted(slept) and (slept[-1] >= needed or late)
    if needed == 1 << 24:
        assert slept == [1 << 22, 1 << 23, 1 << 24]


def test_outcomes_of_pytest() -> None:
    said = (
        "....\nFAILED tests/a.py::b - in 3.0s\nERROR tests/a.py::c - no\nERROR tests/d.py\nERROR tests/e.py - a - b\n"
    )
    said += "2 failed, 310 passed, 4 skipped, 3 errors in 65.20s (0:01:05)\n"
    good, bad = device.outcomes(1, said)
    assert (good.values, good.more, bad.values) == ([310], {"skipped": 4, "files not read": 2}, [3])
    assert bad.more["last lines"][-1].startswith("2 failed")
    good, bad = device.outcomes(0, "7 passed in 1.00s")
    assert (good.values, bad.values, bad.more) == ([7], [0], {})
    for status, said in ((None, "...."), (4, "no such option"), (-11, "1 passed in 1.00s")):
        assert all(row.said.startswith("failed: ") for row in device.outcomes(status, said))


def test_what_runs_too_long_is_ended_with_what_it_started() -> None:
    status, said = device.run_for(["sh", "-c", "echo begun; sleep 100 & echo $!; wait"], 1)
    assert status is None
    begun, child = said.split()
    assert begun == "begun"
    time.sleep(0.2)
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_figures_are_judged_on_a_gpu_only() -> None:
    row = Row("a", [0.5, 0.8, 0.6], must=0.7)
    assert device.judged(row, False)["verdict"] == "MISSED" and device.judged(row, True)["verdict"] == ""
    assert device.judged(Row("a", [0.0], must=0, at_most=True), False)["verdict"] == "must"
    assert device.cells("kernels", row, False) == ["kernels", "a", "0.6", "0.5 to 0.8", "≥ 0.7", "", "MISSED", ""]


def test_the_model_is_torchvisions() -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    own, other = device_figures.plain_resnet50().eval(), models.resnet50().eval()
    states = own.state_dict(), other.state_dict()
    assert [value.shape for value in states[0].values()] == [value.shape for value in states[1].values()]
    own.load_state_dict(dict(zip(states[0], states[1].values(), strict=True)))
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(own(images), other(images))
