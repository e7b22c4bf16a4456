"""Who a call comes from: bearer tokens and client certificates, with a short memory.

A token reads `slate_<token id>_<secret>`; only the SHA-256 of the secret is kept, which is enough for 256 random bits.
Every refusal of a token says the same, so that nothing can be learned by trying.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from slateboard_server.domain.errors import Reason, SlateboardError
from slateboard_server.domain.values import Micros, PrincipalId, TokenId
from slateboard_server.ports import Clock, Store
from slateboard_server.services.model import Caller

_PREFIX: Final = "slate_"
_SCHEME: Final = "bearer "
_MAX_CREDENTIAL: Final = 512
_MAX_CACHED: Final = 10_000
_NO_HASH: Final = bytes(32)


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A token at the one moment its secret is known."""

    token_id: TokenId
    secret: str

    @property
    def text(self) -> str:
        """Return what its owner sends."""
        return f"{_PREFIX}{self.token_id}_{self.secret}"

    @property
    def secret_hash(self) -> bytes:
        """Return what is kept of it."""
        return hash_secret(self.secret)


def hash_secret(secret: str) -> bytes:
    """Return what is kept of a secret."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def random_credential() -> Credential:
    """Draw a new token."""
    return Credential(TokenId(secrets.token_hex(8)), secrets.token_hex(32))


def derive(secret: bytes, *parts: object) -> bytes:
    """Derive 32 bytes from a secret and parts, each with its length: no two lists of parts give the same."""
    texts = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    return hmac.digest(secret, b"".join(b"%d:%b" % (len(text), text) for text in texts), sha256)


def derive_credential(secret: bytes, *parts: object) -> Credential:
    """Derive the token of a request, so that a retry of it gives the same one."""
    token_id = derive(secret, "token id", *parts)[:8].hex()
    return Credential(TokenId(token_id), derive(secret, "token secret", *parts).hex())


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    read_at: float
    """Monotonic seconds at which the store was asked, so that the age counts from before the answer."""
    expires: Micros | None


class Authenticator:
    """Tells callers by their credentials. What it remembers is at most `max_age` seconds old."""

    def __init__(
        self, store: Store, clock: Clock, certificate_map: Mapping[str, str], max_age: float = 2.0
    ) -> None:
        """Ask `store`; `certificate_map` names the principal of each identity in a client certificate."""
        self._store = store
        self._clock = clock
        self._certificates = dict(certificate_map)
        self._max_age = max_age
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}
        self._epoch = 0

    def forget(self) -> None:
        """Remember nobody: something about principals or tokens changed. Answers on their way are not remembered."""
        self._known.clear()
        self._asking.clear()
        self._epoch += 1

    def try_cached(self, authorization: str | None, identities: Sequence[str]) -> Caller | None:
        """Return the caller of a credential seen within `max_age`, without waiting; None where the store must be asked."""
        name = self._name(authorization, identities)
        known = None if name is None else self._known.get(name)
        if known is None or self._clock.monotonic() - known.read_at > self._max_age:
            return None
        if known.expires is not None and known.expires <= self._clock.now():
            return None
        return known.caller

    async def authenticate(self, authorization: str | None, identities: Sequence[str]) -> Caller:
        """Return who a credential stands for. A token comes before a certificate.

        TOKEN_MISSING without a credential; TOKEN_INVALID, always in the same words, for one that is not accepted.
        """
        cached = self.try_cached(authorization, identities)
        if cached is not None:
            return cached
        name = self._name(authorization, identities)
        if name is None:
            raise SlateboardError(
                Reason.TOKEN_MISSING,
                "the call carries no credential; send `authorization: Bearer <token>`, or a client certificate that the"
                " server knows",
            )
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.create_task(self._ask(name, authorization, identities), name="authenticate")
            self._asking[name] = asking
            asking.add_done_callback(lambda task: self._asked(name, task))
        # Shielded: the caller that began to ask may leave while others wait for the same answer.
        return await asyncio.shield(asking)

    def _asked(self, name: bytes, task: asyncio.Task[Caller]) -> None:
        if self._asking.get(name) is task:
            del self._asking[name]
        if not task.cancelled():
            task.exception()  # whoever waits has it; if nobody does, that is no fault to report

    async def _ask(self, name: bytes, authorization: str | None, identities: Sequence[str]) -> Caller:
        epoch, read_at = self._epoch, self._clock.monotonic()
        if authorization is not None:
            caller, expires = await self._by_token(authorization)
        else:
            caller, expires = await self._by_certificate(identities), None
        if epoch == self._epoch:
            self._known[name] = _Known(caller, read_at, expires)
            self._known.move_to_end(name)
            while len(self._known) > _MAX_CACHED:
                self._known.popitem(last=False)
        return caller

    async def _by_token(self, authorization: str) -> tuple[Caller, Micros | None]:
        token_id, secret = _split(authorization)
        found = await self._store.find_token(TokenId(token_id)) if token_id else None
        kept = _NO_HASH if found is None else found[0].secret_hash
        matches = hmac.compare_digest(hash_secret(secret), kept)
        if found is None or not matches:
            raise _invalid()
        token, principal = found
        if principal.disabled or not token.alive(self._clock.now()):
            raise _invalid()
        return Caller(principal, token.token_id), token.expires

    async def _by_certificate(self, identities: Sequence[str]) -> Caller:
        for identity in identities:
            name = self._certificates.get(identity)
            principal = None if name is None else await self._store.find_principal(PrincipalId(name))
            if principal is not None and not principal.disabled:
                return Caller(principal, None)
        raise _invalid()

    def _name(self, authorization: str | None, identities: Sequence[str]) -> bytes | None:
        """Name a credential in the cache, by a digest: no secret is kept, and no comparison tells how far it matched."""
        if authorization is not None:
            return sha256(b"t" + authorization.encode("utf-8", "surrogatepass")).digest()
        known = [identity for identity in identities if identity in self._certificates]
        return sha256(b"c" + "\0".join(known).encode("utf-8", "surrogatepass")).digest() if known else None


def _split(authorization: str) -> tuple[str, str]:
    """Cut an authorization header into token id and secret; both empty where it has another form."""
    if len(authorization) > _MAX_CREDENTIAL or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return "", ""
    token = authorization[len(_SCHEME) :].strip()
    token_id, _, secret = token.removeprefix(_PREFIX).partition("_")
    if not (token.startswith(_PREFIX) and token_id.isascii() and token_id.isalnum() and secret):
        return "", ""
    return token_id, secret


def _invalid() -> SlateboardError:
    return SlateboardError(
        Reason.TOKEN_INVALID,
        "the credential is not accepted: it is unknown, expired or revoked, or its principal is disabled; ask an operator"
        " for a new one",
    )
