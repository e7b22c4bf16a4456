"""Verification of a chain: every change of what was committed is named, at its revision; nothing else is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slateboard_server.domain.chained import (
    ChainedCommit,
    ChainHead,
    ChainStart,
    Finding,
    Problem,
)
from slateboard_server.domain.checkpoint import key_id_of, sign
from slateboard_server.domain.entry import Annotations, CommitRecord, SourceRef, VersionRecord
from slateboard_server.domain.integrity import Amended, Amendment
from slateboard_server.domain.values import (
    Incarnation,
    Key,
    Kind,
    Revision,
    Tombstone,
    Trust,
    Version,
)
from slateboard_server.domain.verifying import ChainVerifier, read_checkpoint
from slateboard_server.signing import Ed25519Signer, signature_is_good
from tests.chaining import BOARD, LIFE, NAME, SHARED, Board, Ref, Screened, boards, rehash


def ref(key: str, version: int = 1) -> Ref:
    return SHARED, Key(key), Version(version)


def a_board() -> Board:
    """Return a board with all that there is: notes, tombstones, lowered and purged versions, several ops."""
    board = Board()
    board.commit(("a", b"one"), ("b", b"two"), note="first")
    board.commit(("a", b"three"))
    board.commit(("c", b"four"), ("b", None), note="third")
    board.lower(ref("a", 2), Trust.EXTERNAL)
    board.purge(ref("c"))
    board.purge_note(1)
    board.commit(("d", b"five"))
    return board


def problem(finding: Finding | None) -> tuple[int, Problem] | None:
    return None if finding is None else (finding.revision, finding.problem)


# What is right


@given(boards())
def test_what_was_committed_is_found_good(board: Board) -> None:
    assert board.verify() is None
    assert board.verify(board.checkpoint()) is None


@given(boards(), st.data())
def test_a_stretch_is_found_good_from_any_of_its_hashes_on(board: Board, data: st.DataObject) -> None:
    """Amendments of what lies before the start are passed over: nothing is known of it."""
    begin = data.draw(st.integers(0, board.head))
    value = board.start.hash if begin == 0 else board.at(begin).hash
    start = ChainStart(BOARD, NAME, LIFE, Revision(begin), value)
    assert board.verify(board.checkpoint(), start=start) is None


def test_the_report_says_how_much_could_be_computed_again() -> None:
    board = a_board()
    board.compact(4)
    verifier = ChainVerifier(board.start, floor=board.floor, checkpoints=[board.checkpoint()])
    assert [verifier.feed(chained) for chained in board.commits] == [None] * 7
    assert verifier.finish(board.chain_head(), board.current()) is None
    coverage = verifier.coverage
    assert (coverage.commits, coverage.versions, coverage.amendments, coverage.checkpoints) == (7, 6, 3, 1)
    assert (coverage.recomputed, coverage.compacted, coverage.purged, coverage.opaque) == (2, 3, 1, 0)
    assert (verifier.revision, verifier.hash) == (7, board.hash)


def test_the_links_alone_can_be_checked_without_reading_a_version() -> None:
    board = a_board()
    links = [replace(chained, versions=None) for chained in board.commits]
    verifier = ChainVerifier(board.start)
    assert [verifier.feed(chained) for chained in links] == [None] * 7
    assert verifier.finish(board.chain_head()) is None
    assert problem(ChainVerifier(board.start).feed(replace(links[0], commitments=()))) == (
        1,
        Problem.COMMIT_CHANGED,
    )


# Any single change of what is stored


def _other(value: Any, data: st.DataObject) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Trust | Kind | Tombstone):
        others: list[Any] = [each for each in type(value) if each is not value]
        return data.draw(st.sampled_from(others))
    if isinstance(value, bytes):
        if value and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(value) - 1))
            bit = 1 << data.draw(st.integers(0, 7))
            return value[:place] + bytes([value[place] ^ bit]) + value[place + 1 :]
        return value + b"\0"
    if isinstance(value, str):
        return data.draw(
            st.sampled_from([value + "x", value + "\0", value.upper() or "X"]).filter(
                lambda new: new != value
            )
        )
    if isinstance(value, int):
        return value + data.draw(st.sampled_from([-1, 1, 1 << 20]))
    if isinstance(value, float):
        return value / 2 + 0.125 if value != 0.25 else 0.5
    assert isinstance(value, tuple)
    return (*value, value[0])


_KEPT_APART = {
    "memo",  # not stored
    "batch_id",  # names a database transaction, nothing that a board says
    "compacted",  # see the tests of compaction
}


def _spots(chained: ChainedCommit) -> list[tuple[str, ...]]:
    """Return the path of every stored field of a commit and its versions."""
    spots: list[tuple[str, ...]] = [
        ("hash",),
        ("commitments",),
        ("amendments",),
        ("note",),
        ("policy", "version"),
        ("policy", "digest"),
    ]
    if chained.note_salt is not None:
        spots.append(("note_salt",))
    apart = _KEPT_APART | ({"note"} if chained.note_purged else set())  # what a purge may not have erased yet
    spots += [("commit", each.name) for each in fields(CommitRecord) if each.name not in apart]
    for place, row in enumerate(chained.versions or ()):
        whole = not row.purged and not row.written.compacted
        spots.append((str(place), "content"))
        if whole:
            spots += [
                (str(place), "salt"),
                *[(str(place), "screening", each.name) for each in fields(Screened)],
            ]
            spots += [(str(place), "annotations", each.name) for each in fields(Annotations)]
        gone = set() if whole else {"value", "size", "content_type", "annotations"}
        spots += [
            (str(place), "written", each.name)
            for each in fields(VersionRecord)
            if each.name not in _KEPT_APART | gone
        ]
    return spots


_OPTIONAL: dict[str, Any] = {
    "note": bytes(32),
    "session_id": "s-2",
    "expire_time": 5,
    "valid_from": 5,
    "valid_to": 5,
    "value": b"forged",
    "annotations": Annotations(subject="mallory"),
    "derivations": ((SourceRef(SHARED, Key("x"), Version(1)),),),
    "topics": ("t",),
    "labels": (("l", "w"),),
    "source_uris": ("u",),
    "rules": ("r",),
    "amendments": (Amendment(SHARED, Key("a"), Version(1), Amended.LOWERED, 1),),
    "commitments": (bytes(32),),
}


def _changed(target: Any, path: tuple[str, ...], data: st.DataObject) -> Any:
    name, rest = path[0], path[1:]
    value = getattr(target, name)
    if rest:
        return replace(target, **{name: _changed(value, rest, data)})
    if isinstance(value, tuple) and value and data.draw(st.booleans()):
        return replace(target, **{name: value[:-1]})
    if name in _OPTIONAL and not (isinstance(value, str | bytes) and value):
        new = _OPTIONAL[name]
        return replace(target, **{name: new if new != value else None})
    return replace(target, **{name: _other(value, data)})


@given(boards(), st.data())
def test_any_single_change_of_a_stored_field_is_named_at_its_revision(
    board: Board, data: st.DataObject
) -> None:
    revision = data.draw(st.integers(1, board.head))
    chained = board.at(revision)
    spot = data.draw(st.sampled_from(_spots(chained)))
    if spot[0].isdigit():
        rows = list(chained.versions or ())
        place = int(spot[0])
        path = ("written", *spot[1:]) if spot[1] == "annotations" else spot[1:]
        rows[place] = _changed(rows[place], path, data)
        changed = replace(chained, versions=tuple(rows))
    else:
        changed = _changed(chained, spot, data)
    assume(changed != chained)
    board.change(revision, changed)
    finding = board.verify()
    assert finding is not None, spot
    assert finding.revision == revision, spot


@given(boards(), st.data())
def test_what_readers_are_told_of_a_version_is_held_against_the_chain(
    board: Board, data: st.DataObject
) -> None:
    """Trust and the purge mark change later than the commit, so only the chain's amendments can bear them out."""
    refs = board.refs()
    assume(refs)
    target = data.draw(st.sampled_from(refs))
    revision, _, row = board.find(target)
    if data.draw(st.booleans()):
        trust = data.draw(st.sampled_from([each for each in Trust if each != row.trust]))
        board.change_version(target, trust=trust)
        expected = {Problem.RAISED, Problem.AMENDMENT_NOT_SHOWN, Problem.LOWERED_WITHOUT_AMENDMENT}
    else:
        board.change_version(target, purged=not row.purged)
        # With the mark taken off, it is first of all a version without its content.
        expected = {Problem.PURGED_WITHOUT_AMENDMENT, Problem.CONTENT_MISSING, Problem.AMENDMENT_NOT_SHOWN}
    finding = board.verify()
    assert finding is not None
    assert (finding.revision, finding.region, finding.key, finding.version) == (revision, *target)
    assert finding.problem in expected


