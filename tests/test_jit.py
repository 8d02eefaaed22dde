"""Where compiled kernels are kept, and for how long; each case in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DAY_S = 24 * 3600
COMPILE = """
import numpy as np
from fastmix.kernels import cpu
counts = np.empty((1, 3, 256), np.int32)
cpu.histogram(np.full((1, 2, 4, 3), 7, np.uint8), counts, 0, 1)
assert (counts[0, :, 7] == 8).all() and counts.sum() == 24
"""


def run(code: str, **variables: str) -> str:
    """Run Python code with other environment variables; returns what it wrote to stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | variables
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_kernels_work_where_nothing_can_be_written() -> None:
    told = run(COMPILE, HOME="/nonexistent", XDG_CACHE_HOME="/proc/x")
    assert told.count("Warning") == told.count("UserWarning: no writable cache folder") == 1


def test_a_folder_of_the_users_choice(tmp_path: Path) -> None:
    assert run(COMPILE, HOME="/nonexistent", NUMBA_CACHE_DIR=str(tmp_path)) == ""
    assert list(tmp_path.rglob("*.nbi"))


def test_unused_kernels_are_removed(tmp_path: Path) -> None:
    caches = tmp_path / "fastmix"
    for name, days in {"kernels-old": 31, "kernels-young": 29, "pool.npy": 300, "others-old": 300}.items():
        (caches / name).mkdir(parents=True)
        (caches / name / "file").write_bytes(b"")
        os.utime(caches / name, (time.time() - days * DAY_S,) * 2)
    assert run("import fastmix.kernels.jit", XDG_CACHE_HOME=str(tmp_path)) == ""
    (made,) = {path.name for path in caches.iterdir()} - {"kernels-young", "pool.npy", "others-old"}
    assert made.startswith("kernels-") and made != "kernels-old"


def test_kernels_in_use_stay(tmp_path: Path) -> None:
    code = "import fastmix.kernels.jit as jit; open(jit._FOLDER + '/file', 'a').close()"
    run(code, XDG_CACHE_HOME=str(tmp_path))
    (folder,) = (tmp_path / "fastmix").iterdir()
    os.utime(folder, (time.time() - 50 * DAY_S,) * 2)
    run(code, XDG_CACHE_HOME=str(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert abs(folder.stat().st_mtime - time.time()) < DAY_S
