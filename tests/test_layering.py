"""The house rules that a reader relies on: import arrows, module sizes, lean import, no pickle."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "elbowroom"

DOING = {"keep", "send", "store", "thin"}

# What each part may import, besides itself. Arrows point down only.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "folders": {"errors"},
    "containers": set(),
    "host": {"containers"},
    "arena": {"host", "_native"},
    "lazy": set(),
    "sizes": {"errors", "host"},
    "solve": set(),
    "codec": {"errors", "_native"},
    **{part: {"errors", "host", "arena", "lazy", "sizes", "solve", "codec"} for part in DOING},
    "store": {"errors", "host", "lazy", "sizes", "codec", "_native"},
    "plan": {"errors", "sizes"},
    "science": {"errors", "codec", "plan", *DOING},
    "integrations": {"errors", "sizes", "codec", "plan", *DOING},
    "report": {"errors", "lazy", "codec", "plan", "bench", *DOING},
    "bench": {"errors", "codec", "_native"},
    "study": {"errors", "codec", "keep", "science", "report"},
    "cli": {
        *("errors", "sizes", "codec", "plan", "science", "integrations", "report", "bench"),
        *("_native", "study", "folders", *DOING),
    },
    "__main__": {"cli"},
    # The table of contents: what is imported here is public.
    "__init__": {"errors", "host", "codec", "plan", *DOING},
}

SOFT_LIMIT = 400
HARD_LIMIT = 700
# Longer than the soft limit, each with the reason why it stays in one piece.
LONG: dict[str, str] = {
    "src/elbowroom/keep/activations/anywhere.py": "whichever modules a process trains",
    "src/elbowroom/keep/activations/passes.py": "the way in and out of one pass, to become rooms",
    "src/elbowroom/keep/activations/room.py": "the front of a room and its options",
    "src/elbowroom/keep/activations/tally.py": "what is counted of one pass",
}

HEAVY = (
    "typer",
    "rich",
    "scipy",
    "matplotlib",
    "triton",
    "h5py",
    "torch.distributed.checkpoint",
    "torch._inductor",
    "elbowroom.cli",
    "elbowroom.bench",
    "elbowroom.report",
    "elbowroom.integrations",
    "elbowroom.science",
    "elbowroom.study",
)
RUNS_CODE_ON_LOAD = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def part_of(path: Path) -> str:
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported_parts(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the line and the part of elbowroom for every import, at any depth of the code.

    `package` is the package that the module lies in, against which relative imports resolve.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            words = name.split(".")
            if words[0] == "elbowroom" and len(words) > 1:
                yield node.lineno, words[1]


def violations(source: str, package: tuple[str, ...], part: str) -> list[str]:
    parts = set(ARROWS) | {"_native"}
    found = []
    for line, target in imported_parts(ast.parse(source), package):
        # A name that is no part is a public one, taken from the table of
        # contents, which only the top may do; __version__ is harmless.
        allowed = target in ARROWS[part] | {part, "__version__"}
        if target not in parts and part in {"cli", "science", "integrations", "__init__"}:
            allowed = True
        if not allowed:
            found.append(f"line {line}: {part} must not import elbowroom.{target}")
    return found


@pytest.mark.parametrize(
    "path", python_files("src"), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_down(path: Path) -> None:
    package = ("elbowroom", *path.relative_to(SOURCE).parent.parts)
    part = part_of(path)
    assert part in ARROWS, f"{part} is no part of the design: give it its arrows here"
    assert violations(path.read_text(encoding="utf-8"), package, part) == []


@pytest.mark.parametrize(
    ("part", "package", "line"),
    [
        ("codec", ("elbowroom", "codec"), "from elbowroom.keep import activations"),
        ("codec", ("elbowroom", "codec"), "import elbowroom.plan.cost"),
        ("codec", ("elbowroom", "codec"), "from ..keep import activations"),
        ("codec", ("elbowroom", "codec", "backends"), "from ...send import ddp"),
        ("codec", ("elbowroom", "codec"), "from elbowroom import Activations"),
        ("plan", ("elbowroom", "plan"), "def f():\n    from elbowroom import codec"),
        ("keep", ("elbowroom", "keep"), "from elbowroom.store import checkpoint"),
        ("keep", ("elbowroom", "keep"), "from elbowroom import _native"),
        ("science", ("elbowroom", "science"), "from elbowroom.report import render"),
        ("__init__", ("elbowroom",), "from elbowroom.integrations import huggingface"),
    ],
)
def test_an_upward_import_is_found(part: str, package: tuple[str, ...], line: str) -> None:
    assert violations(line, package, part)


@pytest.mark.parametrize(
    ("part", "package", "line"),
    [
        ("codec", ("elbowroom", "codec"), "from elbowroom import _native"),
        ("codec", ("elbowroom", "codec", "backends"), "from ..blob import Blob"),
        ("keep", ("elbowroom", "keep"), "from elbowroom.codec.encode import encode"),
        ("cli", ("elbowroom", "cli"), "from elbowroom import Bound, encode"),
        ("codec", ("elbowroom", "codec"), "import torch"),
    ],
)
def test_a_downward_import_is_not(part: str, package: tuple[str, ...], line: str) -> None:
    assert violations(line, package, part) == []


def test_modules_stay_small() -> None:
    files = python_files("src", "tests", "benchmarks", "examples")
    files += [
        path
        for path in (ROOT / "native").rglob("*")
        if path.suffix in {".cpp", ".hpp", ".inl", ".h", ".py"}
    ]
    lines = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in files
    }
    too_long = {name: count for name, count in lines.items() if count > HARD_LIMIT}
    assert not too_long, f"over {HARD_LIMIT} lines: {too_long}"
    longish = {name: count for name, count in lines.items() if count > SOFT_LIMIT}
    assert longish.keys() <= LONG.keys(), f"over {SOFT_LIMIT} lines: {longish}: split or list"
    assert LONG.keys() <= longish.keys(), "the list of long modules holds short ones"


def test_every_module_is_named_after_its_job() -> None:
    names = {"util", "utils", "helper", "helpers", "misc"}
    found = [str(path) for path in python_files("src", "benchmarks") if path.stem in names]
    found += [str(path) for path in (ROOT / "native").rglob("*") if path.stem in names]
    assert not found


def test_every_module_says_its_one_job() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path in python_files("src", "tests", "benchmarks", "examples")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not missing


def dangerous_loads(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in RUNS_CODE_ON_LOAD]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in RUNS_CODE_ON_LOAD:
                found.append(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "np.load"}:
            safe = {
                word.arg: ast.unparse(word.value) for word in node.keywords if word.arg is not None
            }
            torch_safe = safe.get("weights_only") == "True"
            numpy_safe = safe.get("allow_pickle", "False") == "False"
            if not (torch_safe if ast.unparse(node.func) == "torch.load" else numpy_safe):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "path", python_files("src"), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_nothing_stored_can_run_code(path: Path) -> None:
    assert dangerous_loads(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_a_dangerous_load_is_found(code: str) -> None:
    assert dangerous_loads(ast.parse(code))


def test_a_safe_load_is_not() -> None:
    code = "torch.load(path, weights_only=True)\nnp.load(path)\nnp.load(path, allow_pickle=False)"
    assert dangerous_loads(ast.parse(code)) == []


def test_import_is_lean() -> None:
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import elbowroom\n"
        "print('\\n'.join(sorted(set(sys.modules) - before)))\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    added = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout.split()
    heavy = [
        name for name in added if any(name == word or name.startswith(word + ".") for word in HEAVY)
    ]
    assert heavy == []
