"""Who signs checkpoints: an Ed25519 key in a file, and nothing else of cryptography.

What is signed is `domain/checkpoint.py`'s. Another signer (a hardware module, a key service) is another class with the
Protocol `CheckpointSigner`.
"""

from slateboard_server.signing.ed25519 import Ed25519Signer, signature_is_good
from slateboard_server.signing.keyfile import KeyFileError, load_key, load_or_create_key

__all__ = ["Ed25519Signer", "KeyFileError", "load_key", "load_or_create_key", "signature_is_good"]