# Commits moved, added, taken away


@given(boards(least=2), st.data())
def test_a_commit_taken_out_is_a_gap(board: Board, data: st.DataObject) -> None:
    revision = data.draw(st.integers(1, board.head - 1))
    head, current = board.chain_head(), board.current()
    del board.commits[revision - 1]
    verifier = ChainVerifier(board.start, floor=board.floor)
    for chained in board.commits:
        verifier.feed(chained)
    assert problem(verifier.finish(head, current)) == (revision, Problem.GAP)


@given(boards(least=2), st.data())
def test_commits_in_another_order_are_named_where_the_order_breaks(board: Board, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(board.commits))))
    first = next((place for place, number in enumerate(order) if place != number), None)
    assume(first is not None)
    assert first is not None
    board.commits = [board.commits[number] for number in order]
    assert problem(board.verify()) == (first + 1, Problem.GAP)


@given(boards(least=2), st.data())
def test_commits_that_exchanged_their_revisions_are_named(board: Board, data: st.DataObject) -> None:
    revision = data.draw(st.integers(1, board.head - 1))
    one, other = board.at(revision), board.at(revision + 1)
    board.change(revision, replace(other, commit=replace(other.commit, revision=one.commit.revision)))
    board.change(revision + 1, replace(one, commit=replace(one.commit, revision=other.commit.revision)))
    assert problem(board.verify()) == (revision, Problem.COMMIT_CHANGED)


