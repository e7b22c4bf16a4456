"""The server that the examples talk to."""

import pytest


@pytest.fixture
def server(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment by which a client finds the live server and its token."""
    try:
        address, token = request.getfixturevalue("live_server")
    except pytest.FixtureLookupError:
        pytest.skip("there is no fixture live_server yet")
    return {"SLATE_SERVER": address, "SLATE_TOKEN": token}
