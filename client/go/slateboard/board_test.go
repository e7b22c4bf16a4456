package slateboard

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

func present(version int64) func() (*v1.GetResponse, error) {
	return func() (*v1.GetResponse, error) {
		return &v1.GetResponse{Entries: []*v1.Entry{{Region: "shared", Key: "plan", Version: version}}}, nil
	}
}

func accepted(*v1.CommitRequest) (*v1.CommitResponse, error) {
	return &v1.CommitResponse{Results: []*v1.OpResult{{Key: "plan", Version: 9, Changed: true}}}, nil
}

func refused(err error) func(*v1.CommitRequest) (*v1.CommitResponse, error) {
	return func(*v1.CommitRequest) (*v1.CommitResponse, error) { return nil, err }
}

func TestTheTokenTravelsAsABearer(t *testing.T) {
	f := &fake{onGet: []func() (*v1.GetResponse, error){present(1)}}
	if _, err := serve(t, f).Get(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	if len(f.authorizations) != 1 || f.authorizations[0] != "Bearer secret" {
		t.Errorf("authorization: %q", f.authorizations)
	}
}

func TestPlainTextIsSpokenOnLoopbackOnly(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:7400": true, "localhost:7400": true, "[::1]:7400": true, "dns:///127.0.0.1:7400": true,
		"10.0.0.1:7400": false, "board.example:7400": false, "dns:///board.example:7400": false, "127.0.0.1": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("isLoopback(%q) = %v", address, got)
		}
	}
}

func TestConnectingWithoutATokenIsRefused(t *testing.T) {
	t.Setenv("SLATE_TOKEN", "")
	if _, err := Connect(); err == nil {
		t.Error("no error")
	}
}

func TestAnAbsentKeyIsNotFound(t *testing.T) {
	f := &fake{onGet: []func() (*v1.GetResponse, error){
		func() (*v1.GetResponse, error) { return &v1.GetResponse{}, nil },
	}}
	if _, err := serve(t, f).Get(t.Context(), "plan"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestACommitIsRetriedUnderItsOwnRequestID(t *testing.T) {
	f := &fake{onCommit: []func(*v1.CommitRequest) (*v1.CommitResponse, error){
		refused(refusal(t, codes.Unavailable, "STORAGE_DOWN")),
		refused(refusal(t, codes.ResourceExhausted, "RATE_LIMITED", retryAfter(time.Millisecond))),
		accepted,
	}}
	if _, err := serve(t, f).Put(t.Context(), "plan", JSON([]byte(`1`)), Absent()); err != nil {
		t.Fatal(err)
	}
	if len(f.commits) != 3 {
		t.Fatalf("%d commits", len(f.commits))
	}
	for _, request := range f.commits {
		if request.GetRequestId() == "" || request.GetRequestId() != f.commits[0].GetRequestId() {
			t.Errorf("request id %q after %q", request.GetRequestId(), f.commits[0].GetRequestId())
		}
	}
}

func TestRetriesAreBounded(t *testing.T) {
	f := &fake{onCommit: []func(*v1.CommitRequest) (*v1.CommitResponse, error){
		refused(refusal(t, codes.Unavailable, "STORAGE_DOWN")),
	}}
	_, err := serve(t, f).Put(t.Context(), "plan", JSON([]byte(`1`)), Absent())
	if status.Code(err) != codes.Unavailable || len(f.commits) != quick.Attempts {
		t.Errorf("%v after %d commits", err, len(f.commits))
	}
}

func TestAConflictIsTypedAndNotRetried(t *testing.T) {
	f := &fake{onCommit: []func(*v1.CommitRequest) (*v1.CommitResponse, error){
		refused(refusal(t, codes.Aborted, "VERSION_CONFLICT", &v1.ConflictDetail{
			ConflictId: "c-1", Violations: []*v1.Violation{{Key: "plan", CurrentVersion: 4, CurrentPrincipal: "ann"}},
		}, retryAfter(30*time.Millisecond))),
	}}
	_, err := serve(t, f).Put(t.Context(), "plan", JSON([]byte(`1`)), Version(3))
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%T: %v", err, err)
	}
	if e.Reason != v1.ErrorReason_ERROR_REASON_VERSION_CONFLICT || e.RetryAfter != 30*time.Millisecond {
		t.Errorf("reason %v, retry after %v", e.Reason, e.RetryAfter)
	}
	if v := e.Conflict.GetViolations(); len(v) != 1 || v[0].GetCurrentPrincipal() != "ann" {
		t.Errorf("violations %v", v)
	}
	if status.Code(err) != codes.Aborted || len(f.commits) != 1 {
		t.Errorf("%v after %d commits", status.Code(err), len(f.commits))
	}
}

func TestAReasonNewerThanTheStubsKeepsItsName(t *testing.T) {
	e := AsError(refusal(t, codes.FailedPrecondition, "OF_TOMORROW"))
	if e.Reason != v1.ErrorReason_ERROR_REASON_UNSPECIFIED || e.Info.GetReason() != "OF_TOMORROW" {
		t.Errorf("%v, %v", e.Reason, e.Info)
	}
}

func TestACancelledContextIsAnErrorLikeAnyOther(t *testing.T) {
	if e := AsError(context.DeadlineExceeded); e.Code != codes.DeadlineExceeded || e.Transient() {
		t.Error(e)
	}
}

func TestUpdateReadsAgainAfterAConflict(t *testing.T) {
	f := &fake{
		onGet: []func() (*v1.GetResponse, error){present(3), present(4)},
		onCommit: []func(*v1.CommitRequest) (*v1.CommitResponse, error){
			refused(refusal(t, codes.Aborted, "VERSION_CONFLICT", &v1.ConflictDetail{ConflictId: "c-1"})), accepted,
		},
	}
	var seen []int64
	_, err := serve(t, f).Update(t.Context(), "plan", func(current *v1.Entry) (*v1.Content, error) {
		seen = append(seen, current.GetVersion())
		return JSON([]byte(`1`)), nil
	})
	if err != nil || len(seen) != 2 || seen[0] != 3 || seen[1] != 4 {
		t.Fatalf("%v after versions %v", err, seen)
	}
	if f.commits[0].GetRequestId() == f.commits[1].GetRequestId() {
		t.Error("another decision went out under the same request id")
	}
	put := f.commits[1].GetOps()[0].GetPut()
	if put.GetPrecondition().GetVersionEquals() != 4 {
		t.Errorf("precondition %v", put.GetPrecondition())
	}
	source := put.GetContent().GetProvenance().GetDerivations()[0].GetSources()[0]
	if source.GetKey() != "plan" || source.GetVersion() != 4 {
		t.Errorf("source %v", source)
	}
}

func TestUpdateGivesUpInTheEnd(t *testing.T) {
	f := &fake{
		onGet: []func() (*v1.GetResponse, error){present(3)},
		onCommit: []func(*v1.CommitRequest) (*v1.CommitResponse, error){
			refused(refusal(t, codes.Aborted, "VERSION_CONFLICT")),
		},
	}
	_, err := serve(t, f).Update(t.Context(), "plan", func(*v1.Entry) (*v1.Content, error) {
		return JSON([]byte(`1`)), nil
	})
	if !AsError(err).Contention() || len(f.commits) != quick.Attempts {
		t.Errorf("%v after %d commits", err, len(f.commits))
	}
}

func TestARequestIDIsARandomUUID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if a, b := NewRequestID(), NewRequestID(); !form.MatchString(a) || a == b {
		t.Error(a, b)
	}
}
