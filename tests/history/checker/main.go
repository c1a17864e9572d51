// Checks a recorded history of an A-Hash for linearizability, key by key, with porcupine.
//
// Usage: checker [-html FILE] [-timeout DURATION] HISTORY
//
// Exit codes: 0 linearizable; 1 not linearizable (the first such key is explained, and drawn into FILE);
// 2 the history cannot be read or holds nothing; 3 not decided in time.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	exitOk        = 0
	exitIllegal   = 1
	exitUsage     = 2
	exitUndecided = 3

	// shown is how many operations before the one that does not fit are printed.
	shown = 6
)

func main() {
	html := flag.String("html", "", "where to draw the first key that is not linearizable")
	timeout := flag.Duration("timeout", time.Minute, "how long to search, for each key")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(exitUsage)
	}
	os.Exit(run(flag.Arg(0), *html, *timeout))
}

func run(path, html string, timeout time.Duration) int {
	file, err := os.Open(path)
	if err != nil {
		return unusable(err)
	}
	defer file.Close()
	found, err := readHistory(file)
	if err != nil {
		return unusable(err)
	}
	if len(found.subjects) == 0 {
		return unusable(fmt.Errorf("%s holds no operation to judge", path))
	}
	return judge(found, html, timeout)
}

func unusable(err error) int {
	fmt.Fprintln(os.Stderr, "checker:", err)
	return exitUsage
}

func judge(found *history, html string, timeout time.Duration) int {
	begun := time.Now()
	operations, open, undecided := 0, 0, 0
	for _, s := range found.subjects {
		s.bound()
		operations += len(s.operations)
		open += s.open
		result, info := porcupine.CheckOperationsVerbose(s.modelOf(), s.operations, timeout)
		switch result {
		case porcupine.Illegal:
			fmt.Printf("NOT LINEARIZABLE: key %s (%s, %d operations)\n", s.key, s.model, len(s.operations))
			explain(os.Stdout, s, info)
			return draw(found, s, info, html)
		case porcupine.Unknown:
			fmt.Printf("not decided within %v: key %s (%d operations, %d open)\n", timeout, s.key, len(s.operations), s.open)
			undecided++
		}
	}
	spent := time.Since(begun).Round(time.Millisecond)
	if undecided > 0 {
		fmt.Printf("UNDECIDED: %d of %d keys, in %v\n", undecided, len(found.subjects), spent)
		return exitUndecided
	}
	fmt.Printf("LINEARIZABLE: %d operations on %d keys, %d of unknown outcome to the end, in %v\n",
		operations, len(found.subjects), open, spent)
	return exitOk
}

func (s *subject) modelOf() porcupine.Model {
	if s.model == modelCas {
		return casModel()
	}
	return registerModel()
}

// explain prints the longest order that works and what does not fit behind it.
func explain(to io.Writer, s *subject, info porcupine.LinearizationInfo) {
	order := longest(info)
	model, state := s.modelOf(), interface{}(cell{})
	for _, op := range order {
		_, state = model.Step(state, op.Input, op.Output)
	}
	left := without(s.operations, order)
	fmt.Fprintf(to, "The longest order that works has %d operations and ends:\n", len(order))
	for i := len(order) - shown; i < len(order); i++ {
		if i >= 0 {
			fmt.Fprintln(to, "  ", describeTimed(order[i]))
		}
	}
	fmt.Fprintf(to, "The register then holds %v, and nothing that has to come next fits:\n", state)
	for _, op := range left {
		if op.Call <= firstReturn(left) {
			fmt.Fprintln(to, "  ", describeTimed(op))
		}
	}
}

func longest(info porcupine.LinearizationInfo) []porcupine.Operation {
	var best []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(best) {
				best = order
			}
		}
	}
	return best
}

// without returns the operations that are not in `order`. A client, a call time and what was asked tell them apart.
func without(all, order []porcupine.Operation) []porcupine.Operation {
	type name struct {
		client int
		call   int64
		in     input
	}
	placed := map[name]int{}
	for _, op := range order {
		placed[name{op.ClientId, op.Call, op.Input.(input)}]++
	}
	var left []porcupine.Operation
	for _, op := range all {
		own := name{op.ClientId, op.Call, op.Input.(input)}
		if placed[own] > 0 {
			placed[own]--
		} else {
			left = append(left, op)
		}
	}
	return left
}

func firstReturn(operations []porcupine.Operation) int64 {
	first := never
	for _, op := range operations {
		if op.Return < first {
			first = op.Return
		}
	}
	return first
}

func describeTimed(op porcupine.Operation) string {
	return fmt.Sprintf("[%d, %d] client %d: %s",
		op.Call, op.Return, op.ClientId, describe(op.Input.(input), op.Output.(output)))
}

func draw(found *history, s *subject, info porcupine.LinearizationInfo, html string) int {
	if html == "" {
		return exitIllegal
	}
	var notes []porcupine.Annotation
	for _, f := range found.faults {
		notes = append(notes, porcupine.Annotation{Tag: "faults", Start: f.begin, End: f.end, Description: f.what})
	}
	info.AddAnnotations(notes)
	if err := porcupine.VisualizePath(s.modelOf(), info, html); err != nil {
		return unusable(fmt.Errorf("cannot draw %s: %s", html, strings.TrimSpace(err.Error())))
	}
	fmt.Printf("Drawn in %s\n", html)
	return exitIllegal
}
