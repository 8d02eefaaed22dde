"""What a GPU makes of fastmix: `python -m benchmarks.device --json OUT.json` (at most 6 minutes).

The GPU's own tests, then kernels, methods, memory, a training step, other libraries, and, if time is left, a few of the
tests under compute-sanitizer.  Every part is a process of its own with a time of its own, so that nothing that goes
wrong on the device reaches the next one; all that was measured until then is kept.

From the root of the repository; fastmix need not be installed, nor what only reading files needs.  --dry-run does all
parts but those of the tests on tiny pictures without a GPU, by the kernels' code on the CPU (with g++): its figures
say nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import bare  # noqa: F401  # it fills in for packages that a machine with a GPU may lack

from benchmarks import device_figures as figures
from benchmarks.device_clock import FULL, TINY, Row, Said, Scale
from benchmarks.report import Figure, circumstances, table
from fastmix.bench import version_of

ROOT = Path(__file__).parents[1]
SECONDS = 340.0  # in all
HEAD = ["part", "figure", "measured", "lowest to highest", "must", "aim", "verdict", "besides"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
TOOLS = {"memcheck": r"ERROR SUMMARY: (\d+) error", "racecheck": r"RACECHECK SUMMARY: (\d+) hazard"}
OUTCOMES = "tests that passed", "tests that failed"


@dataclass(frozen=True)
class Part:
    """What is measured together.  run: yields what it does, and rows; rows: their names; seconds: at most."""

    run: Callable[[Scale], Said]
    rows: list[str]
    seconds: float
    dry: bool = True  # whether a dry run has it


def run_for(command: list[str], seconds: float) -> tuple[int | None, str]:
    """The status, None if it had to be ended, and what it printed."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
        preexec_fn=end_with_parent,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        said, _ = process.communicate()
        return None, said


def end_with_parent() -> None:
    """Called in a new process: it is killed when this one is gone, for it would keep the GPU."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def last_lines(said: str, count: int = 15) -> list[str]:
    return said.strip().splitlines()[-count:]


def tests(scale: Scale) -> Said:
    """The tests that need a GPU."""
    yield "pytest -m gpu"
    status, said = run_for([*PYTEST, "--continue-on-collection-errors", "tests"], scale.seconds - 5)
    yield from outcomes(status, said)


def outcomes(status: int | None, said: str) -> Said:
    """What pytest's last line says; how it ended, where there is none."""
    ends = [line for line in said.splitlines() if re.search(r" in \d+\.\d+s", line)]
    counts = {name.rstrip("s"): int(count) for count, name in COUNTS.findall(ends[-1] if ends else "")}
    unread = len(set(re.findall(r"^ERROR (\S+\.py)(?: - .*)?$", said, re.MULTILINE)))  # for want of a package
    good, bad = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0) - unread
    if status is None or status not in (0, 1, 2) or not ends:
        why = "failed: not ready in time" if status is None else f"failed: pytest ended with {status}"
        yield from (Row(name, said=why, more={"last lines": last_lines(said)}) for name in OUTCOMES)
        return
    yield Row(OUTCOMES[0], [good], must=1, more={"skipped": counts.get("skipped", 0), "files not read": unread})
    yield Row(OUTCOMES[1], [bad], must=0, at_most=True, more={"last lines": last_lines(said)} if bad or unread else {})


def sanitizer(scale: Scale) -> Said:
    """A few of these tests under compute-sanitizer, if it is there; half of the time for each tool."""
    homes = sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    program = shutil.which("compute-sanitizer") or (str(homes[-1]) if homes else None)
    for tool, pattern in TOOLS.items():
        yield tool
        if program is None:
            yield Row(f"{tool}, findings", said="not there")
            continue
        options = ["--report-api-errors", "no"] if tool == "memcheck" else []
        chosen = ["-k", "(ops or fold or maps or pictures) and (size1 or size2)", "tests/test_gpu.py"]
        status, said = run_for([program, "--tool", tool, *options, *PYTEST, *chosen], scale.seconds / 2 - 3)
        found, ran = re.findall(pattern, said), dict(map(reversed, COUNTS.findall(said)))
        more = {"last lines": last_lines(said)}
        if status is None or not found or "passed" not in ran:
            yield Row(
                f"{tool}, findings",
                said="failed: not ready in time" if status is None else f"failed: ended with {status}",
                more=more,
            )
            continue
        bad = int(found[-1])
        more = {**({} if bad == 0 else more), "tests that passed": int(ran["passed"])}
        yield Row(f"{tool}, findings", [bad], must=0, at_most=True, more=more)


PARTS = {
    "tests": Part(tests, [*OUTCOMES], 155, dry=False),
    "kernels": Part(figures.kernels, [f"{name} ÷ copy" for name in figures.KERNELS] + [figures.COPY], 60),
    "methods": Part(figures.methods, [row for name in figures.METHODS for row in figures.method_rows(name)], 45),
    "memory": Part(figures.memory, [*figures.MEMORY], 30),
    "training": Part(figures.training, figures.TRAINING, 85),
    "peers": Part(figures.peers, [f"{name}, images/s" for name in figures.PEERS], 30),
    "sanitizer": Part(sanitizer, [f"{tool}, findings" for tool in TOOLS], 126, dry=False),
}


