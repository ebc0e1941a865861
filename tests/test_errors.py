"""Errors: one base, and the builtin that callers would catch by habit."""

import inspect

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


def test_invalid_argument_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="bound must be positive"):
        raise elbowroom.InvalidArgument("bound must be positive, got -1.0")


def test_backend_unavailable_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError):
        raise elbowroom.BackendUnavailable("triton is not installed")
