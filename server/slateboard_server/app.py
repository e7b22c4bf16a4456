"""A running server: everything put together, started, announced, drained and closed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from slateboard_server.config import Config, ConfigError, load, split_address
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.values import Micros
from slateboard_server.grpc_api.server import Api, Facts, add_services
from slateboard_server.liveness import EtcdLiveness, LocalLiveness, NoLiveness
from slateboard_server.observability import logs
from slateboard_server.observability.metrics import MetricsListener
from slateboard_server.observability.stats import CallStats
from slateboard_server.ports import Clock, Liveness, Store
from slateboard_server.services.auth import Authenticator
from slateboard_server.services.boards import Boards
from slateboard_server.services.bootstrap import Bootstrap
from slateboard_server.services.commits import Commits
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.janitor import Janitor
from slateboard_server.services.lock_keeper import LockKeeper
from slateboard_server.services.lock_views import LockViews
from slateboard_server.services.locks import Locks
from slateboard_server.services.principals import Principals
from slateboard_server.services.provenance import Provenance
from slateboard_server.services.reads import Reads
from slateboard_server.services.sessions import Sessions
from slateboard_server.services.settings import DataPathSettings
from slateboard_server.services.watches import Watches
from slateboard_server.storage import open_store

log = structlog.get_logger(__name__)

_MAX_MESSAGE: Final = 4 << 20
"""Bytes; a bit above the API's own limit of 3.5 MiB, so that the API refuses in its own words."""
_CONNECTION_GRACE_S: Final = 60
"""Seconds that running calls get once a connection has reached its age."""
_CLOSE_TIMEOUT: Final = 5.0
_FOR_CLOSING: Final = 1.0
"""Seconds of the grace kept for closing the database after the last call."""

_QUIET_S: Final = 0.1
_LINGER_S: Final = 2.0
_VERSION: Final = version("slateboard")

_running = False


class StartError(Exception):
    """The server cannot start; the message is for the person who started it."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Micros:
        """Return the wall clock."""
        return Micros(time.time_ns() // 1_000)

    def monotonic(self) -> float:
        """Return seconds that only rise."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Core:
    """The services over an open store."""

    store: Store
    directory: BoardDirectory
    keeper: LockKeeper
    commits: Commits
    api: Api


async def serve(config: Config) -> None:
    """Run a server until SIGTERM or SIGINT; then drain it, within `config.drain_grace` seconds.

    StartError, in one sentence, where it cannot start.
    """
    global _running  # noqa: PLW0603 -- signals, logging and the event loop are the process's, too
    if _running:
        raise StartError(
            "a server is already running in this process; start the second one in a process of its own"
        )
    _running = True
    try:
        async with contextlib.AsyncExitStack() as stack:
            await _serve(config, stack)
    finally:
        _running = False


async def _serve(config: Config, stack: contextlib.AsyncExitStack) -> None:
    stop = _stop_on_signals()
    clock = SystemClock()
    replica_id = config.replica_id or secrets.token_hex(4)
    logs.configure(config.log_format, config.log_level, replica_id)
    stats = CallStats()
    try:
        core = await stack.enter_async_context(_open_core(config, clock, replica_id, stats))
        files = await Bootstrap(core.store, clock, config.data_dir).run(loopback=config.loopback)
    except SlateboardError as error:
        raise StartError(error.message) from error
    except OSError as error:
        raise StartError(f"{error.filename or config.data_dir}: {error.strerror}") from error
    if config.metrics_listen is not None:
        stack.callback(_listen_for_metrics(config.metrics_listen, stats, core.directory).close)

    server = grpc.aio.server(options=server_options(config))
    names = add_services(server, core.api)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", *names):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = _bind(server, config)
    await server.start()

    if config.sweeper:
        janitor = Janitor(
            core.directory,
            core.store,
            core.commits,
            clock,
            interval=config.sweep_interval,
            compact_interval=config.compact_interval,
        )
        await janitor.start()
        stack.push_async_callback(janitor.close)
    for warning in core.store.warnings():
        log.warning("installation", advice=warning)
    log.info("started", address=address, storage=core.store.describe(), version=_VERSION, tls=config.tls)
    _settle_heap()
    _announce(address, files)

    try:
        await stop.wait()
    finally:
        await _drain(server, checks, core, config.drain_grace)


