// Command porcupine judges a recorded history: registers written by version, and a lock, must be linearizable.
//
// Usage: porcupine FILE.jsonl...; exit code 1 where a history is not, 2 where it cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Process string          `json:"process"`
	Kind    string          `json:"kind"`
	Key     string          `json:"key"`
	Call    int64           `json:"call"`
	End     int64           `json:"end"`
	Outcome string          `json:"outcome"`
	Value   json.RawMessage `json:"value"`
	Version int64           `json:"version"`
	Token   int64           `json:"token"`
	Extra   struct {
		Expected int64 `json:"expected"`
		Read     int64 `json:"read"`
	} `json:"extra"`
}

// A register is its version and value; a write happens only at the version it expects.
type state struct {
	version int64
	value   string
}

type input struct {
	write    bool
	expected int64
	value    string
}

type output struct {
	known   bool
	ok      bool
	version int64
	value   string
}

var register = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(current, in, out interface{}) (bool, interface{}) {
		now, asked, told := current.(state), in.(input), out.(output)
		if !asked.write {
			return now.version == told.version && (now.version == 0 || now.value == told.value), now
		}
		applies := now.version == asked.expected
		next := now
		if applies {
			next = state{now.version + 1, asked.value}
		}
		switch {
		case !told.known:
			// It may have happened now, or not at all; it can also be placed at the very end.
			return true, next
		case told.ok:
			return applies && told.version == next.version, next
		default:
			return !applies, now
		}
	},
	DescribeOperation: func(in, out interface{}) string { return fmt.Sprintf("%v -> %v", in, out) },
}

// A counter behind a lock, written blindly: linearizable only if nobody writes between a holder's read and its write.
var counter = porcupine.Model{
	Init: func() interface{} { return int64(0) },
	Step: func(current, in, out interface{}) (bool, interface{}) {
		now, asked, told := current.(int64), in.(input), out.(output)
		switch {
		case !told.known:
			if now == asked.expected {
				return true, now + 1
			}
			return true, now
		case told.ok:
			return now == asked.expected, now + 1
		default:
			return true, now
		}
	},
}

func read(path string, into map[string]operation) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	for lines.Scan() {
		var one operation
		if json.Unmarshal(lines.Bytes(), &one) != nil {
			continue // the last line of a process that was killed
		}
		into[fmt.Sprintf("%s/%d", one.Process, one.Call)] = one
	}
	return lines.Err()
}

func main() {
	found := map[string]operation{}
	for _, path := range os.Args[1:] {
		if err := read(path, found); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	clients := map[string]int{}
	registers := map[string][]porcupine.Operation{}
	var increments []porcupine.Operation
	last := int64(0)
	for _, one := range found {
		if one.End > last {
			last = one.End
		}
	}
	for _, one := range found {
		if _, seen := clients[one.Process]; !seen {
			clients[one.Process] = len(clients)
		}
		made := porcupine.Operation{ClientId: clients[one.Process], Call: one.Call, Return: one.End}
		known := one.Outcome != "unknown"
		if !known {
			made.Return = last + 1 // it may still happen
		}
		value := string(one.Value)
		switch {
		case one.Kind == "read" && known && len(one.Key) > 9 && one.Key[:9] == "register/":
			made.Input, made.Output = input{}, output{true, true, one.Version, value}
			registers[one.Key] = append(registers[one.Key], made)
		case one.Kind == "write" && len(one.Key) > 9 && one.Key[:9] == "register/":
			made.Input = input{true, one.Extra.Expected, value}
			made.Output = output{known, one.Outcome == "ok", one.Version, value}
			registers[one.Key] = append(registers[one.Key], made)
		case one.Kind == "increment":
			made.Input = input{true, one.Extra.Read, value}
			made.Output = output{known, one.Outcome == "ok", 0, ""}
			increments = append(increments, made)
		}
	}
	broken := false
	judge := func(name string, model porcupine.Model, history []porcupine.Operation) {
		sort.Slice(history, func(i, j int) bool { return history[i].Call < history[j].Call })
		verdict, _ := porcupine.CheckOperationsVerbose(model, history, time.Minute)
		fmt.Printf("%s: %d operations, %s\n", name, len(history), verdict)
		broken = broken || verdict == porcupine.Illegal
	}
	for key, history := range registers {
		judge(key, register, history)
	}
	if len(increments) > 0 {
		judge("locked/counter", counter, increments)
	}
	if broken {
		os.Exit(1)
	}
}
