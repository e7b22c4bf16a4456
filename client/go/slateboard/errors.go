package slateboard

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// ErrNotFound is what Board.Get answers for a key that is absent, or that the caller may not see.
var ErrNotFound = errors.New("slateboard: no such key")

// Domain is the domain of the ErrorInfo of every error that the server made.
const Domain = "slateboard"

// Error is a failed call, with what the server put into the status details.
//
//	var failed *slateboard.Error
//	if errors.As(err, &failed) && failed.Conflict != nil { ... }
type Error struct {
	Code    codes.Code
	Message string
	// Reason is UNSPECIFIED where the error did not come from the server (a broken connection, say), or where the
	// server is newer than these stubs; Info.Reason then has the name.
	Reason v1.ErrorReason
	// Info is nil where the error did not come from the server.
	Info *errdetails.ErrorInfo
	// Conflict says which preconditions or guards did not hold, and who was faster.
	Conflict *v1.ConflictDetail
	// RetryAfter is how long the server asks to wait.
	RetryAfter time.Duration

	status *status.Status
}

// AsError reads any error of a gRPC call. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	st := status.Convert(err)
	if _, ok := status.FromError(err); !ok {
		st = status.FromContextError(err)
	}
	e := &Error{Code: st.Code(), Message: st.Message(), status: st}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				e.Info = d
				e.Reason = v1.ErrorReason(v1.ErrorReason_value["ERROR_REASON_"+d.GetReason()])
			}
		case *v1.ConflictDetail:
			e.Conflict = d
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return e
}

// Error is the message, led by the reason where the server gave one.
func (e *Error) Error() string {
	if e.Info == nil {
		return fmt.Sprintf("slateboard: %s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("slateboard: %s: %s", e.Info.GetReason(), e.Message)
}

// GRPCStatus lets status.FromError and status.Code see through.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Transient tells whether the same request, with the same request id, is worth sending again.
func (e *Error) Transient() bool {
	return e.Code == codes.Unavailable || e.Reason == v1.ErrorReason_ERROR_REASON_RATE_LIMITED
}

// Contention tells whether somebody else was faster: read again, decide again, send under a new request id.
func (e *Error) Contention() bool { return e.Code == codes.Aborted }
