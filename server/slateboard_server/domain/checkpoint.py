"""Signed checkpoints: what a board's chain was at a revision, as a text that people read and keep elsewhere.

```
slateboard checkpoint 1
board 7
name demo
incarnation 0f3k5w8m2q7v1x9z4b6n0c5d8j
revision 1200
floor 1000
hash 5d1f...
audit 56 9a0c...
time 2026-05-01T12:00:00.000000Z
key 6fb1c0e2a94d7358

— slateboard/6fb1c0e2a94d7358 Az3u0r...
```

It is a signed note as transparency logs use them (C2SP signed-note, Ed25519): any tool that reads those can check one.
A text has exactly one spelling here; whatever is spelled otherwise is refused, signed or not.

Pure: who can sign or check a signature is handed in.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from slateboard_server.domain.values import LAST_MOMENT, BoardId, Incarnation, Micros, Revision

KEY_NAME: Final = "slateboard"
MAX_NOTE_CHARACTERS: Final = 16_384
"""More than any checkpoint with its signatures has: a file that is none is not read to its end."""
_TITLE: Final = "slateboard checkpoint 1"
_DASH: Final = "\N{EM DASH}"
_ED25519: Final = b"\x01"
_PUBLIC_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BODY: Final = re.compile(
    rf"{_TITLE}\n"
    r"board (?P<board_id>0|[1-9][0-9]{0,18})\n"
    r"name (?P<name>[a-z0-9][a-z0-9._-]{0,63})\n"
    r"incarnation (?P<incarnation>[0-9A-Za-z-]{1,64})\n"
    r"revision (?P<revision>0|[1-9][0-9]{0,18})\n"
    r"floor (?P<floor>0|[1-9][0-9]{0,18})\n"
    r"hash (?P<hash>[0-9a-f]{64})\n"
    r"audit (?P<audit_count>0|[1-9][0-9]{0,18}) (?P<audit_digest>[0-9a-f]{64})\n"
    r"time (?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z)\n"
    r"key (?P<key_id>[0-9a-f]{16})\n"
)
_SIGNATURE: Final = re.compile(rf"{_DASH} (?P<name>[^\s+]+) (?P<blob>[A-Za-z0-9+/]+=*)")
_OUR_KEY: Final = re.compile(rf"{KEY_NAME}/(?P<key_id>[0-9a-f]{{16}})")
_VERIFIER_KEY: Final = re.compile(
    rf"{KEY_NAME}/(?P<key_id>[0-9a-f]{{16}})\+[0-9a-f]{{8}}\+(?P<blob>[A-Za-z0-9+/]+=*)"
)

SignatureCheck: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""(public key, message, signature) -> whether the Ed25519 signature is that key's over the message. Never raises."""


class CheckpointProblem(StrEnum):
    """Why a text is not taken for a checkpoint."""

    MALFORMED = "MALFORMED"
    UNKNOWN_KEY = "UNKNOWN_KEY"
    BAD_SIGNATURE = "BAD_SIGNATURE"


class CheckpointError(Exception):
    """A text is no checkpoint that can be trusted; the message says why and what to do."""

    def __init__(self, problem: CheckpointProblem, message: str) -> None:
        """Keep the kind of problem beside the sentence for people."""
        super().__init__(message)
        self.problem = problem


class CheckpointSigner(Protocol):
    """Holds a private key. Safe to call from any thread; answers at once."""

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Sign with Ed25519; 64 bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a board's chain and the server's audit were when it was signed."""

    board_id: BoardId
    name: str
    incarnation: Incarnation
    revision: Revision
    floor: Revision
    """The board's floor: versions above it had their content then."""
    hash: bytes
    """The chain at `revision`: the commit's hash, or the genesis where none has been made yet."""
    audit_count: int
    """How many audit records the digest is over."""
    audit_digest: bytes
    time: Micros
    key_id: str
    """Of the key that signs it; others may sign as well."""


def key_id_of(public_key: bytes) -> str:
    """Return the id of a key: the first 8 bytes of SHA-256 over the 32 bytes of the public key, in hex."""
    return sha256(public_key).hexdigest()[:16]


