"""How a server is configured: a TOML file, then the environment (SLATEBOARD_*), then the command line; the last one wins.

```toml
listen = "0.0.0.0:7400"
database_url = "postgresql://slateboard@db/slateboard"
tls_cert = "/etc/slateboard/tls.crt"
tls_key = "/etc/slateboard/tls.key"

[certificate_principals]
"spiffe://example.org/agent/planner" = "planner"
```
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

ENV_PREFIX = "SLATEBOARD_"


class ConfigError(Exception):
    """A setting cannot be used; the message names it."""


def default_data_dir() -> Path:
    """Return $SLATE_DATA, else `slateboard` below $XDG_DATA_HOME, else below ~/.local/share."""
    if named := os.environ.get("SLATE_DATA"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "slateboard"


class Config(BaseSettings):
    """Every setting of a server. Read once at the start, never changed."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, validate_default=True
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    """Where the embedded database and the tokens of the first start are."""
    listen: str = "127.0.0.1:7400"
    """HOST:PORT; `[::1]:7400` for IPv6; port 0 takes any free one. Beyond loopback it needs TLS, or `insecure`."""
    insecure: bool = False
    """Allow listening beyond loopback without TLS: every token then travels in the clear."""
    database_url: str | None = Field(default=None, repr=False)
    """postgresql://...: server mode, many replicas over one database. Unset: embedded, SQLite in `data_dir`."""
    auto_migrate: bool = False
    """Server mode: bring the schema up to date at the start, instead of refusing one that `slate migrate` has to."""
    etcd_endpoints: list[str] = Field(default_factory=list)
    """HOST:PORT of each etcd member: lock leases live there, for all replicas. Server mode needs it for locks."""
    etcd_prefix: str = "slateboard/"
    """Prefix of our keys in etcd; replicas of one database share one, different databases do not."""
    etcd_ca: Path | None = None
    """PEM file with the authorities of etcd's certificates; with it, connections are encrypted."""
    etcd_cert: Path | None = None
    """PEM file with the certificate this server shows to etcd."""
    etcd_key: Path | None = None
    """PEM file with its private key."""
    etcd_username: str = ""
    """User of etcd, where it asks for one."""
    etcd_password: str = Field(default="", repr=False)
    """Its password."""
    lock_sweep_interval: float = Field(default=2.0, gt=0)
    """Seconds between looks at all locks: whether their leases live, whether they were held too long."""
    replica_id: str = Field(default="", max_length=64)
    """What this process calls itself in replies and logs; empty: a random word."""

    tls_cert: Path | None = None
    """PEM file with the server's certificate chain."""
    tls_key: Path | None = None
    """PEM file with its private key."""
    tls_client_ca: Path | None = None
    """PEM file with the authorities of client certificates; with it, every client must show one (mTLS)."""
    certificate_principals: dict[str, str] = Field(default_factory=dict)
    """Identity in a client certificate (common name or subject alternative name) -> principal id."""

    log_format: Literal["console", "json"] = "console"
    """Text for people, or one JSON object a line; both go to standard error."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""
    metrics_listen: str | None = None
    """HOST:PORT of a Prometheus listener; unset: none. It tells figures only: no key, no value, no name."""

    cache_bytes: int = Field(default=64 << 20, ge=0)
    """Bound of the entry cache, all boards together."""
    ring_bytes: int = Field(default=4 << 20, ge=64 << 10)
    """Bound of recent commits kept for the watchers of one board."""
    queue_items: int = Field(default=4_096, ge=1)
    """Commits that may wait for a board before RATE_LIMITED."""
    queue_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """Bytes of values that may wait for a board before RATE_LIMITED."""
    commit_timeout: float = Field(default=10.0, gt=0)
    """Seconds a batch of commits may take in the database."""
    poll_interval: float = Field(default=1.0, gt=0)
    """Server mode: seconds between looks for other replicas' commits where no wake-up came."""
    recheck_interval: float = Field(default=2.0, gt=0, le=5.0)
    """Seconds between checks that a watcher is still allowed to watch."""
    auth_max_age: float = Field(default=2.0, ge=0, le=5.0)
    """Seconds a credential is believed without asking the database."""
    progress_interval: float = Field(default=10.0, gt=0)
    """Seconds after which an idle watch hears of progress."""
    watch_write_timeout: float = Field(default=30.0, gt=0)
    """Seconds a watcher may take no message before it is ended with WATCH_TOO_SLOW."""

    sweeper: bool = True
    """Record expiry, drop what is past its retention, compact by policy, erase deleted boards."""
    sweep_interval: float = Field(default=1.0, gt=0)
    """Seconds between sweeps."""
    compact_interval: float = Field(default=60.0, gt=0)
    """Seconds between looks at histories for automatic compaction."""
    drain_grace: float = Field(default=10.0, ge=0)
    """Seconds a SIGTERM leaves to running calls."""
    max_connection_age: float = Field(default=1_800.0, gt=0)
    """Seconds after which a connection is asked to be made anew, so that load spreads over replicas."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 -- pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- no .env file is read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- no secrets folder either
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what was spelled out, then the environment; `load` adds the file below both."""
        return (init_settings, env_settings)

    @field_validator("data_dir", "tls_cert", "tls_key", "tls_client_ca", "etcd_ca", "etcd_cert", "etcd_key")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @field_validator("database_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("must begin with postgresql://")
        return value

    @model_validator(mode="after")
    def _check_transport(self) -> Config:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if not (self.loopback or self.tls or self.insecure):
            raise ValueError(
                f"listening on {self.listen} without TLS would send tokens in the clear; set tls_cert and tls_key, or"
                " spell out --insecure"
            )
        return self

    @property
    def tls(self) -> bool:
        """Tell whether connections are encrypted."""
        return self.tls_cert is not None

    @property
    def loopback(self) -> bool:
        """Tell whether only this machine can connect."""
        return is_loopback(split_address(self.listen)[0])

    @property
    def embedded(self) -> bool:
        """Tell embedded from server mode."""
        return self.database_url is None


def split_address(address: str) -> tuple[str, int]:
    """Cut HOST:PORT in two; `[::1]:7400` for IPv6."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare and bare == host:
        raise ValueError(f"{address!r} is not HOST:PORT; write an IPv6 address in brackets")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(file: Path | None = None, **overrides: Any) -> Config:
    """Read the configuration; `overrides` that are None are left out. ConfigError names what is wrong."""
    spelled_out = {name: value for name, value in overrides.items() if value is not None}
    try:
        from_file = {} if file is None else _read(file)
        unknown = sorted(set(from_file) - set(Config.model_fields))
        if unknown:
            raise ConfigError(f"{file}: unknown setting {unknown[0]!r}")
        below_env = {
            name: value
            for name, value in from_file.items()
            if not os.environ.get((ENV_PREFIX + name).upper())
        }
        return Config(**{**below_env, **spelled_out})
    except ValidationError as error:
        raise ConfigError(_in_words(error)) from error
    except SettingsError as error:
        raise ConfigError(str(error)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _in_words(error: ValidationError) -> str:
    said: list[str] = []
    for problem in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        said.append(f"{where}: {what}" if where else what)
    return "; ".join(said)
