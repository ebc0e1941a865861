"""Optional packages: there, or one sentence."""

import math

import pytest

from elbowroom.errors import BackendUnavailable
from elbowroom.science.packages import need


def test_what_is_there_is_returned() -> None:
    assert need("math", "counting") is math


def test_what_is_not_is_named_with_its_purpose() -> None:
    with pytest.raises(BackendUnavailable) as error:
        need("no_such_module.part", "reading clay tablets", package="cuneiform")
    assert str(error.value) == (
        "reading clay tablets needs the package cuneiform: pip install cuneiform"
    )
