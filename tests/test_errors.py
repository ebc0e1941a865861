"""Errors: one base, and the builtin that callers would catch by habit."""

import ast
import inspect
from pathlib import Path

import pytest

import elbowroom
from elbowroom import errors

PUBLIC = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if value.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", PUBLIC, ids=lambda error: error.__name__)
def test_every_error_has_the_one_base_and_is_exported(error: type[Exception]) -> None:
    assert issubclass(error, errors.ElbowroomError)
    assert getattr(elbowroom, error.__name__) is error
    assert error.__doc__


SOURCE = Path(elbowroom.__file__).parent
# What the reader of the format finds wrong in a recipe or chunk has no remedy of its own.
SPEAKING = [
    path
    for part in ("codec", "cli")
    for path in sorted((SOURCE / part).rglob("*.py"))
    if "reference" not in path.parts and path.name != "recipe.py"
]
REFUSALS = {"InvalidArgument", "IncompatibleFormat", "BackendUnavailable"}
# A refusal tells what to do after a colon, or in the words of what is expected.
REMEDIES = (": ", "must be one of", "must end in one of", "such as", "say how")


def sentence(node: ast.expr) -> str:
    """The fixed words of a string; what is filled in becomes a dash."""
    if isinstance(node, ast.JoinedStr):
        return "".join(sentence(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "-"


def refusals(tree: ast.AST) -> list[str]:
    return [
        sentence(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in REFUSALS
        and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
    ]


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_refusal_says_what_to_do(path: Path) -> None:
    found = refusals(ast.parse(path.read_text(encoding="utf-8")))
    assert [text for text in found if not any(words in text for words in REMEDIES)] == []


def test_a_refusal_without_a_remedy_is_found() -> None:
    tree = ast.parse("raise InvalidArgument(f'{x} is wrong')\nraise CorruptData('damaged')")
    assert refusals(tree) == ["- is wrong"]


def test_invalid_argument_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="bound must be positive"):
        raise elbowroom.InvalidArgument("bound must be positive, got -1.0")


def test_backend_unavailable_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError):
        raise elbowroom.BackendUnavailable("triton is not installed")