def encode(checkpoint: Checkpoint) -> str:
    """Write what is signed. ValueError for a field that cannot be written, e.g. a name with a line break."""
    if not 0 <= checkpoint.time <= LAST_MOMENT:
        raise ValueError("the checkpoint's time cannot be written")
    moment = (_EPOCH + timedelta(microseconds=checkpoint.time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = (
        f"{_TITLE}\nboard {checkpoint.board_id}\nname {checkpoint.name}\nincarnation {checkpoint.incarnation}\n"
        f"revision {checkpoint.revision}\nfloor {checkpoint.floor}\nhash {checkpoint.hash.hex()}\n"
        f"audit {checkpoint.audit_count} {checkpoint.audit_digest.hex()}\ntime {moment}\nkey {checkpoint.key_id}\n"
    )
    if _BODY.fullmatch(body) is None:
        raise ValueError("a field of the checkpoint has a value that cannot be written")
    return body


def _key_hash(name: str, public_key: bytes) -> bytes:
    """Return what tells keys of one name apart in a signed note."""
    return sha256(name.encode() + b"\n" + _ED25519 + public_key).digest()[:4]


def _signature_line(body: str, signer: CheckpointSigner) -> str:
    public_key = signer.public_key
    name = f"{KEY_NAME}/{key_id_of(public_key)}"
    blob = _key_hash(name, public_key) + signer.sign(body.encode())
    return f"{_DASH} {name} {b64encode(blob).decode()}\n"


def sign(checkpoint: Checkpoint, signer: CheckpointSigner, *others: CheckpointSigner) -> str:
    """Write and sign a checkpoint. With `others`, those sign too: whoever trusts any of the keys can check it.

    ValueError where `key_id` is not the first signer's.
    """
    if checkpoint.key_id != key_id_of(signer.public_key):
        raise ValueError("the checkpoint names another key than the one that signs it")
    body = encode(checkpoint)
    return f"{body}\n{''.join([_signature_line(body, each) for each in (signer, *others)])}"


def _malformed(why: str) -> CheckpointError:
    return CheckpointError(
        CheckpointProblem.MALFORMED, f"not a checkpoint: {why}; give the file as `slate` wrote it"
    )


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature line of a note."""

    name: str
    key_hash: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint as it was read. **Nothing of it is to be believed** before `verify` has accepted the text."""

    checkpoint: Checkpoint
    body: str
    """What the signatures are over."""
    signatures: tuple[Signature, ...]


def parse(text: str) -> SignedCheckpoint:
    """Read a checkpoint without checking its signatures. CheckpointError MALFORMED."""
    if len(text) > MAX_NOTE_CHARACTERS:
        raise _malformed("it is far too long")
    body, separator, tail = text.rpartition("\n\n")
    body += "\n"
    if not separator or not tail.endswith("\n"):
        raise _malformed("it has no signature")
    found = _BODY.fullmatch(body)
    if found is None:
        raise _malformed("its lines are not those of a checkpoint of version 1")
    signatures: list[Signature] = []
    for line in tail[:-1].split("\n"):
        signed = _SIGNATURE.fullmatch(line)
        blob = None if signed is None else _decoded(signed["blob"])
        if signed is None or blob is None:
            raise _malformed("a line after the empty one is no signature")
        signatures.append(Signature(signed["name"], blob[:4], blob[4:]))
    try:
        moment = datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        raise _malformed("its time is no moment") from None
    checkpoint = Checkpoint(
        board_id=BoardId(int(found["board_id"])),
        name=found["name"],
        incarnation=Incarnation(found["incarnation"]),
        revision=Revision(int(found["revision"])),
        floor=Revision(int(found["floor"])),
        hash=bytes.fromhex(found["hash"]),
        audit_count=int(found["audit_count"]),
        audit_digest=bytes.fromhex(found["audit_digest"]),
        time=Micros((moment - _EPOCH) // timedelta(microseconds=1)),
        key_id=found["key_id"],
    )
    return SignedCheckpoint(checkpoint, body, tuple(signatures))


def _decoded(text: str) -> bytes | None:
    """Decode base64; None for what no encoder writes."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data).decode() == text else None


def verify(text: str, trusted: Mapping[str, bytes], check: SignatureCheck) -> Checkpoint:
    """Read a checkpoint and believe it: at least one trusted key signed it, and no signature of a trusted key is wrong.

    `trusted` maps key ids to public keys: the present one and those of before. Signatures of other keys are passed over.
    CheckpointError MALFORMED, UNKNOWN_KEY where no trusted key signed, BAD_SIGNATURE.
    """
    signed = parse(text)
    message = signed.body.encode()
    good = 0
    for signature in signed.signatures:
        ours = _OUR_KEY.fullmatch(signature.name)
        public_key = None if ours is None else trusted.get(ours["key_id"])
        if public_key is None or signature.key_hash != _key_hash(signature.name, public_key):
            continue
        if len(signature.signature) != _SIGNATURE_BYTES or not check(
            public_key, message, signature.signature
        ):
            raise CheckpointError(
                CheckpointProblem.BAD_SIGNATURE,
                f"the signature of {signature.name} is wrong: the checkpoint was changed after it was signed",
            )
        good += 1
    if not good:
        raise CheckpointError(
            CheckpointProblem.UNKNOWN_KEY,
            f"signed by {', '.join(sorted({each.name for each in signed.signatures}))}, of which none is trusted; if one"
            " should be, add its verifier key to the trusted ones",
        )
    return signed.checkpoint


def verifier_key(public_key: bytes) -> str:
    """Write a public key for others to trust: `slateboard/<key id>+<hash>+<base64>`, as for signed notes."""
    if len(public_key) != _PUBLIC_KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {_PUBLIC_KEY_BYTES} bytes")
    name = f"{KEY_NAME}/{key_id_of(public_key)}"
    return f"{name}+{_key_hash(name, public_key).hex()}+{b64encode(_ED25519 + public_key).decode()}"


def parse_verifier_keys(text: str) -> dict[str, bytes]:
    """Read trusted keys, one a line, as `verifier_key` writes them; empty lines and lines with `#` say nothing.

    ValueError names the first line that is none.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _VERIFIER_KEY.fullmatch(stripped)
        blob = None if found is None else _decoded(found["blob"])
        if found is None or blob is None or len(blob) != 1 + _PUBLIC_KEY_BYTES:
            raise ValueError(f"line {number} is not a verifier key")
        public_key = blob[1:]
        if verifier_key(public_key) != stripped:  # another algorithm, or an id or hash that is not this key's
            raise ValueError(f"line {number} is not a verifier key of an Ed25519 key")
        keys[found["key_id"]] = public_key
    return keys