@given(boards(), st.data())
def test_a_commit_put_in_is_named(board: Board, data: st.DataObject) -> None:
    """A forged one takes a revision; the real one that had it comes after it, or everything moves up by one."""
    revision = data.draw(st.integers(1, board.head))
    board.commits.insert(revision - 1, board.at(revision))
    assert problem(board.verify()) == (revision + 1, Problem.GAP)


def test_a_commit_added_at_the_end_with_a_right_hash_is_not_the_head_that_the_board_knows() -> None:
    board = a_board()
    head = board.chain_head()
    board.commit(("a", b"forged"))
    verifier = ChainVerifier(board.start, floor=board.floor)
    for chained in board.commits:
        assert verifier.feed(chained) is None
    assert problem(verifier.finish(head)) == (8, Problem.HEAD_MISMATCH)


def test_a_commit_cut_off_below_the_head_that_the_board_knows_is_named() -> None:
    board = a_board()
    head = board.chain_head()
    del board.commits[5:]
    verifier = ChainVerifier(board.start)
    for chained in board.commits:
        assert verifier.feed(chained) is None
    assert problem(verifier.finish(head)) == (6, Problem.HEAD_MISMATCH)


def test_a_head_with_another_hash_is_named() -> None:
    board = a_board()
    verifier = ChainVerifier(board.start)
    for chained in board.commits:
        assert verifier.feed(chained) is None
    assert problem(verifier.finish(ChainHead(board.head, bytes(32), board.floor))) == (
        7,
        Problem.HEAD_MISMATCH,
    )


# Versions moved, added, taken away


def test_a_version_row_taken_out_is_missing() -> None:
    board = a_board()
    for place in (0, 1):
        rows = list(board.at(1).versions or ())
        del rows[place]
        copy = a_board()
        copy.change(1, replace(copy.at(1), versions=tuple(rows)))
        assert problem(copy.verify()) == (1, Problem.VERSION_MISSING)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_version_row_put_in_is_named(place: int) -> None:
    board = a_board()
    rows = list(board.at(1).versions or ())
    forged = replace(rows[0], written=replace(rows[0].written, key=Key("forged"), op_index=place))
    rows.insert(place, forged)
    board.change(1, replace(board.at(1), versions=tuple(rows)))
    finding = board.verify()
    assert problem(finding) == (1, Problem.VERSION_EXTRA)
    assert finding is not None
    assert finding.key == "forged"


def test_version_rows_that_changed_places_are_named() -> None:
    board = a_board()
    one, other = board.at(1).versions or ()
    board.change(1, replace(board.at(1), versions=(other, one)))
    assert problem(board.verify()) == (1, Problem.VERSION_CHANGED)


def test_an_older_value_copied_over_a_newer_one_is_named_even_with_its_salt() -> None:
    """Every byte of it is real, only its place is not."""
    board = a_board()
    _, _, old = board.find(ref("a", 1))
    board.change_version(
        ref("a", 2),
        value=old.written.value,
        size=old.written.size,
        salt=old.salt,
        content=old.content,
    )
    assert problem(board.verify()) == (2, Problem.VERSION_CHANGED)


