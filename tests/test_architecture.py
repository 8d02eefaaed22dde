"""The rules of the house, checked on the syntax trees: who may import whom, how long a file may be, and the like.

Every check is also run on a small file that breaks its rule: a check that cannot fail is none.
"""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob("kernels/**/*.py")) + sorted(
    path for path in ROOT.glob("fastmix/**/*.py") if "kernels" not in path.relative_to(ROOT).parts
)
OTHERS = sorted(path for folder in ("tests", "benchmarks", "examples") for path in ROOT.glob(f"{folder}/**/*.py"))

# room -> (rooms it may use, other packages it may use); what a room uses by itself is free.
KERNELS = ({"kernels"}, {"numpy"})
COMPILED = ({"kernels"}, {"numpy", "numba", "llvmlite", "platformdirs"})
DRAWN = {"types", "rng", "kernels", "ops", "saliency"}
READING = {"types", "rng", "kernels", "images", "jpeg"}
MAPS = {"maps", "mapfile", "saliency"}
ENGINE = DRAWN | READING | MAPS | {"methods", "mixing", "fractals", "pools", "datasets", "words", "synthetic", "engine"}
ANY = None
ROOMS: dict[str, tuple[set[str] | None, set[str] | None]] = {
    "kernels": KERNELS,
    "kernels.pixel": KERNELS,
    "kernels.reference": KERNELS,
    "kernels.scan": KERNELS,
    "kernels.program": KERNELS,
    "kernels.gather": KERNELS,
    "kernels.cuda": ({"kernels"}, {"numpy", "numba"}),
    "kernels.jit": COMPILED,
    "kernels.cpu": COMPILED,
    "rng": (set(), {"numpy"}),
    "types": ({"rng", "kernels"}, {"numpy"}),
    "saliency": ({"types", "kernels"}, {"numpy"}),
    "ops": (DRAWN, {"numpy"}),
    "methods": (DRAWN, {"numpy"}),
    "mixing": (DRAWN, {"numpy"}),
    "words": (DRAWN, {"numpy"}),
    "maps": ({"types", "kernels"}, {"numpy"}),
    "images": (READING, {"numpy", "PIL", "simplejpeg"}),
    "jpeg": ({"kernels"}, {"numpy"}),
    "datasets": (READING, {"numpy", "PIL"}),
    "mapfile": (READING | MAPS | {"datasets"}, {"numpy", "tqdm"}),
    "manifest": (set(), {"pyarrow"}),
    "synthetic": ({"types", "rng", "kernels", "datasets", "manifest"}, {"numpy"}),
    "fractals": (READING, {"numpy", "PIL"}),
    "pools": (READING | {"fractals"}, {"numpy", "PIL", "platformdirs", "tqdm"}),
    "photos": (READING, {"numpy", "PIL", "tqdm", "skimage", "sklearn"}),
    "engine": (ENGINE, {"numpy"}),
    "cams": ({"types"}, {"numpy", "torch"}),
    "attribution": ({"types", "cams"}, {"numpy", "torch"}),
    "windows": ({"types"}, {"numpy", "torch"}),
    "learn": ({"types", "rng", "attribution", "cams", "windows", "maps"}, {"numpy", "torch"}),
    "loaders": (ENGINE | {"attribution", "cams"}, {"numpy", "tqdm"}),
    "": (ANY, set()),
    "cli": (ANY, ANY),
}
COMMAND_LINE = {"__main__", "cli", "demo", "bench", "show", "explain"}
ROOMS["offline"] = ({*ROOMS, *COMMAND_LINE} - {"loaders"}, ANY)
GLOBAL_RANDOM = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "normal",
}
GLOBAL_RANDOM |= {"multinomial", "manual_seed", "seed", "get_rng_state", "set_rng_state"}

Found = Iterator[str]


