"""A server as a process: how it starts, refuses to, drains, dies and comes back; what it listens with."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from slateboard.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    board_service_pb2,
    board_service_pb2_grpc,
    commit_pb2,
    entry_service_pb2,
    entry_service_pb2_grpc,
    types_pb2,
)
from tests.fix_server import MakeServer, Server, ServerFailed

Metadata = tuple[tuple[str, str], ...]


class Stubs:
    """Raw stubs with the local token, and a board."""

    def __init__(self, channel: grpc.Channel, token: str, board: str) -> None:
        self.metadata: Metadata = (("authorization", f"Bearer {token}"),)
        self.board = board
        self.boards = board_service_pb2_grpc.BoardServiceStub(channel)
        self.entries = entry_service_pb2_grpc.EntryServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)

    def create_board(self) -> board_service_pb2.Board:
        request = board_service_pb2.CreateBoardRequest(name=self.board, request_id=str(uuid.uuid4()))
        return self.boards.CreateBoard(request, metadata=self.metadata, timeout=10).board

    def request(self, key: str, value: bytes = b"v") -> entry_service_pb2.CommitRequest:
        put = commit_pb2.PutOp(
            key=types_pb2.KeyRef(key=key),
            precondition=commit_pb2.Precondition(must_not_exist=True),
            content=types_pb2.Content(value=value),
        )
        return entry_service_pb2.CommitRequest(
            board=self.board, request_id=str(uuid.uuid4()), ops=[commit_pb2.Op(put=put)]
        )

    def commit(self, key: str, value: bytes = b"v") -> entry_service_pb2.CommitResponse:
        return self.entries.Commit(self.request(key, value), metadata=self.metadata, timeout=10)

    def get(self, *keys: str) -> entry_service_pb2.GetResponse:
        request = entry_service_pb2.GetRequest(
            board=self.board, keys=[types_pb2.KeyRef(key=key) for key in keys]
        )
        return self.entries.Get(request, metadata=self.metadata, timeout=10)

    def watch(self) -> Any:
        request = entry_service_pb2.WatchRequest(board=self.board, prefixes=[types_pb2.PrefixRef()])
        return self.entries.Watch(request, metadata=self.metadata, timeout=30)


@contextlib.contextmanager
def stubs(server: Server, board: str = "process") -> Iterator[Stubs]:
    with grpc.insecure_channel(server.address) as channel:
        yield Stubs(channel, server.local_token, board)


def refused(make_server: MakeServer, *arguments: Any, **options: Any) -> ServerFailed:
    with pytest.raises(ServerFailed) as caught:
        make_server(*arguments, **options)
    assert "Traceback" not in caught.value.said
    return caught.value


def last_line(failed: ServerFailed) -> str:
    return failed.said.strip().splitlines()[-1]


def test_a_board_is_made_written_read_and_watched(server: Server) -> None:
    with stubs(server) as team:
        made = team.create_board()
        watch = team.watch()
        assert next(watch).WhichOneof("event") == "progress"
        committed = team.commit("plan/current", b"step 1")
        assert committed.header.incarnation == made.incarnation
        assert [entry.content.value for entry in team.get("plan/current").entries] == [b"step 1"]
        event = next(watch)
        assert event.header.revision == committed.header.revision
        watch.cancel()


def test_the_first_start_leaves_tokens_that_only_the_owner_can_read(server: Server) -> None:
    for name in ("operator", "local"):
        assert (server.data_dir / f"{name}.token").stat().st_mode & 0o777 == 0o600
    with grpc.insecure_channel(server.address) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        for token, name in ((server.operator_token, "operator"), (server.local_token, "local")):
            answer = admin.WhoAmI(
                admin_service_pb2.WhoAmIRequest(),
                metadata=(("authorization", f"Bearer {token}"),),
                timeout=10,
            )
            assert answer.principal.id == name


def test_health_and_reflection_need_no_credential(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "slateboard.v1.EntryService"):
            checked = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub
        reflection = stub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        listed = next(iter(reflection.ServerReflectionInfo(asked, timeout=10)))
        names = {service.name for service in listed.list_services_response.service}
        assert {"slateboard.v1.EntryService", "slateboard.v1.AdminService", "grpc.health.v1.Health"} <= names


def test_what_was_acknowledged_is_there_after_a_kill(make_server: MakeServer) -> None:
    server = make_server()
    token = server.local_token
    with stubs(server) as team:
        team.create_board()
        revision = team.commit("a", b"kept").header.revision
    server.kill()
    server.start()
    assert server.local_token == token
    with stubs(server) as team:
        got = team.get("a")
        assert [entry.content.value for entry in got.entries] == [b"kept"]
        assert got.header.revision == revision


def test_sigterm_answers_what_runs_and_sends_watchers_away(make_server: MakeServer) -> None:
    server = make_server()
    with stubs(server) as team:
        team.create_board()
        ended: list[list[str]] = []

        def follow() -> None:
            seen: list[str] = []
            try:
                for event in team.watch():
                    seen.append(event.WhichOneof("event"))
                    ready.release()
            except grpc.RpcError as error:
                seen.append(error.code().name)
            ended.append(seen)

        ready = threading.Semaphore(0)
        watchers = [threading.Thread(target=follow) for _ in range(50)]
        for watcher in watchers:
            watcher.start()
        for _ in watchers:
            assert ready.acquire(timeout=20)
        commits = [
            team.entries.Commit.future(team.request(f"k/{n}"), metadata=team.metadata, timeout=20)
            for n in range(20)
        ]
        begun = time.monotonic()
        server.send(signal.SIGTERM)
        codes = {commit.code() for commit in commits}
        for watcher in watchers:
            watcher.join(20)
        assert server.wait() == 0
        assert time.monotonic() - begun < 10
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert [seen[-2:] for seen in ended] == [["going_away", "UNAVAILABLE"]] * 50


def test_a_second_signal_does_not_wait(make_server: MakeServer) -> None:
    server = make_server(env={"SLATEBOARD_DRAIN_GRACE": "60"})
    with stubs(server) as team:
        team.create_board()
        watch = team.watch()
        assert next(watch).WhichOneof("event") == "progress"
        for n in range(8):
            # Nobody reads on, so the stream fills up and its end cannot be told.
            team.commit(f"large/{n}", bytes(1 << 20))
        server.send(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(1.5)
        server.send(signal.SIGTERM)
        assert server.wait(5) == 128 + signal.SIGTERM


def test_followers_of_the_health_service_hear_of_the_end_and_do_not_delay_it(make_server: MakeServer) -> None:
    server = make_server(env={"SLATEBOARD_DRAIN_GRACE": "60"})
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        followed = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=30)
        assert next(followed).status == health_pb2.HealthCheckResponse.SERVING
        assert server.stop() == 0
        assert next(followed).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_second_server_on_the_same_data_is_told_who_has_it(make_server: MakeServer) -> None:
    first = make_server()
    failed = refused(make_server, first.data_dir)
    assert failed.code == 1
    assert f"in use by pid {first.pid}" in last_line(failed)


def test_a_port_that_is_taken_is_said_in_one_line(make_server: MakeServer, server: Server) -> None:
    failed = refused(make_server, listen=server.address)
    assert failed.code == 1
    assert last_line(failed).startswith(f"slateboard: cannot listen on {server.address}")


def test_beyond_loopback_without_tls_it_does_not_start(make_server: MakeServer) -> None:
    failed = refused(make_server, listen="0.0.0.0:0")
    assert failed.code == 2
    assert "--insecure" in last_line(failed)


def test_a_corrupt_database_is_left_as_it_is(make_server: MakeServer) -> None:
    server = make_server()
    with stubs(server) as team:
        team.create_board()
    server.stop()
    database = next(server.data_dir.glob("*.db"))
    broken = b"no database at all" * 1_000
    database.write_bytes(broken)
    failed = refused(make_server, server.data_dir)
    assert failed.code == 1
    assert "integrity" in last_line(failed)
    assert database.read_bytes() == broken


def test_a_data_directory_that_cannot_be_made_is_named(make_server: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "slateboard_server", "--data", str(tmp_path / "file"), "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_are_one_json_object_a_line_and_hold_no_secret(make_server: MakeServer) -> None:
    server = make_server(options=["--log-level", "debug", "--replica-id", "one"])
    with stubs(server) as team:
        team.create_board()
        team.commit("a", b"a secret value")
        with pytest.raises(grpc.RpcError):
            team.commit("a", b"a secret value")
    tokens = server.local_token, server.operator_token
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert {"started", "stopping", "stopped"} <= {line["event"] for line in lines}
    assert {line["replica"] for line in lines} == {"one"}
    for secret in (*tokens, "a secret value"):
        assert secret not in server.log()


def test_figures_are_served_where_a_listener_is_asked_for(make_server: MakeServer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = make_server(options=["--metrics-listen", f"127.0.0.1:{port}"])
    with stubs(server) as team:
        team.create_board()
        team.commit("a")
        with pytest.raises(grpc.RpcError):
            team.commit("a")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'slateboard_calls_total{method="Commit",reason="OK"} 1.0' in text
    assert 'slateboard_calls_total{method="Commit",reason="VERSION_CONFLICT"} 1.0' in text
    assert 'slateboard_call_seconds_count{method="Commit"} 2.0' in text


def test_it_starts_on_postgresql(pg_server: Server) -> None:
    with stubs(pg_server) as team:
        team.create_board()
        team.commit("a", b"1")
        assert [entry.content.value for entry in team.get("a").entries] == [b"1"]
    assert pg_server.stop() == 0


def test_two_servers_over_one_database_see_each_others_commits(
    make_server: MakeServer, postgres_dsn: str
) -> None:
    one, two = make_server(database_url=postgres_dsn), make_server(database_url=postgres_dsn)
    with stubs(one) as here, stubs(two) as there:
        here.create_board()
        watch = there.watch()
        assert next(watch).WhichOneof("event") == "progress"
        revision = here.commit("a", b"1").header.revision
        assert [entry.content.value for entry in there.get("a").entries] == [b"1"]
        assert next(watch).header.revision == revision
        watch.cancel()


# Encryption


def certificate(folder: Path, name: str, host: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
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
    command += ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-days", "1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes certificates with openssl, which is not there"
)
def test_a_client_certificate_stands_for_its_principal(make_server: MakeServer, tmp_path: Path) -> None:
    server_pair = certificate(tmp_path, "server", "board.example")
    agent_pair = certificate(tmp_path, "agent", "agent.example")
    config = tmp_path / "slateboard.toml"
    config.write_text('[certificate_principals]\n"agent.example" = "local"\n')
    server = make_server(
        options=[
            "--config", str(config), "--tls-cert", str(server_pair[0]), "--tls-key", str(server_pair[1]),
            "--tls-client-ca", str(agent_pair[0]),
        ]
    )  # fmt: skip
    name = (("grpc.ssl_target_name_override", "board.example"),)
    whoami = admin_service_pb2.WhoAmIRequest()
    agent = grpc.ssl_channel_credentials(
        server_pair[0].read_bytes(), agent_pair[1].read_bytes(), agent_pair[0].read_bytes()
    )
    with grpc.secure_channel(server.address, agent, name) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        answer = stub.WhoAmI(whoami, timeout=10)
        assert (answer.principal.id, answer.token_id) == ("local", "")
        operator: Metadata = (("authorization", f"Bearer {server.operator_token}"),)
        assert stub.WhoAmI(whoami, metadata=operator, timeout=10).principal.id == "operator"
    nobody = grpc.ssl_channel_credentials(server_pair[0].read_bytes())
    with grpc.secure_channel(server.address, nobody, name) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            admin_service_pb2_grpc.AdminServiceStub(channel).WhoAmI(whoami, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
