"""Encrypted connections: whom the client believes, and as whom it shows itself."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import slateboard
from slateboard import TLS, Invalid, RetryPolicy, Unavailable
from tests.client.fake import FakeServer

ONCE = RetryPolicy(attempts=1)
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes certificates with the openssl program, which is not there"
)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for board.example, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", "/CN=board.example", "-addext", "subjectAltName=DNS:board.example", "-days", "1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "server")


@pytest.fixture
def secure(own: tuple[Path, Path], tmp_path: Path) -> Iterator[FakeServer]:
    """Asks for a client certificate too, and accepts only its own."""
    cert, key = (path.read_bytes() for path in own)
    credentials = grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True)
    fake = FakeServer().start(credentials)
    yield fake
    fake.stop()


@needs_openssl
def test_both_sides_show_who_they_are(secure: FakeServer, own: tuple[Path, Path]) -> None:
    tls = TLS(ca=own[0], cert=own[0], key=own[1], server_name="board.example")
    with slateboard.connect(secure.address, tls=tls, token="s3cret") as client:
        assert client.board("b").put("k", 1, absent=True).version == 1
    assert secure.metadata[-1]["authorization"] == "Bearer s3cret"


@needs_openssl
@pytest.mark.parametrize("fault", ["other authority", "other name", "no client certificate", "no encryption"])
def test_nothing_is_said_to_a_stranger(
    secure: FakeServer, own: tuple[Path, Path], tmp_path: Path, fault: str
) -> None:
    stranger = certificate(tmp_path, "stranger")
    tls = {
        "other authority": TLS(ca=stranger[0], cert=own[0], key=own[1], server_name="board.example"),
        "other name": TLS(ca=own[0], cert=own[0], key=own[1], server_name="other.example"),
        "no client certificate": TLS(ca=own[0], server_name="board.example"),
        "no encryption": None,
    }[fault]
    client = slateboard.connect(secure.address, tls=tls, token="s3cret", retry=ONCE)
    with client, pytest.raises(Unavailable):
        client.board("b").get("k")
    assert secure.metadata == []


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"ca\.pem"):
        slateboard.connect("board.example:1", tls=TLS(ca=tmp_path / "ca.pem"))
    with pytest.raises(Invalid, match="both cert and key"):
        TLS(cert=tmp_path / "c.pem")