def name_of(path: Path) -> str:
    """fastmix/methods/pixmix.py -> methods.pixmix; kernels/cpu.py -> kernels.cpu; fastmix/__init__.py -> ''."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts[parts[0] == "fastmix" :] if part != "__init__")


def room_of(name: str) -> str:
    """The entry of ROOMS that governs a module; '?' for none."""
    first, *rest = name.split(".")
    if first in COMMAND_LINE:
        return "cli"
    if first == "kernels" and rest:
        return next((room for room in ROOMS if room != "kernels" and name.startswith(room)), "?")
    return first if first in ROOMS else "?"


def imports(name: str, package: bool, tree: ast.AST) -> Iterator[str]:
    """Full names of all that a module imports, wherever in the file: fastmix.kernels.cpu, numpy, torch.nn, ..."""
    here = ["fastmix", *name.split(".")] if name else ["fastmix"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + package] if node.level else []
            origin = ".".join(base + ([node.module] if node.module else []))
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def wrong_imports(name: str, package: bool, tree: ast.AST) -> Found:
    """Imports that the room of the module does not allow."""
    rooms, packages = ROOMS.get(room_of(name), (set(), set()))
    if room_of(name) == "loaders" and packages is not None:
        packages = packages | {*name.split(".")[1:2]}  # each its own framework
    for target in imports(name, package, tree):
        top, _, inner = target.partition(".")
        if top == "fastmix":
            used = inner.split(".")[0]
            if name.startswith("loaders.") and used == "loaders" and inner.split(".")[1:2] != name.split(".")[1:2]:
                yield f"another loader: {target}"
            elif used != name.split(".")[0] and rooms is not ANY and used not in rooms:
                yield target
        elif top not in sys.stdlib_module_names and packages is not ANY and top not in packages:
            yield target


def dotted(node: ast.AST) -> str:
    """np.random.seed as a string; '' for anything but names and dots."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def backend_files(name: str, package: bool, tree: ast.AST) -> Found:
    """Names of backend files, outside kernels."""
    named = [*imports(name, package, tree), *(dotted(node) for node in ast.walk(tree))]
    for target in named:
        before, found, file = target.partition("kernels.")
        if (
            found
            and (not before or before.endswith("."))
            and file.split(".")[0].startswith(("cpu", "cuda", "reference"))
        ):
            yield target


def global_random(name: str, package: bool, tree: ast.AST) -> Found:
    """Uses of the random numbers of the process instead of fastmix.rng."""
    used = [*imports(name, package, tree), *(dotted(node) for node in ast.walk(tree))]
    for target in used:
        top, _, rest = target.partition(".")
        plain = top == "random" and target in imports(name, package, tree)
        numpy = top in ("np", "numpy") and rest.split(".")[0] == "random"
        torch = top == "torch" and (rest in GLOBAL_RANDOM or rest.split(".")[0] == "random")
        if plain or numpy or torch:
            yield target


def kernels_of_nobody(name: str, package: bool, tree: ast.AST) -> Found:
    """Imports of the folder kernels/ under its own name, which belongs to another package."""
    yield from (target for target in imports(name, package, tree) if target.split(".")[0] == "kernels")


def prints(name: str, _package: bool, tree: ast.AST) -> Found:
    """Calls of print outside the command line."""
    if room_of(name) != "cli":
        yield from (f"line {n.lineno}" for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "print")


def undocumented(_name: str, _package: bool, tree: ast.Module) -> Found:
    """Public modules, functions, classes and methods without a docstring."""
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in [n for n in tree.body if isinstance(n, defined) and not n.name.startswith("_")]:
        inner = [n for n in node.body if isinstance(n, defined)] if isinstance(node, ast.ClassDef) else []
        for each in [node, *(n for n in inner if not n.name.startswith("_"))]:
            if not ast.get_docstring(each):
                yield each.name


