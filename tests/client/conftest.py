"""The fake server, one a test."""

import threading
from collections.abc import Iterator

import pytest

from tests.client.fake import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer().start()
    yield fake
    fake.stop()


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No token, address or data directory of whoever runs the tests."""
    for name in ("SLATE_TOKEN", "SLATE_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLATE_DATA", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """What a client starts in the background ends with it."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("slateboard-")]
    assert left == []
