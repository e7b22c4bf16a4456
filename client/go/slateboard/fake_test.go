package slateboard

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// fake is a server whose answers a test writes down; it records what it was asked.
type fake struct {
	v1.UnimplementedEntryServiceServer
	v1.UnimplementedBoardServiceServer

	head        int64
	incarnation string
	// The n-th call gets the n-th answer, later ones the last.
	onGet    []func() (*v1.GetResponse, error)
	onCommit []func(*v1.CommitRequest) (*v1.CommitResponse, error)
	onWatch  []func(*v1.WatchRequest, grpc.ServerStreamingServer[v1.WatchResponse]) error

	mu             sync.Mutex
	commits        []*v1.CommitRequest
	gets           int
	watches        []*v1.WatchRequest
	authorizations []string
}

func answer[T any](answers []T, n int) T { return answers[min(n, len(answers)-1)] }

func (f *fake) GetBoard(ctx context.Context, r *v1.GetBoardRequest) (*v1.GetBoardResponse, error) {
	return &v1.GetBoardResponse{Header: &v1.ResponseHeader{Revision: f.head, Incarnation: f.incarnation}}, nil
}

func (f *fake) Get(ctx context.Context, r *v1.GetRequest) (*v1.GetResponse, error) {
	f.mu.Lock()
	f.gets++
	n := f.gets
	md, _ := metadata.FromIncomingContext(ctx)
	f.authorizations = append(f.authorizations, md.Get("authorization")...)
	f.mu.Unlock()
	return answer(f.onGet, n-1)()
}

func (f *fake) Commit(ctx context.Context, r *v1.CommitRequest) (*v1.CommitResponse, error) {
	f.mu.Lock()
	f.commits = append(f.commits, r)
	n := len(f.commits)
	f.mu.Unlock()
	return answer(f.onCommit, n-1)(r)
}

func (f *fake) Watch(r *v1.WatchRequest, stream grpc.ServerStreamingServer[v1.WatchResponse]) error {
	f.mu.Lock()
	f.watches = append(f.watches, r)
	n := len(f.watches)
	f.mu.Unlock()
	return answer(f.onWatch, n-1)(r, stream)
}

var quick = Retry{Attempts: 4, Base: time.Millisecond, Max: 4 * time.Millisecond}

// serve starts the fake and connects to it.
func serve(t *testing.T, f *fake) *Board {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1.RegisterEntryServiceServer(server, f)
	v1.RegisterBoardServiceServer(server, f)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	client, err := Connect(WithAddress(listener.Addr().String()), WithToken("secret"), WithRetry(quick))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client.Board("orders")
}

// refusal is a status as the server makes it.
func refusal(t *testing.T, code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	t.Helper()
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: Domain}}, more...)
	st, err := status.New(code, "refused").WithDetails(details...)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func retryAfter(d time.Duration) protoadapt.MessageV1 {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

func batch(revision int64, complete bool, keys ...string) *v1.WatchResponse {
	b := &v1.WatchBatch{Revision: revision, Continues: !complete}
	for _, key := range keys {
		b.Entries = append(b.Entries, &v1.Entry{Key: key})
	}
	return &v1.WatchResponse{
		Header: &v1.ResponseHeader{Revision: revision, Incarnation: "life-1"},
		Event:  &v1.WatchResponse_Batch{Batch: b},
	}
}

func progress(revision int64) *v1.WatchResponse {
	return &v1.WatchResponse{
		Header: &v1.ResponseHeader{Revision: revision, Incarnation: "life-1"},
		Event:  &v1.WatchResponse_Progress{Progress: &v1.WatchProgress{}},
	}
}

func goingAway(revision int64) *v1.WatchResponse {
	return &v1.WatchResponse{
		Header: &v1.ResponseHeader{Revision: revision, Incarnation: "life-1"},
		Event:  &v1.WatchResponse_GoingAway{GoingAway: &v1.WatchGoingAway{Reason: "stopping"}},
	}
}

// script answers a watch with messages and then ends it.
func script(end error, messages ...*v1.WatchResponse) func(
	*v1.WatchRequest, grpc.ServerStreamingServer[v1.WatchResponse]) error {
	return func(_ *v1.WatchRequest, stream grpc.ServerStreamingServer[v1.WatchResponse]) error {
		for _, message := range messages {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
		return end
	}
}