def work(run: Callable[[Scale], Said], scale: Scale, pipe: Connection) -> None:
    """Do a part and send what it yields; a failure is a row without a name."""
    with pipe:
        try:
            for each in run(scale):
                pipe.send(each)
        except Exception as error:
            pipe.send(Row("", said=f"failed: {type(error).__name__}: {error}"))


def rows_of(part: Part, scale: Scale, seconds: float, tell: Callable[[str], None]) -> list[Row]:
    """The rows of a part, in a process of its own; those that it did not make say why."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.device_figures"])  # imported once, and nothing that touches the GPU
    pipe, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(part.run, replace(scale, seconds=seconds), theirs))
    process.start()
    theirs.close()
    end, rows, why = time.monotonic() + seconds, list[Row](), "not run"
    try:
        while pipe.poll(max(end - time.monotonic(), 0)):
            sent = pipe.recv()
            if isinstance(sent, str):
                tell(sent)
            elif sent.name:
                rows.append(sent)
            else:
                why = sent.said
        why = f"failed: not ready after {seconds:.0f} s"
    except EOFError:
        process.join(10)
        if process.exitcode and why == "not run":
            why = f"failed: its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    known = {row.name for row in rows}
    return rows + [Row(name, said=why) for name in part.rows if name not in known]


def around(dry: bool, commit: str | None) -> dict[str, Any]:
    """What `report.circumstances` has, and the GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu, driver, size, cuda = "dry run", None, None, None
    if not dry:
        _, said = run_for(asked, 20) if shutil.which("nvidia-smi") else (None, "unknown")
        gpu, driver, size = [*said.strip().split(", "), None, None][:3]
        cuda = figures.torch.version.cuda
    cupy = next((found for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if (found := version_of(name))), None)
    known = {"gpu": gpu, "driver": driver, "GPU memory": size, "cuda": cuda, "cupy": cupy}
    known |= {"numba-cuda": version_of("numba-cuda"), **circumstances()}
    return known | ({"commit": commit} if commit else {})


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def judged(row: Row, dry: bool) -> dict[str, Any]:
    """A row as JSON has it."""
    known = {**asdict(row), "value": median(row.values) if row.values else None, "verdict": ""}
    if row.values and row.must is not None and not dry:
        known["verdict"] = Figure(row.name, row.values, row.must, row.aim, at_most=row.at_most).verdict
    return known


def cells(part: str, row: Row, dry: bool) -> list[str]:
    """A row as the table has it."""
    known = judged(row, dry)
    spread = f"{number(min(row.values))} to {number(max(row.values))}" if len(row.values) > 1 else ""
    must = "" if row.must is None else f"{'≤' if row.at_most else '≥'} {row.must:,g}"
    besides = [f"{k} {number(v)}" if isinstance(v, int | float) else f"{k}: see --json" for k, v in row.more.items()]
    measured = number(known["value"]) if row.values else row.said[:60]
    aim = "" if row.aim is None else f"≥ {row.aim:,g}"
    return [part, row.name, measured, spread, must, aim, known["verdict"], " · ".join(besides)]


def main() -> int:
    """Do all parts, print, and write what was asked for; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="written anew after each part")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--commit", help="for a copy without its repository")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="default: all")
    options = parser.parse_args()
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json is {options.json}, expected a file in a folder that exists")
    if not options.dry_run and not figures.torch.cuda.is_available():
        parser.error("torch finds no GPU here: pass --dry-run to see that the script works")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end, too
    dry, began = options.dry_run, time.monotonic()
    known, made = around(dry, options.commit), list[tuple[str, Row]]()
    with tqdm(total=len(PARTS), unit="part", mininterval=1) as bar:
        for name, part in PARTS.items():
            left = SECONDS - (time.monotonic() - began)
            if name not in options.parts or (dry and not part.dry) or left < 5:
                why = "not run: no time was left" if left < 5 else "not run"
                rows = [Row(each, said=why) for each in part.rows]
            else:
                seconds = min(part.seconds, left)
                scale = TINY if dry else replace(FULL, workers=min(FULL.workers, max(1, (os.cpu_count() or 1) - 2)))
                rows = rows_of(part, scale, seconds, lambda what, name=name: bar.set_description(f"{name}: {what}"))
            made += [(name, row) for row in rows]
            bar.update()
            if options.json:
                result = {"around": known, "rows": [{"part": part, **judged(row, dry)} for part, row in made]}
                options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print("\n".join(f"{name}: {value}" for name, value in known.items()))
    print(table(HEAD, [cells(part, row, dry) for part, row in made], False))
    for part, row in made:
        if "last lines" in row.more:
            print(f"\n{part}, {row.name}:", *row.more["last lines"], sep="\n")
    return int(any(row.said.startswith("failed") for _, row in made))


if __name__ == "__main__":
    sys.exit(main())
