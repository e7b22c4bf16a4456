"""Ed25519 (RFC 8032) by the `cryptography` package."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from slateboard_server.domain.checkpoint import key_id_of


def signature_is_good(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether a signature is that key's over the message: the `SignatureCheck` of the domain. Never raises."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Ed25519Signer:
    """A `CheckpointSigner` with its private key in memory. Its repr shows the key's id, never the key."""

    __slots__ = ("_private", "_public")

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        """Hold a key."""
        self._private = private_key
        self._public = private_key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        """Show which key it is."""
        return f"Ed25519Signer({self.key_id})"

    @classmethod
    def generate(cls) -> Ed25519Signer:
        """Draw a new key from the system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Ed25519Signer:
        """Read an unencrypted PKCS #8 key, as `to_pem` and `openssl genpkey -algorithm ed25519` write it. ValueError."""
        try:
            private_key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            # TypeError: the key is encrypted. The library's own words may quote the file.
            raise ValueError("not an unencrypted private key in PEM") from error
        if isinstance(private_key, Ed25519PrivateKey):
            return cls(private_key)
        raise ValueError("a private key, but not an Ed25519 one")

    def to_pem(self) -> bytes:
        """Write the private key as unencrypted PKCS #8. Whoever reads it can sign as this server."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._public

    @property
    def key_id(self) -> str:
        """What checkpoints call the key."""
        return key_id_of(self._public)

    def sign(self, message: bytes) -> bytes:
        """Sign; 64 bytes. The same message always gets the same signature."""
        return self._private.sign(message)
