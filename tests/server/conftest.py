from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server that the tests of a module share; each must leave it idle."""
    with running() as here:
        yield here
