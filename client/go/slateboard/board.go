package slateboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// Board is the shared region of one board.
type Board struct {
	client *Client
	name   string
}

// Name is the board's name.
func (b *Board) Name() string { return b.name }

// Get reads the present version of a key. ErrNotFound: it is absent.
func (b *Board) Get(ctx context.Context, key string) (*v1.Entry, error) {
	request := &v1.GetRequest{Board: b.name, Keys: []*v1.KeyRef{{Key: key}}}
	reply, err := retrying(ctx, b.client.retry, func(ctx context.Context) (*v1.GetResponse, error) {
		return b.client.Entries.Get(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	if len(reply.GetEntries()) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	return reply.GetEntries()[0], nil
}

// Commit applies all ops of a request or none.
//
// It fills in the board, and the request id where there is none, in the caller's own message: after an error whose
// outcome is unknown (a deadline, a cancelled context, UNAVAILABLE beyond the retries) Commit may be called again with
// that very message, and the server answers what happened the first time. A conflict is an *Error with Conflict set and
// is never retried here, since only the caller can decide anew; see Update.
func (b *Board) Commit(ctx context.Context, request *v1.CommitRequest) (*v1.CommitResponse, error) {
	request.Board = b.name
	if request.GetRequestId() == "" && !request.GetValidateOnly() {
		request.RequestId = NewRequestID()
	}
	return retrying(ctx, b.client.retry, func(ctx context.Context) (*v1.CommitResponse, error) {
		return b.client.Entries.Commit(ctx, request)
	})
}

// Put writes one key under a precondition: Absent, Present or Version.
func (b *Board) Put(ctx context.Context, key string, content *v1.Content, when *v1.Precondition) (*v1.OpResult, error) {
	reply, err := b.Commit(ctx, &v1.CommitRequest{Ops: []*v1.Op{PutOp(key, content, when)}})
	if err != nil {
		return nil, err
	}
	return reply.GetResults()[0], nil
}

// Update changes one key: it reads the key, asks `change` what it becomes (given nil where it is absent), and commits
// that on condition that nobody wrote in between. Where somebody did, it begins again with what is there now, a bounded
// number of times. `change` may therefore run more than once; an error from it ends the update.
//
// The version that was read becomes a source of the new one, unless `change` gives derivations or waives them.
func (b *Board) Update(
	ctx context.Context, key string, change func(current *v1.Entry) (*v1.Content, error),
) (*v1.OpResult, error) {
	for attempt := 1; ; attempt++ {
		current, err := b.Get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		content, err := change(current)
		if err != nil {
			return nil, err
		}
		when := Absent()
		if current != nil {
			when = Version(current.GetVersion())
			content = derivedFrom(content, current)
		}
		result, err := b.Put(ctx, key, content, when)
		if err == nil {
			return result, nil
		}
		e := AsError(err)
		if !e.Contention() || attempt >= b.client.retry.Attempts {
			return nil, e
		}
		if b.client.retry.wait(ctx, attempt, e.RetryAfter) != nil {
			return nil, e
		}
	}
}

// derivedFrom is `content` with `source` among its origins, where its writer said nothing about them.
func derivedFrom(content *v1.Content, source *v1.Entry) *v1.Content {
	origin := content.GetProvenance()
	if len(origin.GetDerivations()) > 0 || origin.GetDerivationWaived() {
		return content
	}
	content = proto.CloneOf(content)
	if content.Provenance == nil {
		content.Provenance = &v1.Provenance{}
	}
	content.Provenance.Derivations = []*v1.Derivation{{Sources: []*v1.Source{
		{Region: source.GetRegion(), Key: source.GetKey(), Version: source.GetVersion()},
	}}}
	return content
}

// PutOp is an op that writes a key.
func PutOp(key string, content *v1.Content, when *v1.Precondition) *v1.Op {
	return &v1.Op{Kind: &v1.Op_Put{
		Put: &v1.PutOp{Key: &v1.KeyRef{Key: key}, Content: content, Precondition: when},
	}}
}

// DeleteOp is an op that deletes a key.
func DeleteOp(key string, when *v1.Precondition) *v1.Op {
	return &v1.Op{Kind: &v1.Op_Delete{Delete: &v1.DeleteOp{Key: &v1.KeyRef{Key: key}, Precondition: when}}}
}

// AppendOp is an op that adds a value under a key that the server names, below `prefix`, which ends with '/'.
func AppendOp(prefix string, content *v1.Content) *v1.Op {
	return &v1.Op{Kind: &v1.Op_Append{
		Append: &v1.AppendOp{Prefix: &v1.PrefixRef{Prefix: prefix}, Content: content},
	}}
}

// JSON is content of type application/json.
func JSON(value []byte) *v1.Content {
	return &v1.Content{Value: value, ContentType: "application/json"}
}

// Absent holds where the key is absent.
func Absent() *v1.Precondition {
	return &v1.Precondition{Condition: &v1.Precondition_MustNotExist{MustNotExist: true}}
}

// Present holds where the key is present.
func Present() *v1.Precondition {
	return &v1.Precondition{Condition: &v1.Precondition_MustExist{MustExist: true}}
}

// Version holds where the key is present at this version.
func Version(version int64) *v1.Precondition {
	return &v1.Precondition{Condition: &v1.Precondition_VersionEquals{VersionEquals: version}}
}

// NewRequestID is a fresh random UUID (version 4).
func NewRequestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
