"""Signed checkpoints: one spelling, good only as signed by a key that is trusted; and the key in its file."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slateboard_server.domain.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointProblem,
    encode,
    key_id_of,
    parse,
    parse_verifier_keys,
    sign,
    verifier_key,
    verify,
)
from slateboard_server.domain.values import LAST_MOMENT, BoardId, Incarnation, Micros, Revision
from slateboard_server.signing import (
    Ed25519Signer,
    KeyFileError,
    load_key,
    load_or_create_key,
    signature_is_good,
)

SIGNER = Ed25519Signer.generate()
OTHER = Ed25519Signer.generate()
TRUSTED = {SIGNER.key_id: SIGNER.public_key}
CHECKPOINT = Checkpoint(
    board_id=BoardId(7),
    name="demo",
    incarnation=Incarnation("0f3k5w8m2q7v1x9z4b6n0c5d8j"),
    revision=Revision(1200),
    floor=Revision(1000),
    hash=bytes(range(32)),
    audit_count=56,
    audit_digest=bytes(range(32, 64)),
    time=Micros(1_777_636_800_000_001),
    key_id=SIGNER.key_id,
)
COUNTS = st.integers(0, 10**18)
DIGESTS = st.binary(min_size=32, max_size=32)
CHECKPOINTS = st.builds(
    Checkpoint,
    board_id=COUNTS.map(BoardId),
    name=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True),
    incarnation=st.from_regex(r"[0-9a-z]{26}", fullmatch=True).map(Incarnation),
    revision=COUNTS.map(Revision),
    floor=COUNTS.map(Revision),
    hash=DIGESTS,
    audit_count=COUNTS,
    audit_digest=DIGESTS,
    time=st.integers(0, LAST_MOMENT).map(Micros),
    key_id=st.just(SIGNER.key_id),
)


def refusal(text: str, trusted: dict[str, bytes] = TRUSTED) -> CheckpointProblem:
    with pytest.raises(CheckpointError) as caught:
        verify(text, trusted, signature_is_good)
    return caught.value.problem


# The text


def test_a_checkpoint_is_a_text_that_people_read() -> None:
    assert encode(CHECKPOINT) == (
        "slateboard checkpoint 1\n"
        "board 7\n"
        "name demo\n"
        "incarnation 0f3k5w8m2q7v1x9z4b6n0c5d8j\n"
        "revision 1200\n"
        "floor 1000\n"
        "hash 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
        "audit 56 202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f\n"
        "time 2026-05-01T12:00:00.000001Z\n"
        f"key {SIGNER.key_id}\n"
    )


@given(CHECKPOINTS)
def test_what_was_signed_is_read_back_as_it_was(checkpoint: Checkpoint) -> None:
    text = sign(checkpoint, SIGNER)
    assert verify(text, TRUSTED, signature_is_good) == checkpoint
    assert parse(text).body == encode(checkpoint)


@given(st.data())
def test_a_text_with_any_character_changed_is_refused(data: st.DataObject) -> None:
    """Also where the signature line is what was changed."""
    text = sign(CHECKPOINT, SIGNER)
    place = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.characters(codec="utf-8").filter(lambda char: char != text[place]))
    assert refusal(text[:place] + new + text[place + 1 :]) in CheckpointProblem
    assert refusal(text[:place] + text[place + 1 :]) in CheckpointProblem
    assert refusal(text[:place] + new + text[place:]) in CheckpointProblem


@given(st.text(max_size=200) | st.just("\n\n") | st.just(encode(CHECKPOINT) + "\n"))
def test_what_is_no_checkpoint_is_refused_without_a_crash(text: str) -> None:
    assert refusal(text) is CheckpointProblem.MALFORMED


def test_there_is_one_spelling_however_signed() -> None:
    """A signer of another program may write what no server would; two texts for one checkpoint are one too many."""
    body = encode(CHECKPOINT)
    for other in (
        body.replace("revision 1200", "revision 01200"),
        body.replace("revision 1200", "revision 1200 "),
        body.replace("revision 1200", "revision -1"),
        body.replace("2026-05-01T12", "2026-05-32T12"),
        body.replace("000102", "00010A"),
        body.replace("\n", "\r\n"),
        body + "more 1\n",
    ):
        signature = SIGNER.sign(other.encode())
        line = sign(CHECKPOINT, SIGNER).rpartition("\n\n")[2]
        head, _, blob = line[:-1].rpartition(" ")
        forged = b64encode(b64decode(blob)[:4] + signature).decode()
        assert refusal(f"{other}\n{head} {forged}\n") is CheckpointProblem.MALFORMED
    assert refusal(sign(CHECKPOINT, SIGNER) * 100) is CheckpointProblem.MALFORMED


@pytest.mark.parametrize(
    "change",
    [
        {"name": "two\nlines"},
        {"name": ""},
        {"incarnation": "with space"},
        {"revision": -1},
        {"hash": bytes(31)},
        {"time": -1},
        {"time": LAST_MOMENT + 1},
        {"key_id": "0"},
    ],
)
def test_a_field_that_cannot_be_written_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        encode(replace(CHECKPOINT, **change))  # type: ignore[arg-type]


# The signatures


def test_a_signature_of_a_key_that_is_not_trusted_is_none() -> None:
    text = sign(CHECKPOINT, SIGNER)
    assert refusal(text, {}) is CheckpointProblem.UNKNOWN_KEY
    assert refusal(text, {OTHER.key_id: OTHER.public_key}) is CheckpointProblem.UNKNOWN_KEY


def test_the_same_checkpoint_signed_with_another_key_is_refused() -> None:
    """Whoever took the place of the server can sign, but not with the key that is trusted."""
    forged = sign(replace(CHECKPOINT, key_id=OTHER.key_id), OTHER)
    assert refusal(forged) is CheckpointProblem.UNKNOWN_KEY
    posing = forged.replace(OTHER.key_id, SIGNER.key_id)
    assert refusal(posing) is CheckpointProblem.UNKNOWN_KEY  # the 4 bytes are the other key's
    line = sign(CHECKPOINT, SIGNER).rpartition("\n\n")[2]
    head, _, blob = line[:-1].rpartition(" ")
    body = encode(replace(CHECKPOINT, revision=Revision(1)))
    for signature in (OTHER.sign(body.encode()), bytes(64), b"", SIGNER.sign(encode(CHECKPOINT).encode())):
        forged = f"{body}\n{head} {b64encode(b64decode(blob)[:4] + signature).decode()}\n"
        assert refusal(forged) is CheckpointProblem.BAD_SIGNATURE


def test_after_a_rotation_old_checkpoints_are_good_as_long_as_the_old_key_is_trusted() -> None:
    old, new = sign(CHECKPOINT, SIGNER), sign(replace(CHECKPOINT, key_id=OTHER.key_id), OTHER)
    both = {**TRUSTED, OTHER.key_id: OTHER.public_key}
    assert verify(old, both, signature_is_good) == CHECKPOINT
    assert verify(new, both, signature_is_good).key_id == OTHER.key_id
    assert refusal(new) is CheckpointProblem.UNKNOWN_KEY


def test_a_checkpoint_signed_by_two_keys_is_good_for_who_trusts_either() -> None:
    text = sign(CHECKPOINT, SIGNER, OTHER)
    assert verify(text, TRUSTED, signature_is_good) == CHECKPOINT
    assert verify(text, {OTHER.key_id: OTHER.public_key}, signature_is_good) == CHECKPOINT
    head, _, blob = text[:-1].rpartition(" ")
    spoilt = f"{head} {b64encode(b64decode(blob)[:4] + bytes(64)).decode()}\n"
    assert verify(spoilt, TRUSTED, signature_is_good) == CHECKPOINT
    both = {**TRUSTED, OTHER.key_id: OTHER.public_key}
    assert refusal(spoilt, both) is CheckpointProblem.BAD_SIGNATURE


def test_a_checkpoint_is_signed_by_the_key_it_names() -> None:
    with pytest.raises(ValueError, match="another key"):
        sign(CHECKPOINT, OTHER)


def test_the_form_is_that_of_signed_notes() -> None:
    """C2SP signed-note: what tools for those expect of a key and of a signature line."""
    vkey = verifier_key(SIGNER.public_key)
    name, key_hash, key = vkey.split("+", 2)
    assert name == f"slateboard/{key_id_of(SIGNER.public_key)}"
    assert b64decode(key) == b"\x01" + SIGNER.public_key
    line = sign(CHECKPOINT, SIGNER).rpartition("\n\n")[2]
    dash, line_name, blob = line.rstrip("\n").split(" ")
    assert (dash, line_name, b64decode(blob)[:4].hex()) == ("\N{EM DASH}", name, key_hash)
    assert signature_is_good(SIGNER.public_key, encode(CHECKPOINT).encode(), b64decode(blob)[4:])


def test_trusted_keys_are_read_one_a_line() -> None:
    one, other = verifier_key(SIGNER.public_key), verifier_key(OTHER.public_key)
    text = f"# of this year\n{one}\n\n  {other}\n"
    assert parse_verifier_keys(text) == {**TRUSTED, OTHER.key_id: OTHER.public_key}
    assert parse_verifier_keys("") == {}
    name, key_hash, key = one.split("+", 2)
    other_algorithm = b64encode(b"\x02" + SIGNER.public_key).decode()
    for bad in (
        "nonsense",
        f"{name}+{key_hash}+{other_algorithm}",
        f"{name}+00000000+{key}",
        f"{name}+{key_hash}+{key}=",
        f"{name}+{key_hash}+{key[:-4]}",
        one.replace(SIGNER.key_id, OTHER.key_id),
    ):
        with pytest.raises(ValueError, match="line 2 is not a verifier key"):
            parse_verifier_keys(f"{other}\n{bad}")
    with pytest.raises(ValueError, match="32 bytes"):
        verifier_key(b"short")


def test_a_key_that_is_none_makes_no_signature_good() -> None:
    assert not signature_is_good(b"short", b"message", bytes(64))
    assert not signature_is_good(bytes(32), b"message", b"short")


# The key in its file


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "signing.key"


def test_the_first_start_makes_a_key_that_only_its_owner_reads_and_later_ones_use_it(key_file: Path) -> None:
    first = load_or_create_key(key_file)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert load_or_create_key(key_file).public_key == first.public_key
    assert load_key(key_file).key_id == first.key_id
    assert [each.name for each in key_file.parent.iterdir()] == [key_file.name]


def test_a_umask_makes_the_file_neither_wider_nor_unreadable(key_file: Path) -> None:
    before = os.umask(0o777)
    try:
        load_or_create_key(key_file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_of_starts_at_the_same_time_one_makes_the_key_and_all_use_it(key_file: Path) -> None:
    ready, keys = threading.Barrier(8), set[str]()

    def start() -> None:
        ready.wait()
        keys.add(load_or_create_key(key_file).key_id)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 1
    assert [each.name for each in key_file.parent.iterdir()] == [key_file.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o660, 0o601])
def test_a_file_that_others_can_open_is_refused(key_file: Path, mode: int) -> None:
    load_or_create_key(key_file)
    key_file.chmod(mode)
    for load in (load_key, load_or_create_key):
        with pytest.raises(KeyFileError, match=f"mode 0{mode:o}.*chmod 600"):
            load(key_file)


def test_a_mounted_secret_is_a_link_and_is_judged_by_what_it_leads_to(key_file: Path) -> None:
    signer = load_or_create_key(key_file)
    key_file.chmod(0o400)
    link = key_file.with_name("link")
    link.symlink_to(key_file)
    assert load_or_create_key(link).key_id == signer.key_id


def test_a_file_of_somebody_else_is_refused(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_or_create_key(key_file)
    owner = key_file.stat().st_uid
    if owner == 0:
        os.chown(key_file, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(KeyFileError, match="belongs to user"):
        load_key(key_file)


def test_what_is_no_key_is_refused_and_never_replaced(key_file: Path) -> None:
    key = SIGNER.to_pem()
    for content, why in (
        (b"", "no usable key"),
        (b"secret words", "no usable key"),
        (key[: len(key) // 2], "no usable key"),
        (b"x" * 20_000, "too long"),
    ):
        key_file.write_bytes(content)
        key_file.chmod(0o600)
        with pytest.raises(KeyFileError, match=why) as caught:
            load_or_create_key(key_file)
        assert "secret words" not in str(caught.value)
        assert key_file.read_bytes() == content


def test_a_key_of_another_kind_or_encrypted_is_refused(key_file: Path) -> None:
    for command in (
        ["openssl", "genpkey", "-algorithm", "X25519"],
        ["openssl", "genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:x"],
    ):
        try:
            made = subprocess.run(command, capture_output=True, check=True)
        except FileNotFoundError:
            pytest.skip("openssl is not installed")
        key_file.write_bytes(made.stdout)
        key_file.chmod(0o600)
        with pytest.raises(KeyFileError, match="no usable key"):
            load_key(key_file)


def test_a_key_that_openssl_made_is_used(key_file: Path) -> None:
    try:
        made = subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    key_file.write_bytes(made.stdout)
    key_file.chmod(0o600)
    signer = load_or_create_key(key_file)
    assert signature_is_good(signer.public_key, b"m", signer.sign(b"m"))


def test_what_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        with pytest.raises(KeyFileError, match="not a plain file"):
            load_key(path)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match="there is no key file"):
        load_or_create_key(dangling)
    with pytest.raises(KeyFileError, match="cannot be made"):
        load_or_create_key(tmp_path / "missing" / "key")


def test_a_signer_never_shows_its_key() -> None:
    assert repr(SIGNER) == f"Ed25519Signer({SIGNER.key_id})"
