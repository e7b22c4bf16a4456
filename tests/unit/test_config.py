"""Configuration: file, environment, command line, in that order; and what is refused."""

import ast
import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest

from slateboard_server.config import Config, ConfigError, default_data_dir, load, split_address


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Config.model_fields:
        monkeypatch.delenv(f"SLATEBOARD_{name.upper()}", raising=False)


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slateboard.toml"
    file.write_text('log_level = "debug"\nqueue_items = 7\nreplica_id = "file"\n')
    monkeypatch.setenv("SLATEBOARD_QUEUE_ITEMS", "8")
    monkeypatch.setenv("SLATEBOARD_REPLICA_ID", "environment")
    config = load(file, replica_id="line", listen=None)
    assert (config.log_level, config.queue_items, config.replica_id) == ("debug", 8, "line")
    assert config.listen == "127.0.0.1:7400"


def test_a_table_of_certificates_comes_from_the_file_or_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slateboard.toml"
    file.write_text('[certificate_principals]\n"agent.example.org" = "planner"\n')
    assert load(file).certificate_principals == {"agent.example.org": "planner"}
    monkeypatch.setenv("SLATEBOARD_CERTIFICATE_PRINCIPALS", '{"a": "b"}')
    assert load(file).certificate_principals == {"a": "b"}
    monkeypatch.setenv("SLATEBOARD_CERTIFICATE_PRINCIPALS", "not json")
    with pytest.raises(ConfigError, match="certificate_principals"):
        load()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "nonsense"}, "listen: 'nonsense' is not HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, "HOST:PORT"),
        ({"listen": "::1:7400"}, "brackets"),
        ({"listen": "0.0.0.0:7400"}, "--insecure"),
        ({"listen": "example.org:7400"}, "--insecure"),
        ({"tls_cert": Path("cert.pem")}, "belong together"),
        ({"tls_client_ca": Path("ca.pem")}, "needs tls_cert"),
        ({"database_url": "mysql://x"}, "postgresql://"),
        ({"log_level": "loud"}, "log_level"),
        ({"cache_bytes": -1}, "cache_bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(**settings)


def test_a_file_with_an_unknown_setting_or_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slateboard.toml"
    file.write_text("lissten = 'x'")
    with pytest.raises(ConfigError, match="unknown setting 'lissten'"):
        load(file)
    file.write_text("= nonsense")
    with pytest.raises(ConfigError, match="not TOML"):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "missing.toml")


def test_beyond_loopback_it_takes_tls_or_the_word_insecure() -> None:
    assert load(listen="[::1]:0").loopback
    assert load(listen="localhost:0").loopback
    assert not load(listen="0.0.0.0:0", insecure=True).loopback
    secure = load(listen="0.0.0.0:0", tls_cert=Path("cert.pem"), tls_key=Path("key.pem"))
    assert (secure.tls, secure.loopback) == (True, False)


def test_the_data_directory_is_named_or_found_like_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("SLATE_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir() == Path("/home/somebody/.local/share/slateboard")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert load().data_dir == Path("/data/slateboard")
    monkeypatch.setenv("SLATE_DATA", "~/boards")
    assert load().data_dir == Path("/home/somebody/boards")
    assert load(data_dir=Path("~/mine")).data_dir == Path("/home/somebody/mine")


def test_a_configuration_is_not_changed_and_does_not_show_the_database_password() -> None:
    config = load(database_url="postgresql://user:secret@db/slateboard")
    assert not config.embedded
    assert "secret" not in repr(config)
    with pytest.raises(ValueError, match="frozen"):
        config.listen = "127.0.0.1:1"


def test_addresses_are_cut_in_two() -> None:
    assert split_address("[::1]:7400") == ("::1", 7400)
    assert split_address("db.example.org:0") == ("db.example.org", 0)


def test_every_setting_is_documented() -> None:
    """A field without a docstring below it is one nobody can use."""
    tree = ast.parse(Path(inspect.getfile(Config)).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config").body
    undocumented = [
        node.target.id
        for node, following in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]
    assert undocumented == []
