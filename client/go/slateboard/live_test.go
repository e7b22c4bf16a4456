package slateboard

// Tests against a real server: SLATE_SERVER and SLATE_TOKEN name it, and the token must be allowed to make boards.
// tests/stubs/test_go_example.py starts one and runs them; they are skipped elsewhere.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/proto"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// liveBoard makes a board of its own on the real server.
func liveBoard(t *testing.T) *Board {
	t.Helper()
	if os.Getenv("SLATE_SERVER") == "" {
		t.Skip("SLATE_SERVER names no server")
	}
	client, err := Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	name := "go-" + NewRequestID()[:8]
	_, err = client.Boards.CreateBoard(t.Context(), &v1.CreateBoardRequest{Name: name, RequestId: NewRequestID()})
	if err != nil {
		t.Fatal(err)
	}
	return client.Board(name)
}

// through is the same board over a connection that the test can cut.
func through(t *testing.T, p *proxy, board *Board) *Board {
	t.Helper()
	client, err := Connect(WithAddress(p.listener.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client.Board(board.name)
}

func number(t *testing.T, content *v1.Content) (n int) {
	t.Helper()
	if err := json.Unmarshal(content.GetValue(), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func count(n int) *v1.Content { return JSON(fmt.Append(nil, n)) }

func TestLiveTheSecondOfTwoWritersGetsATypedConflict(t *testing.T) {
	board := liveBoard(t)
	if _, err := board.Put(t.Context(), "plan/current", count(1), Absent()); err != nil {
		t.Fatal(err)
	}
	read, err := board.Get(t.Context(), "plan/current") // both writers read this
	if err != nil {
		t.Fatal(err)
	}
	if _, err := board.Put(t.Context(), "plan/current", count(2), Version(read.GetVersion())); err != nil {
		t.Fatal(err)
	}
	_, err = board.Put(t.Context(), "plan/current", count(3), Version(read.GetVersion()))

	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%T: %v", err, err)
	}
	if e.Code != codes.Aborted || e.Reason != v1.ErrorReason_ERROR_REASON_VERSION_CONFLICT || e.RetryAfter <= 0 {
		t.Errorf("code %v, reason %v, retry after %v", e.Code, e.Reason, e.RetryAfter)
	}
	me, err := board.client.Admin.WhoAmI(t.Context(), &v1.WhoAmIRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Conflict.GetViolations()) != 1 {
		t.Fatalf("conflict %v", e.Conflict)
	}
	v := e.Conflict.GetViolations()[0]
	if v.GetKey() != "plan/current" || v.GetCurrentVersion() != 2 ||
		v.GetCurrentPrincipal() != me.GetPrincipal().GetId() || v.GetReason() != "VERSION_CONFLICT" {
		t.Errorf("violation %v", v)
	}
	kept, err := board.client.Entries.GetConflict(t.Context(), &v1.GetConflictRequest{
		Board: board.name, ConflictId: e.Conflict.GetConflictId(),
	})
	if err != nil || kept.GetConflict().GetViolations()[0].GetKey() != "plan/current" {
		t.Errorf("%v, %v", kept, err)
	}
}

func TestLiveNoUpdateOfRacingWritersIsLost(t *testing.T) {
	board := liveBoard(t)
	const writers, each = 4, 5
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				_, err := board.Update(t.Context(), "counter", func(current *v1.Entry) (*v1.Content, error) {
					if current == nil {
						return count(1), nil
					}
					return count(number(t, current.GetContent()) + 1), nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	entry, err := board.Get(t.Context(), "counter")
	if err != nil || number(t, entry.GetContent()) != writers*each {
		t.Errorf("%v, %v", entry, err)
	}
}

func TestLiveARetryAfterALostReplyIsAnsweredAndNotRepeated(t *testing.T) {
	board, p := liveBoard(t), startProxy(t)
	far := through(t, p, board)
	if _, err := far.Get(t.Context(), "log"); !errors.Is(err, ErrNotFound) { // connected
		t.Fatal(err)
	}
	p.swallow() // the server's reply will not arrive
	outcome := make(chan *v1.CommitResponse, 1)
	go func() {
		defer close(outcome)
		reply, err := far.Commit(t.Context(), &v1.CommitRequest{
			Ops: []*v1.Op{AppendOp("log/", JSON([]byte(`"once"`)))},
		})
		if err != nil {
			t.Error(err)
			return
		}
		outcome <- reply
	}()
	for _, err := range board.Watch(t.Context(), &v1.WatchRequest{AfterRevision: proto.Int64(0)}) {
		if err != nil {
			t.Fatal(err)
		}
		break // it is committed
	}
	p.cut()
	if reply := <-outcome; !reply.GetReplayed() {
		t.Errorf("reply %v", reply)
	}
	list, err := board.client.Entries.List(t.Context(), &v1.ListRequest{
		Board: board.name, Prefix: &v1.PrefixRef{Prefix: "log/"},
	})
	if err != nil || len(list.GetEntries()) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestLiveAWatchMissesNothingWhileItsConnectionIsCut(t *testing.T) {
	board, p := liveBoard(t), startProxy(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	write := func(n int) {
		key := fmt.Sprintf("step/%d", n)
		if _, err := board.Put(ctx, key, count(n), Absent()); err != nil {
			t.Error(err)
		}
	}
	write(1)
	var seen []string
	last := int64(0)
	request := &v1.WatchRequest{
		AfterRevision: proto.Int64(0), Prefixes: []*v1.PrefixRef{{Prefix: "step/"}},
	}
	for batch, err := range through(t, p, board).Watch(ctx, request) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.Revision <= last {
			t.Errorf("revision %d after %d", batch.Revision, last)
		}
		last = batch.Revision
		seen = append(seen, batch.Entries[0].GetKey())
		switch len(seen) {
		case 1, 3:
			p.refuse(true)
			p.cut()
			write(len(seen) + 1)
			write(len(seen) + 2)
			p.refuse(false)
		case 5:
			cancel()
		}
		if ctx.Err() != nil {
			break
		}
	}
	if !slices.Equal(seen, []string{"step/1", "step/2", "step/3", "step/4", "step/5"}) {
		t.Errorf("seen %v", seen)
	}
	if p.connections() < 3 {
		t.Errorf("only %d connections: nothing was resumed", p.connections())
	}
}

func TestLiveAWatchFromAnotherLifeOfTheBoardIsRefused(t *testing.T) {
	board := liveBoard(t)
	for _, err := range board.Watch(t.Context(), &v1.WatchRequest{
		AfterRevision: proto.Int64(0), Incarnation: "another",
	}) {
		var e *Error
		if !errors.As(err, &e) || e.Reason != v1.ErrorReason_ERROR_REASON_BOARD_REINCARNATED {
			t.Errorf("%v", err)
		}
	}
}

// Pings on a connection without calls are what a server that counts them as abuse would close it for.
func TestLiveKeepaliveIsWelcome(t *testing.T) {
	board := liveBoard(t)
	if os.Getenv("SLATE_LONG_TESTS") == "" {
		t.Skip("takes 90 s; SLATE_LONG_TESTS=1 runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if board.client.conn.GetState() != connectivity.Ready {
		t.Fatal("not connected")
	}
	if board.client.conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("the connection was closed")
	}
}

// proxy is a TCP proxy in front of the server that breaks on command.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	open     []net.Conn
	made     int
	refusing bool
	muted    map[net.Conn]bool
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, muted: map[net.Conn]bool{}}
	t.Cleanup(func() { listener.Close(); p.cut() })
	address := os.Getenv("SLATE_SERVER")
	address = address[strings.LastIndex(address, "/")+1:]
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(near, address)
		}
	}()
	return p
}

func (p *proxy) serve(near net.Conn, address string) {
	defer near.Close()
	p.mu.Lock()
	refusing := p.refusing
	p.mu.Unlock()
	if refusing {
		return
	}
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	p.mu.Lock()
	p.made++
	p.open = append(p.open, near, far)
	p.mu.Unlock()
	go func() { io.Copy(far, near); far.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := far.Read(buffer)
		p.mu.Lock()
		muted := p.muted[near]
		p.mu.Unlock()
		if err != nil {
			return
		}
		if !muted {
			if _, err := near.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
}

// swallow keeps back what the server says on the present connections, until they are cut.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		p.muted[c] = true
	}
}

// cut closes the present connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

func (p *proxy) refuse(refusing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = refusing
}

func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}
