"""How a client finds its server and its token, and how patient it is."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slateboard.errors import Invalid

DEFAULT_PORT = 7400
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_TIMEOUT = 30.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""A reply is at most 3.5 MiB; the rest is room for framing and older servers."""
MAX_TIMEOUT = 12 * 3600.0
"""No call goes on longer: the server keeps request ids for at least 24 h, and no retry may come after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a call is sent again. The call's timeout bounds all of it."""

    attempts: int = 10
    """Calls in all, for failures that are not contention. 1: never retry."""
    initial_backoff: float = 0.05
    """Seconds before the second attempt, about; doubles from there. Another address is tried at once."""
    max_backoff: float = 2.0
    jitter: float = 0.5
    """Each wait is drawn from [wait * (1 - jitter), wait]."""
    attempt_timeout: float = 10.0
    """Seconds for one call, after which the next is made, on the next address."""
    conflict_attempts: int = 64
    """Commits that `update()` and `run()` try before they raise Conflict. 1: never retry."""
    conflict_backoff: float = 0.01
    """As initial_backoff, for contention; the server's RetryInfo counts where it asks for more."""
    max_conflict_backoff: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.conflict_attempts < 1:
            raise Invalid("attempts and conflict_attempts are at least 1", metadata={"field": "retry"})
        waits = (self.initial_backoff, self.max_backoff, self.conflict_backoff, self.max_conflict_backoff)
        if min(waits) < 0 or self.attempt_timeout <= 0 or not 0 <= self.jitter <= 1:
            raise Invalid("waits are not negative and jitter lies in [0, 1]", metadata={"field": "retry"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """An encrypted connection. Without fields: the system's certificate authorities, no client certificate."""

    ca: str | Path | None = None
    """PEM file of the authorities to believe."""
    cert: str | Path | None = None
    """PEM file of the client's certificate chain (mTLS); needs `key`."""
    key: str | Path | None = None
    server_name: str | None = None
    """The name to find in the server's certificate, where it differs from the address."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise Invalid("a client certificate needs both cert and key", metadata={"field": "tls"})


def parse_addresses(
    address: str | Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Targets, in order, each once: from the argument, else SLATE_SERVER, else the default.

    `host`, `host:port`, `[::1]:port`, `unix:path`; several as a list or joined by commas.

    Raises:
        Invalid: nothing is named, or a port is no port.
    """
    if address is None:
        address = (os.environ if environ is None else environ).get("SLATE_SERVER") or DEFAULT_ADDRESS
    parts = address.split(",") if isinstance(address, str) else list(address)
    targets = tuple(dict.fromkeys(_target(part.strip()) for part in parts if part.strip()))
    if not targets:
        raise Invalid("no server address was given", metadata={"field": "address"})
    return targets


def is_loopback(target: str) -> bool:
    """Whether what is sent there stays on this machine."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where a local server keeps its data: SLATE_DATA, else `slateboard` below the user's data directory."""
    env = os.environ if environ is None else environ
    if env.get("SLATE_DATA"):
        return Path(env["SLATE_DATA"]).expanduser()
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "slateboard"


def read_token_file(name: str, directory: Path | None = None) -> str | None:
    """The token in `<directory>/<name>.token` (one line), or None where there is none to read."""
    path = (directory or data_dir()) / f"{name}.token"
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def find_token(
    token: str | None, targets: Sequence[str], environ: Mapping[str, str] | None = None
) -> str | None:
    """The token to send: the argument, else SLATE_TOKEN, else the local server's `local` token.

    The file is only looked at when every target is on this machine: a local credential is nobody else's business.

    Raises:
        Invalid: the token holds what no header can carry.
    """
    env = os.environ if environ is None else environ
    found = token or env.get("SLATE_TOKEN") or None
    if found is None and all(is_loopback(target) for target in targets):
        found = read_token_file("local", data_dir(env))
    if found is not None and not (found.isascii() and found.isprintable() and " " not in found):
        # Without the token itself: this text may end up in a log.
        raise Invalid("the token holds spaces or control characters", metadata={"field": "token"})
    return found


def _target(text: str) -> str:
    if text.startswith(("unix:", "unix-abstract:")):
        return text
    for scheme in ("http://", "https://", "grpc://", "dns:///"):
        text = text.removeprefix(scheme)
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        if text.endswith("]"):
            host, colon, port = text, ":", str(DEFAULT_PORT)
    elif text.count(":") > 1:
        host, colon, port = f"[{text}]", ":", str(DEFAULT_PORT)
    elif not colon:
        host, port = text, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise Invalid(
            f"{text!r} is no address; write host:port, e.g. {DEFAULT_ADDRESS}", metadata={"field": "address"}
        )
    return f"{host}:{port}"
