package main

import (
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// cell is what a register holds: nothing, or a text.
type cell struct {
	set  bool
	text string
}

func (c cell) String() string {
	if !c.set {
		return "nothing"
	}
	return strconv.Quote(c.text)
}

func cellOf(text *string) cell {
	if text == nil {
		return cell{}
	}
	return cell{true, *text}
}

// input is what a client asked for: `value` is what it would write, `expected` what a cas wants to find.
type input struct {
	op       string
	expected cell
	value    cell
}

// output is what a client was told: the outcome, and what a read found.
type output struct {
	outcome string
	value   cell
}

// registerModel is a register that is read and written.
func registerModel() porcupine.Model {
	return model(func(state cell, in input, out output) (bool, cell) {
		switch in.op {
		case opRead:
			return state == out.value, state
		case opWrite:
			return true, in.value
		}
		panic("a register has no " + in.op)
	})
}

// casModel is a register that is also changed on condition.
func casModel() porcupine.Model {
	register := registerModel()
	return model(func(state cell, in input, out output) (bool, cell) {
		if in.op != opCas {
			ok, next := register.Step(state, in, out)
			return ok, next.(cell)
		}
		met := state == in.expected
		switch {
		case out.outcome == outcomeOk:
			return met, in.value
		case out.outcome == outcomeUnmet:
			return !met, state
		case met: // nobody was told, but this is what it does where it stands
			return true, in.value
		default:
			return true, state
		}
	})
}

func model(step func(cell, input, output) (bool, cell)) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return cell{} },
		Step: func(state, in, out interface{}) (bool, interface{}) {
			return step(state.(cell), in.(input), out.(output))
		},
		DescribeOperation: func(in, out interface{}) string { return describe(in.(input), out.(output)) },
		DescribeState:     func(state interface{}) string { return state.(cell).String() },
	}
}

func describe(in input, out output) string {
	switch in.op {
	case opRead:
		return fmt.Sprintf("read -> %v", out.value)
	case opWrite:
		return fmt.Sprintf("write %v -> %s", in.value, out.outcome)
	default:
		return fmt.Sprintf("cas %v to %v -> %s", in.expected, in.value, out.outcome)
	}
}
