package main

import (
	"math/rand"
	"strconv"
	"testing"

	"github.com/anishathalye/porcupine"
)

// rounds of random histories, small enough that many of each verdict come up.
const rounds = 30000

// randomSubject draws a small history in which answers are made up, and outcomes often unknown.
func randomSubject(chance *rand.Rand) *subject {
	s := &subject{key: "k", model: modelCas}
	values := []cell{{}}
	for n := 1 + chance.Intn(6); n > 0; n-- {
		begin := int64(chance.Intn(30))
		op := porcupine.Operation{ClientId: n, Call: begin, Return: begin + int64(chance.Intn(12))}
		in, out := input{op: opRead}, output{outcome: outcomeOk}
		switch kind := chance.Intn(3); {
		case kind == 0:
			out.value = values[chance.Intn(len(values))]
		case kind == 2:
			in.expected = values[chance.Intn(len(values))]
			in.op = opCas
			out.outcome = []string{outcomeOk, outcomeUnmet, outcomeUnknown}[chance.Intn(3)]
		default:
			in.op = opWrite
			out.outcome = []string{outcomeOk, outcomeUnknown}[chance.Intn(2)]
		}
		if in.op != opRead {
			in.value = cell{true, strconv.Itoa(n)}
			values = append(values, in.value)
		}
		if out.outcome == outcomeUnknown {
			op.Return = never
		}
		op.Input, op.Output = in, out
		s.operations = append(s.operations, op)
	}
	return s
}

func TestBoundChangesNoVerdict(t *testing.T) {
	verdicts := map[bool]int{}
	shortened := 0
	for seed := int64(0); seed < rounds; seed++ {
		raw, bounded := randomSubject(rand.New(rand.NewSource(seed))), randomSubject(rand.New(rand.NewSource(seed)))
		raw.endOpen()
		bounded.bound()
		want := porcupine.CheckOperations(casModel(), raw.operations)
		if got := porcupine.CheckOperations(casModel(), bounded.operations); got != want {
			t.Fatalf("seed %d: %v, but unbounded %v:\n%v", seed, got, want, raw.operations)
		}
		verdicts[want]++
		if len(bounded.operations) < len(raw.operations) {
			shortened++
		}
	}
	if verdicts[true] < rounds/20 || verdicts[false] < rounds/20 || shortened < rounds/20 {
		t.Fatalf("the histories are too much alike: %v, %d shortened", verdicts, shortened)
	}
}
