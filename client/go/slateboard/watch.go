package slateboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// Batch is everything visible that one revision changed.
type Batch struct {
	Revision    int64
	Incarnation string
	CommitTime  time.Time
	Principal   string
	SessionID   string
	// Entries whose Tombstone is set mark deletions.
	Entries []*v1.Entry
}

const (
	defaultProgress = 10 * time.Second // the server's, where the request names none
	missedProgress  = 3                // that many intervals of silence are a dead stream
)

var (
	errStopped = errors.New("slateboard: the consumer stopped")
	errSilent  = errors.New("slateboard: no message and no progress for too long")
)

// Watch follows the board: one batch a revision, in order, each once, over any number of reconnects.
//
//	for batch, err := range board.Watch(ctx, &v1.WatchRequest{Prefixes: ...}) {
//		if err != nil { return err } // the last pair; nothing follows it
//		...
//	}
//
// It begins after request.AfterRevision, or at the board's head. To start from the present state, List first and
// watch after the revision in its header. The sequence ends with the context's error, with COMPACTED or
// BOARD_REINCARNATED where the place to resume from is gone (read the state anew), with a denial, or once the server
// could not be reached for all of the client's attempts; every batch that was yielded before is complete.
func (b *Board) Watch(ctx context.Context, request *v1.WatchRequest) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		w := &watch{board: b, request: proto.CloneOf(request), yield: yield}
		w.request.Board = b.name
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// watch is one run of Watch. Where it stands is in the request itself: AfterRevision and Incarnation.
type watch struct {
	board   *Board
	request *v1.WatchRequest
	yield   func(*Batch, error) bool
	// partial gathers a batch that comes in several messages. It dies with its stream.
	partial *Batch
	// heard tells whether the present stream brought a message.
	heard bool
}

func (w *watch) run(ctx context.Context) error {
	if w.request.GetSnapshot() {
		return errors.New("slateboard: Watch resumes by revision: List first, then watch after its revision")
	}
	if w.request.AfterRevision == nil {
		// A stream that breaks before its first message has told no revision to resume from, so ask for one.
		if err := w.startAtHead(ctx); err != nil {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		err := w.follow(ctx)
		if errors.Is(err, errStopped) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if w.heard { // it had worked: come back at once, elsewhere if the server said that it is going away
			attempt = 1
		}
		e := AsError(err)
		if !resumable(err, e) || attempt >= w.board.client.retry.Attempts {
			return e
		}
		if w.board.client.retry.wait(ctx, attempt, e.RetryAfter) != nil {
			return context.Cause(ctx)
		}
	}
}

// resumable tells whether a new stream would get further than the one that ended so.
func resumable(err error, e *Error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, errSilent) || e.Transient() ||
		e.Reason == v1.ErrorReason_ERROR_REASON_WATCH_TOO_SLOW ||
		// A proxy or the network cut the stream; the server itself always gives a reason.
		(e.Info == nil && (e.Code == codes.Internal || e.Code == codes.Canceled))
}

func (w *watch) startAtHead(ctx context.Context) error {
	request := &v1.GetBoardRequest{Board: w.request.GetBoard()}
	reply, err := retrying(ctx, w.board.client.retry, func(ctx context.Context) (*v1.GetBoardResponse, error) {
		return w.board.client.Boards.GetBoard(ctx, request)
	})
	if err != nil {
		return err
	}
	w.request.AfterRevision = proto.Int64(reply.GetHeader().GetRevision())
	w.request.Incarnation = reply.GetHeader().GetIncarnation()
	return nil
}

// follow runs one stream to its end and says why it ended.
func (w *watch) follow(ctx context.Context) error {
	w.partial, w.heard = nil, false
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := missedProgress * w.progressInterval()
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()

	stream, err := w.board.client.Entries.Watch(ctx, w.request)
	for err == nil {
		var message *v1.WatchResponse
		if message, err = stream.Recv(); err != nil {
			break
		}
		silent.Stop() // the consumer may take its time
		w.heard = true
		if err = w.take(message); err == nil {
			silent.Reset(silence)
		}
	}
	if context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return err
}

func (w *watch) progressInterval() time.Duration {
	if interval := w.request.GetProgressInterval().AsDuration(); interval > 0 {
		return interval
	}
	return defaultProgress
}

// take hands a message on and moves the place to resume from.
func (w *watch) take(message *v1.WatchResponse) error {
	header := message.GetHeader()
	if w.request.Incarnation == "" {
		w.request.Incarnation = header.GetIncarnation()
	}
	part := message.GetBatch()
	if part == nil {
		// Progress, or the server is going away: all up to this revision was sent.
		reached := header.GetRevision()
		if w.partial != nil {
			reached = min(reached, w.partial.Revision-1)
		}
		w.moveTo(reached)
		return nil
	}
	if part.GetRevision() <= w.request.GetAfterRevision() {
		return nil // seen already
	}
	if w.partial == nil {
		w.partial = &Batch{
			Revision:    part.GetRevision(),
			Incarnation: w.request.GetIncarnation(),
			CommitTime:  part.GetCommitTime().AsTime(),
			Principal:   part.GetPrincipal(),
			SessionID:   part.GetSessionId(),
		}
	}
	if w.partial.Revision != part.GetRevision() {
		return fmt.Errorf("slateboard: revision %d began before %d was complete", part.GetRevision(), w.partial.Revision)
	}
	w.partial.Entries = append(w.partial.Entries, part.GetEntries()...)
	if part.GetContinues() {
		return nil
	}
	batch := w.partial
	w.partial = nil
	if !w.yield(batch, nil) {
		return errStopped
	}
	w.moveTo(batch.Revision)
	return nil
}

func (w *watch) moveTo(revision int64) {
	w.request.AfterRevision = proto.Int64(max(revision, w.request.GetAfterRevision()))
}
