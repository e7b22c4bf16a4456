"""Verification of a chain: fed with the commits in order, it names the first that is not what was committed.

Two kinds of findings. One in the *chain* (a commit, a version as written, a link, a checkpoint) is given as soon as the
commit is fed, and ends the verification: what follows a broken link proves nothing. One in the *state* (trust lowered or
a purge shown without an amendment, or the other way round; the wrong version shown as the newest) can only be known when
all has been seen, since an amendment comes later than what it amends (`chain_state.py`): `finish` gives the earliest of these.

"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from slateboard_server.domain.chain_state import ChainState
from slateboard_server.domain.chained import (
    ChainedCommit,
    ChainedVersion,
    ChainHead,
    ChainStart,
    Coverage,
    CurrentPlace,
    Finding,
    Problem,
)
from slateboard_server.domain.checkpoint import Checkpoint, CheckpointError, SignatureCheck, verify
from slateboard_server.domain.entry import VersionRecord
from slateboard_server.domain.integrity import (
    commit_hash,
    content_commitment,
    genesis,
    note_commitment,
    version_commitment,
)
from slateboard_server.domain.values import Incarnation, Revision

_UNENCODABLE: Final = (ValueError, TypeError, AttributeError, OverflowError, struct.error)
"""What the encoding raises for what no server writes: SQLite keeps a text where a number belongs, JSON half a surrogate."""


def read_checkpoint(
    text: str, start: ChainStart, trusted: Mapping[str, bytes], check: SignatureCheck
) -> Checkpoint | Finding:
    """Read a kept checkpoint for a verification; what is wrong with it is a finding like any other."""
    try:
        checkpoint = verify(text, trusted, check)
    except CheckpointError as error:
        return Finding(Revision(0), Problem.BAD_CHECKPOINT, str(error))
    return _of_other_board(checkpoint, start) or checkpoint


def _of_other_board(checkpoint: Checkpoint, start: ChainStart) -> Finding | None:
    if (checkpoint.board_id, checkpoint.name) == (start.board_id, start.name):
        return None
    return Finding(
        Revision(0),
        Problem.OTHER_BOARD,
        f"the checkpoint is of board {checkpoint.board_id} {checkpoint.name!r}, verified is board {start.board_id}"
        f" {start.name!r}",
    )


class ChainVerifier:
    """Verifies a board's chain, or a stretch of it, in one pass.

    ```python
    verifier = ChainVerifier(start, floor=head.floor, checkpoints=kept)
    for commit in commits_in_revision_order:
        if finding := verifier.feed(commit):
            break
    finding = verifier.finish(head, current)
    ```

    `checkpoints` are such as `verify` or `read_checkpoint` has accepted; none may lie before the start (ValueError).
    `floor` is the board's: content may be compacted up to it. None: compaction is not judged.
    """

    def __init__(
        self,
        start: ChainStart,
        *,
        floor: Revision | None = None,
        checkpoints: Sequence[Checkpoint] = (),
    ) -> None:
        """Begin at `start`, whose hash is taken for granted."""
        self.coverage = Coverage()
        self._start = start
        self._floor = floor
        self._revision = start.revision
        self._hash = start.hash
        self._lives: list[tuple[Incarnation, bytes]] = [(start.incarnation, start.hash)]
        """What the chain is at the present revision: twice where an incarnation begins there."""
        self._checkpoints = sorted(checkpoints, key=lambda checkpoint: checkpoint.revision)
        self._incarnations = {start.incarnation}
        self._signed_floor = Revision(0)
        """The highest floor of a checkpoint that was found good."""
        self._kept_from = start.revision
        """Up to where the chain is known to be the one that was signed."""
        self._finding: Finding | None = None
        self._only_links = False
        self._state = ChainState(start.revision, floor)
        for checkpoint in checkpoints:
            if checkpoint.revision < start.revision:
                raise ValueError("a checkpoint lies before the start: begin there, or earlier")
            self._finding = self._finding or _of_other_board(checkpoint, start)

    @property
    def revision(self) -> Revision:
        """The last revision that was found good, or the start."""
        return self._revision

    @property
    def hash(self) -> bytes:
        """The chain there."""
        return self._hash

    def feed(self, chained: ChainedCommit) -> Finding | None:
        """Check the next commit. After a finding nothing more is looked at; it is given again."""
        if self._finding is None:
            # A checkpoint at the last revision first: what it finds is older than this commit.
            self._finding = self._leave_revision() or self._chain_finding(chained)
        if self._finding is None:
            self._accept(chained)
        return self._finding

    def begin_incarnation(self, incarnation: Incarnation) -> None:
        """Say that after the last commit fed the board began a new life, whose chain is linked to that commit."""
        start = self._start
        self._hash = genesis(incarnation, start.board_id, start.name, self._revision, self._hash)
        self._lives.append((incarnation, self._hash))
        self._incarnations.add(incarnation)

    def finish(
        self, head: ChainHead | None = None, current: Iterable[CurrentPlace] | None = None
    ) -> Finding | None:
        """Say what was found: in the chain first, then where it ends, then the earliest in the state.

        `head` is what the board's row says; None for a stretch that ends before, which then says nothing of truncation.
        `current` are the rows that reads go through, where they are to be compared; only together with `head`.
        """
        if self._finding is None:
            self._finding = self._leave_revision() or (None if head is None else self._head_finding(head))
        if self._finding is None and not self._only_links:
            findings = [*self._state.findings()]
            if head is not None and current is not None:
                findings += self._state.current_findings(current)
            self._finding = min(
                findings, key=lambda finding: (finding.revision, finding.region, finding.key), default=None
            )
        return self._finding

    # The chain

    def _chain_finding(self, chained: ChainedCommit) -> Finding | None:
        revision, expected = chained.commit.revision, Revision(self._revision + 1)
        if revision != expected:
            detail = (
                f"revision {expected} is missing: after {self._revision} comes {revision}"
                if revision > expected
                else f"after revision {self._revision} comes {revision} again"
            )
            return Finding(expected, Problem.GAP, detail)
        if chained.unreadable:
            return Finding(revision, Problem.UNREADABLE, chained.unreadable)
        try:
            return (
                self._commit_finding(chained)
                or _note_finding(chained)
                or (None if chained.versions is None else self._versions_finding(chained, chained.versions))
            )
        except _UNENCODABLE as error:
            return Finding(
                revision, Problem.UNREADABLE, f"a row holds what no server writes ({type(error).__name__})"
            )

    def _commit_finding(self, chained: ChainedCommit) -> Finding | None:
        computed = commit_hash(
            self._hash,
            chained.commit,
            chained.note,
            chained.policy,
            chained.commitments,
            chained.amendments,
            lineage=chained.lineage,
            audit=chained.audit,
        )
        if hmac.compare_digest(computed, chained.hash):
            return None
        return Finding(
            chained.commit.revision,
            Problem.COMMIT_CHANGED,
            "the stored hash is not that of the commit's fields and the commit before; one of them was changed",
        )

    def _versions_finding(
        self, chained: ChainedCommit, versions: tuple[ChainedVersion, ...]
    ) -> Finding | None:
        revision, commitments = chained.commit.revision, chained.commitments
        if len(versions) == len(commitments):
            for version, commitment in zip(versions, commitments, strict=True):
                finding = self._version_finding(version, commitment, revision)
                if finding is not None:
                    return finding
            return None
        if len(versions) < len(commitments):
            return Finding(
                revision,
                Problem.VERSION_MISSING,
                f"the commit made {len(commitments)} versions, {len(versions)} are there",
            )
        for version, commitment in zip(versions, commitments, strict=False):
            if not _is_committed(version, commitment):
                return _at(version, revision, Problem.VERSION_EXTRA, "the commit did not make this version")
        return _at(
            versions[len(commitments)],
            revision,
            Problem.VERSION_EXTRA,
            "the commit did not make this version",
        )

    def _version_finding(
        self, version: ChainedVersion, commitment: bytes, revision: Revision
    ) -> Finding | None:
        written, content = version.written, version.content
        if content is None:
            if version.purged:
                return None
            return _at(version, revision, Problem.CONTENT_MISSING, "its content commitment is gone")
        if not hmac.compare_digest(version_commitment(content, written), commitment):
            return _at(
                version,
                revision,
                Problem.VERSION_CHANGED,
                "its key, writer, times, kind, trust as written or sources are not those it was committed with",
            )
        if version.purged:
            return None
        if written.compacted:
            if self._floor is None or revision <= self._floor:
                return None
            return _at(
                version,
                revision,
                Problem.COMPACTED_TOO_EARLY,
                f"its content is gone, though the board was compacted only up to {self._floor}",
            )
        if version.salt is None or (written.is_value and written.value is None):
            return _at(
                version,
                revision,
                Problem.CONTENT_MISSING,
                "its value or salt is gone, though it was not compacted and not purged",
            )
        if hmac.compare_digest(content_commitment(version.salt, written, version.screening), content):
            return None
        return _at(
            version,
            revision,
            Problem.VERSION_CHANGED,
            "its value, content type, annotations or screening are not those it was committed with",
        )

    # Checkpoints and the head

    def _leave_revision(self) -> Finding | None:
        """Compare the checkpoints of the present revision, which is about to be left."""
        while self._checkpoints and self._checkpoints[0].revision == self._revision:
            checkpoint = self._checkpoints.pop(0)
            hashes = [value for incarnation, value in self._lives if incarnation == checkpoint.incarnation]
            if not hashes:
                return self._other_incarnation(checkpoint)
            if checkpoint.hash not in hashes:
                return Finding(
                    self._revision,
                    Problem.CHECKPOINT_MISMATCH,
                    f"the chain up to revision {self._revision} is not the one that was signed: commits after revision"
                    f" {self._kept_from} were written anew",
                )
            self._kept_from = self._revision
            self._signed_floor = max(self._signed_floor, checkpoint.floor)
            self.coverage.checkpoints += 1
        return None

    def _other_incarnation(self, checkpoint: Checkpoint) -> Finding:
        return Finding(
            self._revision,
            Problem.OTHER_INCARNATION,
            f"the checkpoint is of incarnation {checkpoint.incarnation}, the board at revision {self._revision} is"
            f" {self._lives[-1][0]}",
        )

    def _head_finding(self, head: ChainHead) -> Finding | None:
        last = self._revision
        if head.revision != last:
            return Finding(
                Revision(min(head.revision, last) + 1),
                Problem.HEAD_MISMATCH,
                f"the board says its head is {head.revision}, the last commit there is {last}",
            )
        if self._checkpoints:
            newest = self._checkpoints[-1]
            if newest.incarnation not in self._incarnations:
                return self._other_incarnation(newest)
            return Finding(
                Revision(last + 1),
                Problem.TRUNCATED,
                f"the board ends at revision {last}, though revision {newest.revision} was signed: what came after was"
                " cut off, or an older copy was put back",
            )
        if head.floor < self._signed_floor:
            return Finding(
                Revision(0),
                Problem.HEAD_MISMATCH,
                f"the board says its floor is {head.floor}, a checkpoint was signed with floor {self._signed_floor}",
            )
        if head.hash != self._hash:
            return Finding(
                last, Problem.HEAD_MISMATCH, "the hash in the board's row is not that of its last commit"
            )
        return None

    def _accept(self, chained: ChainedCommit) -> None:
        self._revision, self._hash = chained.commit.revision, chained.hash
        self._lives = [(self._lives[-1][0], chained.hash)]
        self.coverage.commits += 1
        self.coverage.amendments += len(chained.amendments)
        if chained.versions is None:
            self._only_links = True
            return
        self._state.accept(chained, chained.versions)
        for version in chained.versions:
            self._count(version)

    def _count(self, version: ChainedVersion) -> None:
        coverage = self.coverage
        coverage.versions += 1
        if version.content is None:
            coverage.opaque += 1
        elif version.purged:
            coverage.purged += 1
        elif version.written.compacted:
            coverage.compacted += 1
        else:
            coverage.recomputed += 1


def _at(version: ChainedVersion, revision: Revision, problem: Problem, detail: str) -> Finding:
    record: VersionRecord = version.written
    return Finding(revision, problem, detail, record.region, record.key, record.version)


def _is_committed(version: ChainedVersion, commitment: bytes) -> bool:
    return version.content is None or version_commitment(version.content, version.written) == commitment


def _note_finding(chained: ChainedCommit) -> Finding | None:
    commit = chained.commit
    if chained.note_purged or (not commit.note and chained.note is None):
        return None
    if not commit.note or chained.note_salt is None:
        return Finding(
            commit.revision,
            Problem.CONTENT_MISSING,
            "its note or the note's salt is gone, and was not purged",
        )
    if chained.note is not None and hmac.compare_digest(
        note_commitment(chained.note_salt, commit.note), chained.note
    ):
        return None
    return Finding(commit.revision, Problem.NOTE_CHANGED, "its note is not the one it was committed with")