@pytest.mark.parametrize("lost", ["value", "salt", "content"])
def test_a_content_that_is_simply_gone_is_named(lost: str) -> None:
    board = a_board()
    board.change_version(ref("d"), **{lost: None})
    assert problem(board.verify()) == (7, Problem.CONTENT_MISSING)


def test_a_lost_note_is_named_unless_a_commit_purged_it() -> None:
    board = a_board()
    at = board.at(3)
    board.change(3, replace(at, commit=replace(at.commit, note="")))
    assert problem(board.verify()) == (3, Problem.CONTENT_MISSING)
    board.change(3, replace(at, commit=replace(at.commit, note=""), note_salt=None, note_purged=True))
    assert problem(board.verify()) == (3, Problem.PURGED_WITHOUT_AMENDMENT)
    board.change(3, replace(at, commit=replace(at.commit, note="another")))
    assert problem(board.verify()) == (3, Problem.NOTE_CHANGED)


def test_a_note_brought_back_after_its_purge_is_named() -> None:
    board = a_board()
    before = Board()
    before.commit(("a", b"one"), ("b", b"two"), note="first")
    board.change(1, before.at(1))
    assert problem(board.verify()) == (1, Problem.AMENDMENT_NOT_SHOWN)


def test_a_purged_version_whose_bytes_are_not_all_erased_yet_is_as_it_should_be() -> None:
    board = Board()
    board.commit(("a", b"one"))
    _, _, row = board.find(ref("a"))
    board.purge(ref("a"))
    board.change_version(ref("a"), salt=row.salt, value=b"one", size=3)
    assert board.verify() is None


def test_a_purge_that_took_even_the_content_commitment_leaves_the_place_in_the_chain() -> None:
    board = a_board()
    board.change_version(ref("c"), content=None)
    verifier = ChainVerifier(board.start)
    assert [verifier.feed(chained) for chained in board.commits] == [None] * 7
    assert verifier.finish(board.chain_head()) is None
    assert verifier.coverage.opaque == 1


# Compaction


def test_a_value_passed_off_as_compacted_is_named() -> None:
    """Above the floor, and below it where nothing newer made it superfluous."""
    board = a_board()
    gone = {"compacted": True, "value": None, "content_type": "", "annotations": Annotations()}
    board.change_version(ref("d"), **gone)
    assert problem(board.verify()) == (7, Problem.COMPACTED_TOO_EARLY)
    board.compact(7)
    assert problem(board.verify()) == (7, Problem.COMPACTED_TOO_EARLY)


def test_a_value_superseded_only_above_the_floor_is_not_compacted() -> None:
    board = Board()
    board.commit(("a", b"one"))
    board.commit(("b", b"two"))
    board.commit(("a", b"three"))
    board.compact(2)
    board.change_version(ref("a"), compacted=True, value=None, content_type="", annotations=Annotations())
    assert problem(board.verify()) == (1, Problem.COMPACTED_TOO_EARLY)
    board.compact(3)
    assert board.verify() is None


def test_a_tombstone_above_the_floor_keeps_its_note() -> None:
    board = a_board()
    board.compact(2)
    board.change_version(ref("b", 2), compacted=True, annotations=Annotations())
    assert problem(board.verify()) == (3, Problem.COMPACTED_TOO_EARLY)


@pytest.mark.parametrize(
    "change",
    [
        {"derivations": ((SourceRef(*ref("b")),),)},
        {"trust": Trust.SYSTEM},
        {"principal": "mallory"},
        {"expire_time": 5},
    ],
)
def test_the_lineage_and_trust_of_a_compacted_version_are_still_checked(change: dict[str, Any]) -> None:
    board = a_board()
    board.compact(3)
    _, place, row = board.find(ref("a"))
    assert row.written.compacted
    rows = list(board.at(1).versions or ())
    rows[place] = replace(row, written=replace(row.written, **change))
    board.change(1, replace(board.at(1), versions=tuple(rows)))
    assert problem(board.verify()) == (1, Problem.VERSION_CHANGED)


# What readers are shown


def test_a_key_shown_at_an_older_version_is_named() -> None:
    board = a_board()
    current = board.current()
    old = board.find(ref("a", 1))[2].written
    place = next(number for number, row in enumerate(current) if row.key == "a")
    current[place] = replace(
        current[place], version=old.version, revision=old.mod_revision, op_index=old.op_index
    )
    assert problem(_verify_current(board, current)) == (2, Problem.CURRENT_WRONG)


