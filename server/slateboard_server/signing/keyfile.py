"""The private key in a file: made on the first start, whole or not at all, readable by its owner alone."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from slateboard_server.signing.ed25519 import Ed25519Signer

_MAX_BYTES: Final = 16_384
_ONLY_OWNER: Final = 0o600


class KeyFileError(Exception):
    """The key file cannot be used; the message names it, and says what to do. Never quotes what is in it."""


def load_key(path: Path) -> Ed25519Signer:
    """Read the private key.

    Refused (KeyFileError): a file that is not there, is no plain file, can be read or written by others than its owner,
    belongs to somebody else than this process's user or root, or holds no unencrypted Ed25519 key in PEM. A symbolic
    link is followed, as mounted secrets are links: what it leads to is judged.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise KeyFileError(f"there is no key file {path}") from None
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be opened: {error.strerror}") from None
    try:
        # The open file is judged, not the name: the name may mean another one a moment later.
        _check(os.fstat(descriptor), path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            pem = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(pem) > _MAX_BYTES:
        raise KeyFileError(f"the key file {path} is far too long for a key")
    try:
        return Ed25519Signer.from_pem(pem)
    except ValueError as error:
        raise KeyFileError(f"the key file {path} holds no usable key: {error}") from None


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"the key file {path} is not a plain file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyFileError(
            f"the key file {path} has mode {mode:04o}: others than its owner may have read it; run `chmod 600` on it,"
            " and have a new key made if they may have"
        )
    if status.st_uid not in {0, os.geteuid()}:
        raise KeyFileError(
            f"the key file {path} belongs to user {status.st_uid}, who can read it; it has to be this server's"
        )


def load_or_create_key(path: Path) -> Ed25519Signer:
    """Read the private key, or make one where there is no file; durable before it is first used.

    Of several processes that start at once, one makes the key and all use it. A key that exists is never replaced.
    Raises KeyFileError like `load_key`, and where the file cannot be made.
    """
    # Not exists(): a dangling link, or a file that cannot be looked at, must not be taken for a first start.
    if os.path.lexists(path):
        return load_key(path)
    try:
        _create(path, Ed25519Signer.generate().to_pem())
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be made: {error.strerror}") from None
    return load_key(path)


def _create(path: Path, pem: bytes) -> None:
    """Put a whole file under a name that is free; leave it where the name was taken meanwhile."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _ONLY_OWNER)
    try:
        try:
            os.fchmod(descriptor, _ONLY_OWNER)  # a umask may have taken the owner's own rights
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(pem)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # A link, not a rename: it fails where the name is taken, and a half-written key never has the name.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
