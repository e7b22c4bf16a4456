// An agent that reads a plan, changes it next to another one, and follows what happens.
//
//	SLATE_SERVER=127.0.0.1:7400 SLATE_TOKEN=... go run ./example BOARD
//
// The board is made where it does not exist and the token may do that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"google.golang.org/protobuf/proto"

	"slateboard.dev/client/go/slateboard"
	v1 "slateboard.dev/client/go/slateboard/v1"
)

type plan struct {
	Goal string `json:"goal"`
	Step int    `json:"step"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	name := "example"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if err := run(ctx, name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	client, err := slateboard.Connect() // SLATE_SERVER, SLATE_TOKEN
	if err != nil {
		return err
	}
	defer client.Close()
	me, err := client.Admin.WhoAmI(ctx, &v1.WhoAmIRequest{})
	if err != nil {
		return slateboard.AsError(err)
	}
	fmt.Println("principal:", me.GetPrincipal().GetId())
	start, err := openBoard(ctx, client, name)
	if err != nil {
		return err
	}
	board := client.Board(name)

	// A first version, and a second writer that read the same one.
	_, err = board.Update(ctx, "plan/current", func(*v1.Entry) (*v1.Content, error) {
		return encode(plan{Goal: "weekly report"})
	})
	if err != nil {
		return err
	}
	read, err := board.Get(ctx, "plan/current")
	if err != nil {
		return err
	}
	for _, step := range []int{1, 2} {
		content, err := encode(plan{Goal: "weekly report", Step: step})
		if err != nil {
			return err
		}
		_, err = board.Put(ctx, "plan/current", content, slateboard.Version(read.GetVersion()))
		var failed *slateboard.Error
		switch {
		case err == nil:
			fmt.Println("step", step, "written")
		case errors.As(err, &failed) && failed.Conflict != nil:
			for _, v := range failed.Conflict.GetViolations() {
				fmt.Printf("conflict on %s: expected %s, is version %d by %s\n",
					v.GetKey(), v.GetExpected(), v.GetCurrentVersion(), v.GetCurrentPrincipal())
			}
		default:
			return err
		}
	}

	// What the second writer should have done: decide again on what is there now.
	_, err = board.Update(ctx, "plan/current", func(current *v1.Entry) (*v1.Content, error) {
		var p plan
		if err := json.Unmarshal(current.GetContent().GetValue(), &p); err != nil {
			return nil, err
		}
		p.Step++
		return encode(p)
	})
	if err != nil {
		return err
	}

	// Everything since the start, as somebody who was away would catch up.
	request := &v1.WatchRequest{
		AfterRevision: proto.Int64(start.GetRevision()),
		Incarnation:   start.GetIncarnation(),
		Prefixes:      []*v1.PrefixRef{{Prefix: "plan/"}},
	}
	seen := 0
	for batch, err := range board.Watch(ctx, request) {
		if err != nil {
			return err
		}
		for _, entry := range batch.Entries {
			fmt.Printf("revision %d: %s version %d: %s\n",
				batch.Revision, entry.GetKey(), entry.GetVersion(), entry.GetContent().GetValue())
		}
		if seen++; seen == 3 {
			break
		}
	}
	fmt.Println("done")
	return nil
}

// openBoard tells where a board stands, and makes it if need be.
func openBoard(ctx context.Context, client *slateboard.Client, name string) (*v1.ResponseHeader, error) {
	found, err := client.Boards.GetBoard(ctx, &v1.GetBoardRequest{Board: name})
	if err == nil {
		return found.GetHeader(), nil
	}
	failed := slateboard.AsError(err)
	if failed.Reason != v1.ErrorReason_ERROR_REASON_BOARD_NOT_FOUND {
		return nil, failed
	}
	made, err := client.Boards.CreateBoard(ctx, &v1.CreateBoardRequest{
		Name: name, RequestId: slateboard.NewRequestID(),
	})
	if err != nil {
		return nil, slateboard.AsError(err)
	}
	return made.GetHeader(), nil
}

func encode(p plan) (*v1.Content, error) {
	value, err := json.Marshal(p)
	return slateboard.JSON(value), err
}