def test_a_key_that_readers_are_told_is_not_there_is_named() -> None:
    board = a_board()
    current = [row for row in board.current() if row.key != "d"]
    assert problem(_verify_current(board, current)) == (7, Problem.CURRENT_WRONG)


def test_a_key_that_no_commit_made_is_named() -> None:
    board = a_board()
    forged = replace(board.current()[0], key=Key("forged"), revision=Revision(2))
    assert problem(_verify_current(board, [*board.current(), forged])) == (2, Problem.CURRENT_WRONG)


def _verify_current(board: Board, current: list[Any]) -> Finding | None:
    verifier = ChainVerifier(board.start, floor=board.floor)
    for chained in board.commits:
        assert verifier.feed(chained) is None
    return verifier.finish(board.chain_head(), current)


# What no server writes


@pytest.mark.parametrize(
    "change",
    [
        {"principal": "half a surrogate \ud800"},
        {"op_index": 1 << 80},
        {"commit_time": "yesterday"},
        {"key": 5},
        {"region": None},
    ],
)
def test_a_row_that_cannot_be_encoded_is_a_finding_not_a_crash(change: dict[str, Any]) -> None:
    board = a_board()
    revision, place, row = board.find(ref("d"))
    assert place == 0
    board.change(
        revision,
        replace(board.at(revision), versions=(replace(row, written=replace(row.written, **change)),)),
    )
    assert problem(_feed_all(board)) == (7, Problem.UNREADABLE)


def test_a_row_that_storage_could_not_read_is_named() -> None:
    board = a_board()
    board.change(2, replace(board.at(2), unreadable="notes are no JSON"))
    assert problem(_feed_all(board)) == (2, Problem.UNREADABLE)


def _feed_all(board: Board) -> Finding | None:
    verifier = ChainVerifier(board.start)
    for chained in board.commits:
        verifier.feed(chained)
    return verifier.finish(board.chain_head())


# Against a checkpoint


def _rewritten(board: Board, revision: int) -> None:
    """Change a commit and compute every hash from there on again, as anybody with the database can."""
    rows = board.at(revision)
    changed = replace(rows, commit=replace(rows.commit, request_id="forged"))
    board.change(revision, rehash(changed, board.at(revision - 1).hash if revision > 1 else board.start.hash))
    for later in range(revision + 1, board.head + 1):
        board.change(later, rehash(board.at(later), board.at(later - 1).hash))


@given(boards(), st.data())
def test_a_chain_written_anew_shows_only_against_a_checkpoint(board: Board, data: st.DataObject) -> None:
    kept = board.checkpoint()
    _rewritten(board, data.draw(st.integers(1, board.head)))
    assert board.verify() is None
    assert problem(board.verify(kept)) == (board.head, Problem.CHECKPOINT_MISMATCH)


@given(boards(least=2), st.data())
def test_one_commit_hashed_again_is_named_at_the_next(board: Board, data: st.DataObject) -> None:
    revision = data.draw(st.integers(1, board.head - 1))
    changed = replace(board.at(revision), commit=replace(board.at(revision).commit, request_id="forged"))
    board.change(revision, rehash(changed, board.at(revision - 1).hash if revision > 1 else board.start.hash))
    assert problem(board.verify()) == (revision + 1, Problem.COMMIT_CHANGED)


@given(boards(), st.integers(1, 3))
def test_an_older_copy_put_back_shows_only_against_a_checkpoint(board: Board, later: int) -> None:
    """The same as commits cut off with the board's row set back: what is left is a whole chain."""
    older = Board(list(board.commits), board.floor)
    for _ in range(later):
        board.commit(("a", b"later"))
    kept = board.checkpoint()
    assert older.verify() is None
    assert problem(older.verify(kept)) == (older.head + 1, Problem.TRUNCATED)


def test_several_checkpoints_narrow_down_where_a_chain_was_written_anew() -> None:
    board, kept = Board(), []
    for number in range(6):
        board.commit((f"k{number}", b"v"))
        kept.append(board.checkpoint())
    _rewritten(board, 4)
    finding = board.verify(*reversed(kept))
    assert problem(finding) == (4, Problem.CHECKPOINT_MISMATCH)
    assert finding is not None
    assert "after revision 3" in finding.detail


