"""The files in deploy/: read, checked against the code, and started without containers."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import slateboard
from slateboard_server.config import Config, load
from tests.fix_etcd import EtcdUnavailable, find_etcd

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = {f"SLATEBOARD_{name.upper()}" for name in Config.model_fields}


def compose() -> dict[str, Any]:
    read = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(read, dict)
    return read


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def test_the_example_configuration_has_only_settings_that_exist() -> None:
    read = tomllib.loads((DEPLOY / "server.toml").read_text(encoding="utf-8"))
    assert set(read) <= set(Config.model_fields)
    config = load(DEPLOY / "server.toml")
    assert not config.embedded
    assert len(config.etcd_endpoints) == 3
    assert config.tls


def test_compose_names_the_parts_and_only_settings_that_exist() -> None:
    services = compose()["services"]
    assert {"postgres", "etcd-1", "etcd-2", "etcd-3", "qdrant", "migrate"} <= set(services)
    replicas = [name for name in services if name.startswith("replica-")]
    assert len(replicas) == 3
    for name in (*replicas, "migrate"):
        assert set(services[name]["environment"]) <= SETTINGS, name
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose()["volumes"]
        for other in service.get("depends_on", ()):
            assert other in services


def test_the_manifests_are_whole_and_name_only_settings_that_exist() -> None:
    manifests = kubernetes()
    kinds = [manifest["kind"] for manifest in manifests]
    assert {"Namespace", "Secret", "Job", "Deployment", "Service", "PodDisruptionBudget"} <= set(kinds)
    for manifest in manifests:
        assert manifest["apiVersion"]
        assert manifest["metadata"]["name"]
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    assert set(by_kind["Secret"]["stringData"]) <= SETTINGS
    pod = by_kind["Deployment"]["spec"]["template"]
    assert by_kind["Deployment"]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    assert {variable["name"] for variable in container["env"]} <= SETTINGS
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= ports


def test_the_image_copies_what_is_there_and_installs_what_is_declared() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert re.search(r"'\.\[(\w+)\]'", text)[1] in extras  # type: ignore[index]
    assert 'ENTRYPOINT ["slate"]' in text


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    text = (DEPLOY / "slateboard.service").read_text(encoding="utf-8")
    unit = tmp_path / "slateboard.service"
    unit.write_text(text.replace("/opt/slateboard/bin/slate", sys.executable))
    checked = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=30
    )
    said = "\n".join(line for line in checked.stderr.splitlines() if "slateboard.service" in line)
    assert not said, said


# The processes themselves, as the compose file says


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stage:
    """Runs compose's services as processes of this machine: their commands, with names and ports put in place."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.services: dict[str, Any] = compose()["services"]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._database_url = database_url
        self._ports = {
            f"{name}:{port}": free_port() for name in ("etcd-1", "etcd-2", "etcd-3") for port in (2379, 2380)
        }

    def _here(self, text: str, service: str) -> str:
        for name, port in self._ports.items():
            text = text.replace(name, f"127.0.0.1:{port}")
        for port in (2379, 2380):
            own = self._ports.get(f"{service}:{port}")
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{own}")
        text = text.replace("postgresql://slateboard:slateboard@postgres:5432/slateboard", self._database_url)
        text = text.replace("0.0.0.0:7400", "127.0.0.1:0")
        return text.replace("--data-dir=/etcd", f"--data-dir={self.folder / service}")

    def start(self, service: str, program: list[str]) -> "subprocess.Popen[bytes]":
        """Start a service's command."""
        told = self.services[service]
        words = [self._here(word, service) for word in told["command"]]
        settings = {name: self._here(value, service) for name, value in told.get("environment", {}).items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLATE", "ETCD"))}
        with (self.folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                [*program, *words],
                env={**kept, **settings, "SLATE_DATA": str(self.folder / f"{service}-data")},
                stdout=subprocess.PIPE if service.startswith("replica") else log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what was started, replicas first."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def stage(tmp_path: Path, postgres_dsn: str) -> Iterator[Stage]:
    made = Stage(tmp_path, postgres_dsn)
    yield made
    made.close()


def test_what_compose_says_runs(stage: Stage) -> None:
    """Three etcd members, the migration, three replicas: a lock of one binds all, and each can be stopped."""
    try:
        etcd = find_etcd()
    except EtcdUnavailable as error:
        if os.environ.get("SLATEBOARD_REQUIRE_ETCD") == "1":
            raise
        pytest.skip(f"no etcd here: {error}")
    for name in ("etcd-1", "etcd-2", "etcd-3"):
        assert stage.services[name]["command"][0] == "etcd"
        stage.services[name]["command"] = stage.services[name]["command"][1:]
        stage.start(name, [etcd])
    slate = [sys.executable, "-m", "slateboard.cli"]
    assert stage.start("migrate", slate).wait(60) == 0
    addresses = []
    for name in ("replica-1", "replica-2", "replica-3"):
        process = stage.start(name, slate)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("slateboard listening on "), (stage.folder / f"{name}.log").read_text()[-500:]
        addresses.append(line.removeprefix("slateboard listening on ").strip())
    token = (stage.folder / "replica-1-data" / "local.token").read_text().strip()
    with slateboard.connect(addresses, token=token) as client:
        board = client.create_board("orders")
        info = client.server_info()
        assert info.mode == "server"
        with board.lock("plan/", wait=20) as held:
            for address in addresses:
                with slateboard.connect(address, token=token) as other, pytest.raises(slateboard.LockHeld):
                    other.board("orders").put("plan/x", 1, absent=True)
            held.put("plan/x", 1, absent=True)
        until = time.monotonic() + 10
        while not client.server_info().liveness.startswith("etcd 3.") and time.monotonic() < until:
            time.sleep(0.1)
        assert client.server_info().liveness.startswith("etcd 3.")
