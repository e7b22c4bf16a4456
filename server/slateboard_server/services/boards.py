"""Boards: made, listed, governed, compacted, deleted, begun anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from slateboard_server.domain.errors import Reason, SlateboardError, board_not_found, field_invalid, too_many
from slateboard_server.domain.limits import MAX_NOTE_BYTES, MAX_RULES, MAX_TTL_S
from slateboard_server.domain.names import check_board_name, check_prefix
from slateboard_server.domain.policy import Policy, Quota, Scope
from slateboard_server.domain.principal import Role
from slateboard_server.domain.values import SECOND, Incarnation, Revision
from slateboard_server.ports import AuditRecord, BoardMeta, Clock, Head, NewBoard, Store
from slateboard_server.services.directory import BoardDirectory
from slateboard_server.services.model import Activity, Caller, Stamp
from slateboard_server.services.page_tokens import PageTokens, page_size

_COMPACT_CHUNK: Final = 1_000


class Boards:
    """BoardService but GetServerInfo."""

    def __init__(self, directory: BoardDirectory, store: Store, clock: Clock) -> None:
        """Govern the boards of `directory`."""
        self._directory = directory
        self._store = store
        self._clock = clock

    async def create(
        self, caller: Caller, name: str, description: str, request_id: str, policy: Policy
    ) -> BoardMeta:
        """Make a board. Operators, and supervisors of every board."""
        principal = caller.principal
        if not (principal.leads and principal.has_all_boards):
            raise await self._denied(
                caller, "board.create", name, "only operators and supervisors of every board make boards"
            )
        check_board_name(name)
        if "\0" in description:
            raise field_invalid("description", "must not contain NUL")
        if len(description.encode("utf-8", "surrogatepass")) > MAX_NOTE_BYTES:
            raise field_invalid("description", f"at most {MAX_NOTE_BYTES} bytes", limit=MAX_NOTE_BYTES)
        policy = check_policy(policy)
        meta = await self._store.create_board(NewBoard(name, description, principal.id, policy, request_id))
        await self._audit(caller, "board.create", name)
        return meta

    async def get(self, caller: Caller, name: str) -> tuple[BoardMeta, Activity]:
        """Read a board's state and what this replica does for it."""
        meta = await self._find(caller, name)
        handle = await self._directory.open(caller, name)
        if handle.board_id != meta.board_id:
            # Another replica deleted the board this one knew, and somebody made a new one of that name.
            self._directory.forget(handle.board_id)
            handle = await self._directory.open(caller, name)
        return meta, self._directory.activity(handle, caller)

    async def list(self, caller: Caller, size: int, page_token: str) -> tuple[list[BoardMeta], str]:
        """List the boards the caller has a part in, by name."""
        limit = page_size(size)
        principal = caller.principal
        secret = await self._store.server_secret()
        tokens = PageTokens(secret, Incarnation(""), "boards", principal.id)
        position = tokens.read(page_token)
        after = "" if position is None else str(position["after"])
        shown: list[BoardMeta] = []
        if principal.has_all_boards:
            # One more than asked tells whether there is a next page.
            shown = list(await self._store.list_boards(after, limit + 1))
        else:
            for name in sorted(principal.boards):
                if name > after and len(shown) <= limit:
                    meta = await self._store.find_board(name)
                    if meta is not None:
                        shown.append(meta)
        token = tokens.make(after=shown[limit - 1].name) if len(shown) > limit else ""
        return shown[:limit], token

    async def delete(self, caller: Caller, name: str, incarnation: Incarnation) -> Stamp:
        """Delete a board for good. Operators. BOARD_REINCARNATED if it is another one by now."""
        meta = await self._find(caller, name)
        await self._operators_only(caller, "board.delete", name)
        if not incarnation:
            raise field_invalid("incarnation", "is required; GetBoard tells it")
        if not await self._store.delete_board(meta.board_id, incarnation):
            raise _other_life(meta)
        self._directory.forget(meta.board_id)
        await self._audit(caller, "board.delete", name, incarnation)
        return stamp_of(meta.head)

    async def compact(self, caller: Caller, name: str, revision: Revision) -> tuple[Stamp, int]:
        """Drop values superseded at or before a revision. Operators and supervisors.

        Returns how many were dropped. The floor is raised first, the rest is done in steps: should the call end early,
        the next one goes on.
        """
        meta = await self._find(caller, name)
        await self._leaders_only(caller, "board.compact", name)
        if revision < 1:
            raise field_invalid("revision", "a revision is 1 or more")
        dropped, more = 0, True
        head = meta.head
        while more:
            head, count, more = await self._store.compact(meta.board_id, revision, _COMPACT_CHUNK)
            if not dropped:
                await self._directory.refresh(meta.board_id)
            dropped += count
        await self._directory.refresh(meta.board_id)
        await self._audit(caller, "board.compact", name, str(revision), f"dropped {dropped}")
        return stamp_of(head), dropped

    async def reincarnate(self, caller: Caller, name: str, incarnation: Incarnation) -> BoardMeta:
        """Start a new life of a board after its database was restored. Operators."""
        meta = await self._find(caller, name)
        await self._operators_only(caller, "board.reincarnate", name)
        if not incarnation:
            raise field_invalid("incarnation", "is required; GetBoard tells it")
        made = await self._store.reincarnate(meta.board_id, incarnation)
        if made is None:
            raise _other_life(meta)
        await self._directory.refresh(meta.board_id)
        await self._audit(caller, "board.reincarnate", name, made.head.incarnation)
        return made

    async def get_policy(self, caller: Caller, name: str) -> tuple[Stamp, Policy]:
        """Read the rules of a board."""
        meta = await self._find(caller, name)
        return stamp_of(meta.head), meta.policy

    async def set_policy(
        self, caller: Caller, name: str, policy: Policy, expected_version: int
    ) -> tuple[Stamp, Policy]:
        """Replace the rules, if they are still at the version that was read. Operators and supervisors.

        VERSION_CONFLICT otherwise; but where exactly this change is the last one made, it is answered: a retry.
        """
        meta = await self._find(caller, name)
        await self._leaders_only(caller, "policy.set", name)
        if expected_version < 1:
            raise field_invalid("expected_version", "is required, and 1 or more; GetPolicy tells it")
        policy = check_policy(policy)
        now = self._clock.now()
        new = await self._store.set_policy(meta.board_id, policy, expected_version, caller.principal.id, now)
        if new is None:
            meta = await self._find(caller, name)
            present = meta.policy
            same = replace(policy, version=present.version, updated=present.updated, updated_by=present.updated_by)  # fmt: skip
            if (present.version, present.updated_by) != (expected_version + 1, caller.principal.id) or (
                present != same
            ):
                raise SlateboardError(
                    Reason.VERSION_CONFLICT,
                    f"the policy is at version {present.version}, not {expected_version}; read it again and apply the"
                    " change to that",
                    version=present.version,
                    expected_version=expected_version,
                )
            return stamp_of(meta.head), present
        await self._directory.refresh(meta.board_id)
        await self._audit(caller, "policy.set", name, str(new.version))
        return stamp_of(meta.head), new

    async def _find(self, caller: Caller, name: str) -> BoardMeta:
        """Read a board's row as it is now; governing goes by no cache."""
        meta = await self._store.find_board(name) if caller.principal.has_board(name) else None
        if meta is None:
            raise board_not_found(name)
        return meta

    async def _operators_only(self, caller: Caller, action: str, name: str) -> None:
        if caller.principal.role is not Role.OPERATOR:
            raise await self._denied(caller, action, name, "only operators may do this")

    async def _leaders_only(self, caller: Caller, action: str, name: str) -> None:
        if not caller.principal.leads:
            raise await self._denied(caller, action, name, "only operators and supervisors may do this")

    async def _denied(self, caller: Caller, action: str, name: str, why: str) -> SlateboardError:
        await self._audit(caller, action, name[:MAX_NOTE_BYTES], detail="denied")
        return SlateboardError(
            Reason.DENIED,
            f"{why}; {caller.principal.id} is {caller.principal.role.name.lower()}: ask an operator",
            action=action,
        )

    async def _audit(
        self, caller: Caller, action: str, name: str, target: str = "", detail: str = ""
    ) -> None:
        record = AuditRecord(self._clock.now(), caller.principal.id, action, name, target, detail)
        await self._store.audit([record])