CHECKS = [wrong_imports, backend_files, global_random, kernels_of_nobody, prints, undocumented]
BREAKERS = [
    (wrong_imports, "rng", "from .types import Batch"),
    (wrong_imports, "types", "import torch"),
    (wrong_imports, "methods.pixmix", "from ..engine import run"),
    (wrong_imports, "methods.pixmix", "def f():\n    from .. import images"),
    (wrong_imports, "kernels.pixel", "import numba"),
    (wrong_imports, "kernels.reference_ops", "import scipy"),
    (wrong_imports, "kernels.cuda_device", "import torch"),
    (wrong_imports, "kernels.cpu", "from fastmix.rng import Key"),
    (wrong_imports, "kernels.cpu", "from ..rng import Key"),
    (wrong_imports, "images", "import scipy.ndimage"),
    (wrong_imports, "loaders.torch", "from .dali import Loader"),
    (wrong_imports, "loaders.torch", "import ffcv"),
    (wrong_imports, "offline.refine", "from ..loaders.torch import DataLoader"),
    (wrong_imports, "cams", "from .attribution import AttributionHook"),
    (wrong_imports, "learn.losses", "from ..engine import run"),
    (backend_files, "engine", "from .kernels import cpu"),
    (backend_files, "engine", "from .kernels.reference import mix"),
    (backend_files, "engine", "import fastmix\nfastmix.kernels.cpu.mix()"),
    (global_random, "engine", "import random"),
    (global_random, "engine", "from random import shuffle"),
    (global_random, "engine", "import numpy as np\nnp.random.default_rng(0)"),
    (global_random, "engine", "from numpy.random import default_rng"),
    (global_random, "engine", "import torch\ntorch.randperm(3)"),
    (kernels_of_nobody, "engine", "import kernels"),
    (kernels_of_nobody, "engine", "from kernels.cpu import mix"),
    (prints, "engine", "print(1)"),
    (undocumented, "engine", "x = 1"),
    (undocumented, "engine", '"""M."""\ndef f(): pass'),
    (undocumented, "engine", '"""M."""\nclass A:\n    """A."""\n    def f(self): pass'),
]


def found_in(check: Callable[..., Found], path: Path) -> list[str]:
    return list(check(name_of(path), path.name == "__init__.py", ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rules(check: Callable[..., Found]) -> None:
    files = [path for path in FILES if check is not backend_files or path.relative_to(ROOT).parts[0] != "kernels"]
    broken = {str(path.relative_to(ROOT)): bad for path in files if (bad := found_in(check, path))}
    assert broken == {}


@pytest.mark.parametrize(("check", "name", "source"), BREAKERS)
def test_rules_can_be_broken(check: Callable[..., Found], name: str, source: str) -> None:
    assert list(check(name, False, ast.parse(source)))


def test_every_file_has_a_room() -> None:
    assert [str(path) for path in FILES if room_of(name_of(path)) == "?"] == []


def test_kernels_goes_by_its_full_name_everywhere() -> None:
    assert {path.name: bad for path in OTHERS if (bad := found_in(kernels_of_nobody, path))} == {}
    assert (ROOT / "fastmix" / "kernels").is_symlink()


def test_sizes() -> None:
    files = [*FILES, *ROOT.glob("kernels/cuda/*.cu")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 350} == {}
    # A file for each method, family of kernels, stage of the engine, part of learning; a bound makes one more a choice.
    assert len(FILES) <= 116


def test_public_names_are_documented() -> None:
    package = importlib.import_module("fastmix")
    assert package.__all__
    public = {name: getattr(package, name) for name in package.__all__ if not name.startswith("__")}
    assert [name for name, value in public.items() if not (inspect.getdoc(value) or "").strip()] == []


def test_importing_fastmix_loads_numpy_only() -> None:
    code = (
        "import sys; old = set(sys.modules); import fastmix; print(*{m.split('.')[0] for m in set(sys.modules) - old})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fastmix" in loaded
    assert loaded - sys.stdlib_module_names <= {"fastmix", "numpy"}
