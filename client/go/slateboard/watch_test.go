package slateboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

type watchFunc = func(*v1.WatchRequest, grpc.ServerStreamingServer[v1.WatchResponse]) error

// follow collects `revision:keys` until the watch ends or `limit` batches came.
func follow(t *testing.T, board *Board, request *v1.WatchRequest, limit int) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []string
	for batch, err := range board.Watch(ctx, request) {
		if err != nil {
			return seen, err
		}
		line := fmt.Sprint(batch.Revision)
		for _, entry := range batch.Entries {
			line += ":" + entry.GetKey()
		}
		if seen = append(seen, line); len(seen) == limit {
			break
		}
	}
	return seen, nil
}

func TestAWatchResumesAfterTheLastCompleteRevision(t *testing.T) {
	f := &fake{onWatch: []watchFunc{
		script(status.Error(codes.Unavailable, "cut"), batch(5, true, "a"), batch(6, false, "b")),
		script(status.Error(codes.Unavailable, "cut"), batch(6, false, "b"), batch(6, true, "c"), progress(8)),
		script(nil, batch(8, true, "again"), batch(9, true, "d")),
	}}
	seen, err := follow(t, serve(t, f), &v1.WatchRequest{AfterRevision: proto.Int64(4)}, 3)
	if err != nil || !slices.Equal(seen, []string{"5:a", "6:b:c", "9:d"}) {
		t.Fatalf("%v, %v", seen, err)
	}
	var after []int64
	for _, request := range f.watches {
		after = append(after, request.GetAfterRevision())
	}
	if !slices.Equal(after, []int64{4, 5, 8}) {
		t.Errorf("resumed after %v", after)
	}
	if f.watches[0].GetIncarnation() != "" || f.watches[1].GetIncarnation() != "life-1" {
		t.Errorf("incarnations %q, %q", f.watches[0].GetIncarnation(), f.watches[1].GetIncarnation())
	}
}

func TestAWatchWithoutAPlaceStartsAtTheHead(t *testing.T) {
	f := &fake{head: 41, incarnation: "life-1", onWatch: []watchFunc{
		script(status.Error(codes.Unavailable, "cut before the first message")), script(nil, batch(42, true, "a")),
	}}
	seen, err := follow(t, serve(t, f), &v1.WatchRequest{}, 1)
	if err != nil || !slices.Equal(seen, []string{"42:a"}) {
		t.Fatalf("%v, %v", seen, err)
	}
	for _, request := range f.watches {
		if request.GetAfterRevision() != 41 || request.GetIncarnation() != "life-1" {
			t.Errorf("asked %v", request)
		}
	}
}

func TestAServerThatGoesAwayIsLeftForAnother(t *testing.T) {
	f := &fake{onWatch: []watchFunc{
		script(refusal(t, codes.Unavailable, "DRAINING"), batch(6, false, "b"), goingAway(6)),
		script(refusal(t, codes.Unavailable, "DRAINING"), batch(6, true, "b"), goingAway(7)),
		script(refusal(t, codes.ResourceExhausted, "WATCH_TOO_SLOW"), batch(8, true, "c")),
		script(nil, batch(9, true, "d")),
	}}
	seen, err := follow(t, serve(t, f), &v1.WatchRequest{AfterRevision: proto.Int64(5)}, 3)
	if err != nil || !slices.Equal(seen, []string{"6:b", "8:c", "9:d"}) {
		t.Fatalf("%v, %v", seen, err)
	}
	if after := f.watches[1].GetAfterRevision(); after != 5 {
		t.Errorf("resumed after %d with revision 6 half sent", after)
	}
	if after := f.watches[2].GetAfterRevision(); after != 7 {
		t.Errorf("resumed after %d, not where the server said", after)
	}
}

func TestAWatchEndsWhereItsPlaceIsGone(t *testing.T) {
	for reason, code := range map[string]codes.Code{
		"COMPACTED": codes.OutOfRange, "BOARD_REINCARNATED": codes.OutOfRange, "DENIED": codes.PermissionDenied,
	} {
		f := &fake{onWatch: []watchFunc{script(refusal(t, code, reason), batch(5, true, "a"))}}
		seen, err := follow(t, serve(t, f), &v1.WatchRequest{AfterRevision: proto.Int64(4)}, 9)
		var e *Error
		if !errors.As(err, &e) || e.Info.GetReason() != reason || len(seen) != 1 || len(f.watches) != 1 {
			t.Errorf("%s: %v after %v and %d streams", reason, err, seen, len(f.watches))
		}
	}
}

func TestASilentStreamIsTakenForDead(t *testing.T) {
	hang := func(_ *v1.WatchRequest, stream grpc.ServerStreamingServer[v1.WatchResponse]) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	f := &fake{onWatch: []watchFunc{hang, script(nil, batch(5, true, "a"))}}
	seen, err := follow(t, serve(t, f), &v1.WatchRequest{
		AfterRevision: proto.Int64(4), ProgressInterval: durationpb.New(20 * time.Millisecond),
	}, 1)
	if err != nil || len(seen) != 1 || len(f.watches) != 2 {
		t.Errorf("%v, %v after %d streams", seen, err, len(f.watches))
	}
}

func TestAServerThatIsGoneEndsTheWatchInTheEnd(t *testing.T) {
	f := &fake{onWatch: []watchFunc{script(status.Error(codes.Unavailable, "gone"))}}
	_, err := follow(t, serve(t, f), &v1.WatchRequest{AfterRevision: proto.Int64(4)}, 1)
	if AsError(err).Code != codes.Unavailable || len(f.watches) != quick.Attempts {
		t.Errorf("%v after %d streams", err, len(f.watches))
	}
}

func TestACancelledWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	f := &fake{onWatch: []watchFunc{script(nil, batch(5, true, "a"))}}
	var last error
	for _, err := range serve(t, f).Watch(ctx, &v1.WatchRequest{AfterRevision: proto.Int64(4)}) {
		last = err
		cancel(enough)
	}
	if !errors.Is(last, enough) {
		t.Error(last)
	}
}