def test_a_checkpoint_is_compared_at_its_own_revision_alone() -> None:
    board = a_board()
    moved = replace(board.checkpoint(), hash=board.at(6).hash)
    assert problem(board.verify(moved)) == (7, Problem.CHECKPOINT_MISMATCH)


def test_a_checkpoint_of_an_empty_board_is_compared_too() -> None:
    board = Board()
    kept = board.checkpoint()
    assert board.verify(kept) is None
    board.commit(("a", b"one"))
    assert board.verify(kept) is None
    assert problem(board.verify(replace(kept, hash=bytes(32)))) == (0, Problem.CHECKPOINT_MISMATCH)


def test_verification_can_begin_at_a_checkpoint() -> None:
    board = Board()
    board.commit(("a", b"one"))
    board.commit(("a", b"two"))
    kept = board.checkpoint()
    board.lower(ref("a", 1), Trust.EXTERNAL)
    board.commit(("a", b"three"), ("b", b"four"))
    start = ChainStart.at_checkpoint(kept)
    assert board.verify(kept, board.checkpoint(), start=start) is None
    board.change_version(ref("b"), value=b"five")
    assert problem(board.verify(start=start)) == (4, Problem.VERSION_CHANGED)
    with pytest.raises(ValueError, match="before the start"):
        ChainVerifier(start, checkpoints=[replace(kept, revision=Revision(1))])


def test_a_floor_below_a_signed_one_is_named() -> None:
    board = a_board()
    board.compact(3)
    kept = board.checkpoint()
    board.floor = Revision(2)
    lower = board.checkpoint()
    verifier = ChainVerifier(board.start, checkpoints=[kept, lower])
    for chained in board.commits:
        assert verifier.feed(chained) is None
    assert problem(verifier.finish(board.chain_head())) == (0, Problem.HEAD_MISMATCH)


def test_a_checkpoint_of_another_board_or_life_is_named() -> None:
    board = a_board()
    kept = board.checkpoint()
    assert problem(board.verify(replace(kept, name="other"))) == (0, Problem.OTHER_BOARD)
    other = Incarnation("another")
    assert problem(board.verify(replace(kept, incarnation=other))) == (7, Problem.OTHER_INCARNATION)
    ahead = replace(kept, incarnation=other, revision=Revision(9))
    assert problem(board.verify(ahead)) == (7, Problem.OTHER_INCARNATION)


def test_a_board_that_began_a_new_life_is_one_chain() -> None:
    """The second genesis is linked to the last commit of the first life: neither can be exchanged."""
    board = a_board()
    first = board.checkpoint()
    born = ChainVerifier(board.start)
    for chained in board.commits:
        born.feed(chained)
    second = Incarnation("second-life")
    born.begin_incarnation(second)
    at_birth = replace(first, incarnation=second, hash=born.hash)
    life = Board(incarnation=second, start=ChainStart(BOARD, NAME, second, Revision(7), born.hash))
    life.commit(("z", b"later"))
    verifier = ChainVerifier(board.start, checkpoints=[at_birth, first, life.checkpoint()])
    for chained in board.commits:
        assert verifier.feed(chained) is None
    verifier.begin_incarnation(second)
    assert verifier.feed(life.commits[0]) is None
    assert verifier.finish(life.chain_head()) is None
    assert verifier.coverage.checkpoints == 3
    plain = ChainVerifier(board.start)
    for chained in board.commits:
        plain.feed(chained)
    assert problem(plain.feed(life.commits[0])) == (8, Problem.COMMIT_CHANGED)


def test_a_kept_checkpoint_is_read_or_is_itself_the_finding() -> None:
    signer, stranger = Ed25519Signer.generate(), Ed25519Signer.generate()
    board = a_board()
    checkpoint = board.checkpoint(signer.public_key)
    trusted = {signer.key_id: signer.public_key}
    text = sign(checkpoint, signer)
    assert read_checkpoint(text, board.start, trusted, signature_is_good) == checkpoint
    forged = sign(replace(checkpoint, key_id=key_id_of(stranger.public_key)), stranger)
    for bad in (forged, text.replace("revision 7", "revision 6"), "nothing"):
        found = read_checkpoint(bad, board.start, trusted, signature_is_good)
        assert isinstance(found, Finding)
        assert found.problem is Problem.BAD_CHECKPOINT
    other = ChainStart.of_board(BOARD, "other", LIFE)
    found = read_checkpoint(text, other, trusted, signature_is_good)
    assert isinstance(found, Finding)
    assert found.problem is Problem.OTHER_BOARD