def stamp_of(head: Head) -> Stamp:
    """Return where a board stands as a reply tells it."""
    return Stamp(head.revision, head.floor, head.incarnation)


def check_policy(policy: Policy) -> Policy:
    """Return a policy that a board can have, or raise TOO_MANY, KEY_INVALID or FIELD_INVALID naming the rule."""
    if len(policy.rules) > MAX_RULES:
        raise too_many("policy.rules", len(policy.rules), MAX_RULES)
    seen: set[tuple[Scope, str]] = set()
    for index, rule in enumerate(policy.rules):
        field = f"policy.rules[{index}]"
        if rule.scope is Scope.BOARD:
            raise field_invalid(f"{field}.scope", "must be shared or private")
        check_prefix(rule.prefix, f"{field}.prefix")
        if (rule.scope, rule.prefix) in seen:
            raise field_invalid(field, "another rule has the same scope and prefix; join the two")
        seen.add((rule.scope, rule.prefix))
        if rule.default_ttl is not None and not SECOND <= rule.default_ttl <= MAX_TTL_S * SECOND:
            raise field_invalid(
                f"{field}.default_ttl", f"must be 1 s to {MAX_TTL_S} s (100 years)", limit=MAX_TTL_S
            )
        if rule.quota.max_watches:
            raise field_invalid(f"{field}.quota.max_watches", "watches are bounded for whole boards only")
        _check_quota(rule.quota, f"{field}.quota")
    _check_quota(policy.quota, "policy.quota")
    if policy.history_retention is not None and policy.history_retention < 0:
        raise field_invalid("policy.history_retention", "must not be negative")
    return policy


def _check_quota(quota: Quota, field: str) -> None:
    for name in ("max_entries", "max_bytes", "max_commits_per_second", "max_watches"):
        if getattr(quota, name) < 0:
            raise field_invalid(f"{field}.{name}", "must not be negative; 0 means no bound")


def _other_life(meta: BoardMeta) -> SlateboardError:
    return SlateboardError(
        Reason.BOARD_REINCARNATED,
        f"the incarnation of {meta.name!r} is another one by now; look whether this is still the board that is meant",
        board=meta.name,
        incarnation=meta.head.incarnation,
    )
