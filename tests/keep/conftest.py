"""What the tests of activations share: one thread."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def in_one_thread(one_thread: None) -> None:
    """Also for what fixtures of modules train."""
