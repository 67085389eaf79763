package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Fault describes one fault of a config.
type Fault struct {
	// Path locates the faulty value, for instance tiers[1].limits[0].window_size. It is empty for the config as a whole.
	Path string
	// Message has the required and the actual value, without the path.
	Message string
}

func (f Fault) String() string { return cmp.Or(f.Path, "config") + ": " + f.Message }

// Faults holds all faults of one config in document order. As an error it has one line for each.
type Faults []Fault

func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// OrNil returns the faults as an error, or nil if there are none.
func (fs Faults) OrNil() error {
	if len(fs) == 0 {
		return nil
	}
	return fs
}

// Warning describes a valid value that is probably not what the author of the config expects.
type Warning = Fault

type findings []Fault

func (l *findings) add(path, format string, args ...any) {
	*l = append(*l, Fault{path, fmt.Sprintf(format, args...)})
}

func (l *findings) addProblem(path, message string) {
	if message != "" {
		*l = append(*l, Fault{path, message})
	}
}

// inDocumentOrder sorts faults by the order of their paths in a document. A path outside the document, such as the one
// of a missing field, is sorted by its longest prefix in the document.
func inDocumentOrder(faults []Fault, order map[string]int) {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		first, _ := docpath.Find(order, a.Path)
		second, _ := docpath.Find(order, b.Path)
		return cmp.Compare(first, second)
	})
}

// hint returns the end of a message with the candidate nearest to name in single-character edits, or "" if none is near
// enough.
func hint(name string, candidates []string) string {
	best, bestDistance := "", 1+min(2, len(name)/3)
	for _, candidate := range candidates {
		if len(name) > len(candidate)+2 {
			continue // cannot be near; bounds the work for absurdly long names
		}
		if d := editDistance(name, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %s?", best)
}

// editDistance returns the Levenshtein distance between a and b, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