@contextlib.asynccontextmanager
async def _open_core(config: Config, clock: Clock, replica_id: str, stats: CallStats) -> AsyncIterator[_Core]:
    store = open_store(
        config.database_url,
        config.data_dir,
        clock,
        owner=f"(slateboard, {config.listen})",
        migrates=config.auto_migrate,
    )
    try:
        await store.start()
        async with contextlib.AsyncExitStack() as stack:
            liveness = make_liveness(config, clock)
            stack.push_async_callback(liveness.close)
            await liveness.start()
            directory = BoardDirectory(store, clock, data_path_settings(config))
            stack.push_async_callback(directory.close)
            await directory.start()
            keeper = LockKeeper(directory, store, liveness, clock, sweep_interval=config.lock_sweep_interval)
            stack.push_async_callback(keeper.close)
            await keeper.start()
            yield _assemble(config, clock, store, directory, keeper, replica_id, stats)
    finally:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await store.close()
        except (SlateboardError, TimeoutError) as error:
            # What was acknowledged is on disk all the same: closing only tidies up.
            log.warning("the store did not close in order", error=str(error))


def make_liveness(config: Config, clock: Clock) -> Liveness:
    """Return what keeps locks alive: etcd where it is configured, this process in embedded mode."""
    if config.etcd_endpoints:
        return EtcdLiveness(
            config.etcd_endpoints,
            prefix=config.etcd_prefix,
            ca=config.etcd_ca,
            cert=config.etcd_cert,
            key=config.etcd_key,
            username=config.etcd_username,
            password=config.etcd_password,
        )
    if config.embedded:
        return LocalLiveness(clock)
    return NoLiveness()


def _assemble(
    config: Config,
    clock: Clock,
    store: Store,
    directory: BoardDirectory,
    keeper: LockKeeper,
    replica_id: str,
    stats: CallStats,
) -> _Core:
    auth = Authenticator(store, clock, config.certificate_principals, config.auth_max_age)
    commits = Commits(directory, store, clock, keeper)
    facts = Facts(
        version=_VERSION,
        mode="embedded" if config.embedded else "server",
        storage=store.describe(),
        started=clock.now(),
        cache_bytes=config.cache_bytes,
        progress_interval=config.progress_interval,
        liveness=keeper.liveness.describe,
    )
    api = Api(
        auth=auth,
        directory=directory,
        boards=Boards(directory, store, clock),
        commits=commits,
        reads=Reads(directory, store, clock),
        watches=Watches(directory, store, clock),
        sessions=Sessions(directory, store, clock, keeper),
        locks=Locks(directory, store, keeper, clock),
        lock_views=LockViews(directory, store, keeper, clock),
        provenance=Provenance(directory, store, clock),
        principals=Principals(store, clock, auth),
        clock=clock,
        facts=facts,
        replica_id=replica_id,
        stats=stats,
        certificates=bool(config.certificate_principals),
        write_timeout=config.watch_write_timeout,
    )
    return _Core(store, directory, keeper, commits, api)


def data_path_settings(config: Config) -> DataPathSettings:
    """Return the bounds of the data path as configured."""
    return DataPathSettings(
        exclusive=config.embedded,
        cache_bytes=config.cache_bytes,
        ring_bytes=config.ring_bytes,
        queue_items=config.queue_items,
        queue_bytes=config.queue_bytes,
        commit_timeout=config.commit_timeout,
        poll_interval=config.poll_interval,
        recheck_interval=config.recheck_interval,
    )


def server_options(config: Config) -> list[tuple[str, Any]]:
    """Return gRPC's options: bounds of messages, and how connections are kept alive and given up."""
    return [
        # A second server on a port must fail, not take every other connection.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", _MAX_MESSAGE),
        ("grpc.max_send_message_length", _MAX_MESSAGE),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # A watcher whose machine is gone says nothing; pings find out.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_connection_age_ms", round(config.max_connection_age * 1_000)),
        ("grpc.max_connection_age_grace_ms", _CONNECTION_GRACE_S * 1_000),
    ]


def _bind(server: grpc.aio.Server, config: Config) -> str:
    """Take the port; returns the address clients can use."""
    host, port = split_address(config.listen)
    try:
        if config.tls_cert is not None and config.tls_key is not None:
            bound = server.add_secure_port(
                config.listen, _credentials(config, config.tls_cert, config.tls_key)
            )
        else:
            bound = server.add_insecure_port(config.listen)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise StartError(
            f"cannot listen on {config.listen}: the port {port} is taken, or the address is not this machine's; choose"
            " another with --listen"
        )
    return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"


