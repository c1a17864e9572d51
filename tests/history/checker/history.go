package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

const (
	formatVersion = 1

	opRead  = "read"
	opWrite = "write"
	opCas   = "cas"

	outcomeOk      = "ok"
	outcomeUnmet   = "unmet"
	outcomeUnknown = "unknown"

	modelRegister = "register"
	modelCas      = "cas"

	levelStrong = "strong"
	levelLocal  = "local"

	never = int64(math.MaxInt64)
)

// line is one line of a history; docs/design/010-histories.md explains every field.
type line struct {
	Type     string          `json:"type"`
	Version  int             `json:"version"`
	Client   int             `json:"client"`
	Key      string          `json:"key"`
	Model    string          `json:"model"`
	Op       string          `json:"op"`
	Level    string          `json:"level"`
	Call     int64           `json:"call"`
	Return   *int64          `json:"return"`
	Outcome  string          `json:"outcome"`
	Value    *string         `json:"value"`
	Expected *string         `json:"expected"`
	Position json.RawMessage `json:"position"`
	Object   *int64          `json:"object_version"`
	Tries    int             `json:"tries"`
	Request  string          `json:"request"`
	Cause    string          `json:"cause"`
	What     string          `json:"what"`
}

// subject is everything that happened to one key.
type subject struct {
	key        string
	model      string
	operations []porcupine.Operation
	open       int
}

// fault is something that was done to the servers meanwhile; it is shown, not judged.
type fault struct {
	what       string
	begin, end int64
}

type history struct {
	subjects []*subject // in the order of their first operation
	faults   []fault
	local    int // local reads: not for this checker
}

func readHistory(from io.Reader) (*history, error) {
	found := &history{}
	byKey := map[string]*subject{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	number := 0
	for lines.Scan() {
		number++
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		var one line
		err := decoder.Decode(&one)
		if err == nil {
			err = found.take(one, number == 1, byKey)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if number == 0 {
		return nil, fmt.Errorf("the history is empty")
	}
	for _, s := range found.subjects {
		if err := s.checkValues(); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (h *history) take(one line, first bool, byKey map[string]*subject) error {
	if first != (one.Type == "history") {
		return fmt.Errorf("a history starts with its one line of type \"history\"")
	}
	switch one.Type {
	case "history":
		if one.Version != formatVersion {
			return fmt.Errorf("version %d: this checker reads version %d", one.Version, formatVersion)
		}
		return nil
	case "fault":
		if one.Return == nil {
			return fmt.Errorf("a fault has an end")
		}
		h.faults = append(h.faults, fault{one.What, one.Call, *one.Return})
		return nil
	case "operation":
		return h.takeOperation(one, byKey)
	}
	return fmt.Errorf("unknown type %q", one.Type)
}

func (h *history) takeOperation(one line, byKey map[string]*subject) error {
	if err := one.check(); err != nil {
		return err
	}
	if one.Level == levelLocal {
		h.local++
		return nil
	}
	s := byKey[one.Key]
	if s == nil {
		s = &subject{key: one.Key, model: one.Model}
		byKey[one.Key] = s
		h.subjects = append(h.subjects, s)
	}
	if s.model != one.Model {
		return fmt.Errorf("key %q is of model %s", one.Key, s.model)
	}
	s.operations = append(s.operations, one.operation())
	return nil
}

func (l line) check() error {
	known := l.Op == opRead || l.Op == opWrite || (l.Op == opCas && l.Model == modelCas)
	switch {
	case l.Model != modelRegister && l.Model != modelCas:
		return fmt.Errorf("unknown model %q", l.Model)
	case !known:
		return fmt.Errorf("model %s has no operation %q", l.Model, l.Op)
	case l.Level != levelStrong && (l.Level != levelLocal || l.Op != opRead):
		return fmt.Errorf("a %s of level %q", l.Op, l.Level)
	case l.Outcome == outcomeUnknown && l.Op == opRead:
		return fmt.Errorf("a read without an answer changes nothing and tells nothing: leave it out")
	case l.Outcome == outcomeUnmet && l.Op != opCas:
		return fmt.Errorf("only a cas has a condition")
	case l.Outcome != outcomeOk && l.Outcome != outcomeUnmet && l.Outcome != outcomeUnknown:
		return fmt.Errorf("unknown outcome %q", l.Outcome)
	case (l.Return == nil) != (l.Outcome == outcomeUnknown):
		return fmt.Errorf("an operation has a return time unless its outcome is unknown")
	case l.Return != nil && *l.Return < l.Call:
		return fmt.Errorf("returned at %d, called at %d", *l.Return, l.Call)
	case l.Op != opRead && l.Value == nil:
		return fmt.Errorf("a %s without a value", l.Op)
	}
	return nil
}

func (l line) operation() porcupine.Operation {
	in, out := input{op: l.Op}, output{outcome: l.Outcome}
	if l.Op == opRead {
		out.value = cellOf(l.Value)
	} else {
		in.value, in.expected = cellOf(l.Value), cellOf(l.Expected)
	}
	end := never
	if l.Return != nil {
		end = *l.Return
	}
	return porcupine.Operation{ClientId: l.Client, Input: in, Call: l.Call, Output: out, Return: end}
}

// checkValues refuses a key to which one value was written twice: `bound` rests on their being different.
func (s *subject) checkValues() error {
	seen := map[cell]bool{}
	for _, op := range s.operations {
		if in := op.Input.(input); in.op != opRead {
			if seen[in.value] {
				return fmt.Errorf("key %q: %v was written twice", s.key, in.value)
			}
			seen[in.value] = true
		}
	}
	return nil
}

// bound shortens operations of unknown outcome, each of which would double the search, where that changes no verdict:
// one whose value was seen has happened by then, and one that nobody can have noticed is as good as not having happened.
func (s *subject) bound() {
	seen := map[cell]int64{}    // value -> when somebody knew it
	expected := map[cell]bool{} // values that some cas waited for
	lastUnmet := int64(math.MinInt64)
	for _, op := range s.operations {
		in, out := op.Input.(input), op.Output.(output)
		switch {
		case in.op == opRead:
			note(seen, out.value, op.Return)
		case in.op == opCas:
			expected[in.expected] = true
			if out.outcome == outcomeOk {
				note(seen, in.expected, op.Return)
			}
			if out.outcome == outcomeUnmet && op.Return > lastUnmet {
				lastUnmet = op.Return
			}
		}
	}
	kept := s.operations[:0]
	for _, op := range s.operations {
		in := op.Input.(input)
		if op.Return == never {
			if at, ok := seen[in.value]; ok {
				if at < op.Call { // read before it was asked for: left to the checker, which will refuse it
					at = op.Call
				}
				op.Return = at
			} else if !expected[in.value] && lastUnmet < op.Call {
				continue
			} else {
				s.open++
			}
		}
		kept = append(kept, op)
	}
	s.operations = kept
	s.endOpen()
}

// endOpen gives the open ends a time that a picture can show: just after everything else.
func (s *subject) endOpen() {
	last := int64(0)
	for _, op := range s.operations {
		for _, at := range []int64{op.Call, op.Return} {
			if at != never && at > last {
				last = at
			}
		}
	}
	for i := range s.operations {
		if s.operations[i].Return == never {
			s.operations[i].Return = last + 1
		}
	}
	sort.SliceStable(s.operations, func(i, j int) bool { return s.operations[i].Call < s.operations[j].Call })
}

func note(seen map[cell]int64, value cell, at int64) {
	if before, ok := seen[value]; !ok || at < before {
		seen[value] = at
	}
}
