"""Hypothesis strategies for commits on a small board: few keys, so that they meet; every kind of op and condition."""

from __future__ import annotations

from hypothesis import strategies as st

from slateboard_server.domain.commit import Append, CommitItem, Delete, Guard, Op, Precondition, Put
from slateboard_server.domain.entry import OpRef, SourceRef
from slateboard_server.domain.errors import SlateboardError
from slateboard_server.domain.etag import make_etag
from slateboard_server.domain.policy import AnyState, Policy, Quota, Rule, Scope, WriteMode
from slateboard_server.domain.values import SECOND, Key, Micros, PrincipalId, Region, Trust, Version
from tests.judging import (
    ABSENT,
    ANY,
    INCARNATION,
    OPERATOR,
    PRESENT,
    RIVAL,
    SECRET,
    SHARED,
    START,
    SUPERVISOR,
    WORKER,
    append,
    at_version,
    commit,
    content,
    delete,
    no_change_under,
    put,
    source,
    unchanged,
    with_etag,
)

PRINCIPALS = st.sampled_from([WORKER, RIVAL, SUPERVISOR, OPERATOR])
MINE = Region(f"private/{WORKER}")
PLACES = st.sampled_from(
    [
        (SHARED, "plan/a"),
        (SHARED, "plan/b"),
        (SHARED, "planner"),
        (SHARED, "law/1"),
        (SHARED, "tmp/x"),
        (MINE, "plan/a"),
    ]
)
PREFIXES = st.sampled_from(["", "plan/", "log/"])
VERSIONS = st.sampled_from([1, 1, 1, 2, 2, 3, 4])

POLICIES = st.builds(
    lambda any_state, quota, rules: Policy(
        rules=(Rule(Scope.SHARED, any_state=any_state), *rules), quota=quota
    ),
    st.sampled_from([AnyState.ALLOWED, AnyState.ALLOWED, AnyState.UNSET]),
    st.builds(
        Quota,
        max_entries=st.sampled_from([0, 0, 3]),
        max_bytes=st.sampled_from([0, 0, 12]),
        max_commits_per_second=st.sampled_from([0, 0, 3]),
    ),
    st.lists(
        st.sampled_from(
            [
                Rule(Scope.SHARED, "law/", WriteMode.READ_ONLY),
                Rule(Scope.SHARED, "tmp/", default_ttl=2 * SECOND),
                Rule(Scope.SHARED, "plan/", min_trust=Trust.AGENT, quota=Quota(max_entries=2)),
                Rule(Scope.PRIVATE, "", any_state=AnyState.FORBIDDEN, quota=Quota(max_bytes=9)),
            ]
        ),
        unique_by=lambda rule: (rule.scope, rule.prefix),
        max_size=4,
    ),
)


def preconditions(region: Region, key: str) -> st.SearchStrategy[Precondition]:
    return st.sampled_from([ABSENT, ABSENT, PRESENT, ANY]) | VERSIONS.flatmap(
        lambda version: st.sampled_from(
            [
                at_version(version),
                with_etag(make_etag(SECRET, INCARNATION, region, key, Version(version))),
            ]
        )
    )


@st.composite
def contents(draw: st.DrawFn, index: int, now: int) -> object:
    stored = st.tuples(PLACES, VERSIONS).map(lambda named: source(named[0][1], named[1], named[0][0]))
    sources: st.SearchStrategy[SourceRef | OpRef] = stored
    if index:
        sources |= st.integers(0, index - 1).map(OpRef)
    return content(
        draw(st.binary(max_size=6)),
        trust=draw(st.none() | st.sampled_from(Trust)),
        sources=draw(
            st.sampled_from([0, 0, 0, 1]).flatmap(
                lambda few: st.lists(st.lists(sources, min_size=1, max_size=2), max_size=few)
            )
        ),
        expire_time=draw(st.none() | st.none() | st.integers(0, 4).map(lambda s: now + s * SECOND)),
    )


@st.composite
def commits(draw: st.DrawFn, now: Micros = START, head: int = 0) -> CommitItem:
    """One commit; `now` and `head` only bring its times and guards near to where the board is."""
    by: PrincipalId = draw(PRINCIPALS)
    ops: list[Op] = []
    for index in range(draw(st.integers(1, 3))):
        region, key = draw(PLACES)
        if region == MINE and by in {RIVAL, SUPERVISOR} and draw(st.sampled_from([True, True, False])):
            region = SHARED
        kind = draw(st.sampled_from([Put, Put, Delete, Append]))
        new = draw(contents(index, now))
        if kind is Append:
            ops.append(append("log/", new, region))  # type: ignore[arg-type]  # a composite strategy gives object
        elif kind is Delete:
            ops.append(delete(key, draw(preconditions(region, key)), region))
        else:
            ops.append(put(key, draw(preconditions(region, key)), new, region))  # type: ignore[arg-type]  # same
    guards: list[Guard] = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        region, key = draw(PLACES)
        guards.append(
            unchanged(key, draw(st.integers(0, 3)), region)
            if draw(st.booleans())
            else no_change_under(
                draw(PREFIXES), max(0, head - draw(st.sampled_from([0, 0, 1, 1, 2, 4, -1]))), region
            )
        )
    request_id = draw(st.none() | st.sampled_from(["r-1", "r-2"]))
    try:
        return commit(
            *ops,
            by=by,
            guards=guards,
            request_id=request_id,
            validate_only=draw(st.sampled_from([False] * 7 + [True])),
        )
    except SlateboardError:  # a key twice, or an op that refers to a delete: refused before the judge sees it
        return commit(put(Key("plan/a"), ABSENT), by=by, request_id=request_id)


@st.composite
def batches(draw: st.DrawFn, max_size: int = 8) -> list[CommitItem]:
    """Several commits, some of them twice: clients retry."""
    items = draw(st.lists(commits(), max_size=max_size))
    return items + draw(st.lists(st.sampled_from(items), max_size=2) if items else st.just([]))
