package slateboard

import (
	"context"
	"math/rand/v2"
	"time"
)

// Retry bounds how often and how fast a call is tried again.
type Retry struct {
	// Attempts in all, the first one included. A watch counts those since its last message.
	Attempts int
	// Base is the wait before the second attempt; it doubles up to Max. Each wait is drawn from its upper half, so
	// that clients that failed together do not come back together.
	Base, Max time.Duration
}

// DefaultRetry gives up after about half a minute.
var DefaultRetry = Retry{Attempts: 12, Base: 50 * time.Millisecond, Max: 5 * time.Second}

// wait sleeps before attempt number `attempt` + 1, at least as long as the server asked for.
func (r Retry) wait(ctx context.Context, attempt int, atLeast time.Duration) error {
	pause := r.Max
	if shift := attempt - 1; shift < 20 {
		pause = min(r.Max, r.Base<<shift)
	}
	pause = pause/2 + rand.N(pause/2+1)
	timer := time.NewTimer(max(pause, atLeast))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// retrying calls until the outcome is known, the attempts are used up or the context ends. Only for calls that may be
// sent twice: reads, and writes that carry their request id.
func retrying[T any](ctx context.Context, r Retry, call func(context.Context) (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		answer, err := call(ctx)
		if err == nil {
			return answer, nil
		}
		e := AsError(err)
		if !e.Transient() || attempt >= r.Attempts {
			return answer, e
		}
		if r.wait(ctx, attempt, e.RetryAfter) != nil {
			return answer, e
		}
	}
}