def _credentials(config: Config, cert: Path, key: Path) -> grpc.ServerCredentials:
    try:
        pair = (key.read_bytes(), cert.read_bytes())
        authorities = None if config.tls_client_ca is None else config.tls_client_ca.read_bytes()
    except OSError as error:
        raise StartError(f"{error.filename} cannot be read: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


def _listen_for_metrics(address: str, stats: CallStats, directory: BoardDirectory) -> MetricsListener:
    listener = MetricsListener(stats, lambda: directory.cache.used_bytes)
    try:
        listener.listen(*split_address(address))
    except OSError as error:
        raise StartError(f"cannot listen for metrics on {address}: {error.strerror}") from error
    return listener


def _settle_heap() -> None:
    """Take what a server keeps for good out of the garbage collector's rounds, and make those rarer.

    Calls make many short-lived objects and hardly any cycles: a collection every 700 of them took a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _announce(address: str, files: Sequence[Path]) -> None:
    """Tell whoever started the server, or waits for it, where it is; on standard output, apart from the logs."""
    lines = [f"slateboard listening on {address}"]
    lines += [f"token: {path}" for path in files]
    # Nobody may be listening any more; the server runs all the same.
    with contextlib.suppress(OSError):
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the second one ends the process at once."""
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        log.info("stopping", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _drain(
    server: grpc.aio.Server, checks: health.aio.HealthServicer, core: _Core, grace: float
) -> None:
    """Let nobody in, send watchers away, answer what runs; what is still there after `grace` seconds is cut off."""
    deadline = time.monotonic() + max(grace - _FOR_CLOSING, 0)
    await checks.enter_graceful_shutdown()
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
            core.directory.draining = True
            core.keeper.drain()
            await core.directory.drain()
            await _until_quiet(core.api.stats)
    except TimeoutError:
        log.warning("calls were still running when the grace was over")
    left = max(deadline - time.monotonic(), 0)
    # Where none of our calls is left, those that are have no end of their own: followers of the health service.
    await server.stop(left if core.api.stats.open_calls else min(left, _QUIET_S))
    log.info("stopped")


async def _until_quiet(stats: CallStats) -> None:
    """Wait until no call has come in for a moment, two seconds at most.

    A stopping gRPC server cancels calls that have arrived but were not begun; answered by us they hear that the server
    drains, and that a retry elsewhere is safe.
    """
    before = -1
    for _ in range(round(_LINGER_S / _QUIET_S)):
        finished = sum(method.ok + method.failures.total() for method in stats.methods.values())
        if finished == before and stats.open_calls == 0:
            return
        before = finished
        await asyncio.sleep(_QUIET_S)


def run(config: Config) -> int:
    """Run a server in this process; returns its exit code. What keeps it from starting is said in one line."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config))
    except StartError as error:
        sys.stderr.write(f"slateboard: {error}\n")
        return 1
    return 0


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415 -- not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server as the command line says."""
    options = _parser().parse_args(argv)
    try:
        config = load(
            options.config,
            data_dir=options.data,
            listen=options.listen,
            insecure=options.insecure or None,
            database_url=options.database_url,
            replica_id=options.replica_id,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            tls_client_ca=options.tls_client_ca,
            log_format=options.log_format,
            log_level=options.log_level,
            metrics_listen=options.metrics_listen,
            sweeper=False if options.no_sweeper else None,
            auto_migrate=options.auto_migrate or None,
        )
    except ConfigError as error:
        sys.stderr.write(f"slateboard: {error}\n")
        return 2
    return run(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slateboard_server", description="Serve boards. Every setting also has a SLATEBOARD_ variable."
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="where the database and the first tokens are"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:7400; port 0: any free one")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--auto-migrate", action="store_true", help="bring PostgreSQL's schema up to date first"
    )
    parser.add_argument("--insecure", action="store_true", help="listen beyond loopback without TLS")
    parser.add_argument(
        "--database-url", metavar="URL", help="postgresql://...: many servers over one database"
    )
    parser.add_argument("--replica-id", metavar="NAME", help="what this server calls itself")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE")
    parser.add_argument("--tls-key", type=Path, metavar="FILE")
    parser.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="require client certificates")
    parser.add_argument("--log-format", choices=("console", "json"))
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve Prometheus metrics")
    parser.add_argument(
        "--no-sweeper", action="store_true", help="leave expiry and retention to other servers"
    )
    parser.add_argument("--version", action="version", version=f"slateboard {_VERSION}")
    return parser
