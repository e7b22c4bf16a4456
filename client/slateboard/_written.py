"""What a write made, from what was sent and what the reply says."""

from slateboard import _entries, _results
from slateboard._entries import Entry
from slateboard._enums import Kind
from slateboard._ops import Append, Put
from slateboard._results import CommitResult


def written(board: str, op: Put | Append, result: CommitResult, index: int) -> Entry:
    """The entry that an op of a commit made, as far as the reply tells."""
    done: _results.OpResult = result.results[index]
    options = op.options
    own = op.content.provenance
    return Entry(
        board=board,
        region=done.region,
        key=done.key,
        version=done.version,
        etag=done.etag,
        create_revision=done.create_revision,
        mod_revision=result.revision,
        commit_time=result.commit_time,
        incarnation=result.incarnation,
        size=len(op.content.value),
        raw=op.content.value,
        content_type=op.content.content_type,
        kind=options.get("kind", Kind.WORKING),
        subject=op.content.subject,
        attribute=op.content.attribute,
        topics=tuple(op.content.topics),
        labels=dict(op.content.labels),
        confidence=options.get("confidence", 1.0),
        importance=options.get("importance", 0.5),
        valid_from=options.get("valid_from"),
        valid_to=options.get("valid_to"),
        expire_time=done.expire_time or options.get("expire_time"),
        trust=done.trust,
        provenance=_entries.Provenance(
            turn=own.turn,
            tool=own.tool,
            source_uris=tuple(own.source_uris),
            traceparent=own.traceparent,
            note=own.note,
        ),
    )
