package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// Names of fields are compared as they are written: with two spellings that mean the same, a third is refused. A list is
// never null in an answer.
func init() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
}

// readJSON reads a body. What readers of JSON understand differently is refused: a name that is there twice, and bytes
// that are no text.
func readJSON(body []byte, into any) error {
	if !utf8.Valid(body) {
		return errors.New("the body is not valid UTF-8")
	}
	if _, first := into.(*any); first { // huma reads every body twice, and first of all into this
		if err := once(json.NewDecoder(bytes.NewReader(body))); err != nil {
			return err
		}
	}
	err := json.Unmarshal(body, into)
	if number := new(json.UnmarshalTypeError); errors.As(err, &number) && strings.HasPrefix(number.Value, "number ") {
		// The validator takes it for a whole number, as JSON does.
		return fmt.Errorf("%s must be written in digits alone, not as %s", number.Field, strings.TrimPrefix(number.Value, "number "))
	}
	return err
}

// maxDepth bounds how deep the values of a body may lie in each other.
const maxDepth = 32

// once refuses an object that has a name twice.
func once(d *json.Decoder) error {
	var path []map[string]bool // the names of the objects that are open; nil for a list
	name := false              // the next token is a name
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		inObject := len(path) > 0 && path[len(path)-1] != nil
		switch delim, _ := token.(json.Delim); {
		case delim == '{' || delim == '[':
			if len(path) == maxDepth {
				return fmt.Errorf("values lie more than %d deep in each other", maxDepth)
			}
			path = append(path, nil)
			if delim == '{' {
				path[len(path)-1] = map[string]bool{}
			}
			name = delim == '{'
			continue
		case delim == '}' || delim == ']':
			path = path[:len(path)-1]
			name = len(path) > 0 && path[len(path)-1] != nil
			continue
		case inObject && name:
			text, _ := token.(string)
			if path[len(path)-1][text] {
				return fmt.Errorf("the name %q is there twice", text)
			}
			path[len(path)-1][text] = true
			name = false
			continue
		}
		name = inObject
	}
}

// maxEcho is how much of a value at fault is told back, in bytes.
const maxEcho = 128

// tidyProblem makes the faults of a problem document short and plain: one for each path, in the order of the paths, with
// no more of what was sent than helps to find it. Where a value as a whole is at fault, such as a body that is no object,
// nothing is told of what should be in it.
func tidyProblem(_ huma.Context, _ string, body any) (any, error) {
	problem, ok := body.(*huma.ErrorModel)
	if !ok || len(problem.Errors) == 0 {
		return body, nil
	}
	known := map[string]bool{}
	faults := make([]*huma.ErrorDetail, 0, len(problem.Errors))
	for _, f := range problem.Errors {
		tidy := *f
		if name, ok := missingName(f.Message); ok {
			tidy.Location, tidy.Message, tidy.Value = f.Location+"."+name, "must be given", nil
		}
		tidy.Value = echo(tidy.Value)
		if !known[tidy.Location] {
			known[tidy.Location] = true
			faults = append(faults, &tidy)
		}
	}
	faults = slices.DeleteFunc(faults, func(f *huma.ErrorDetail) bool { return within(f.Location, known) })
	slices.SortStableFunc(faults, func(a, b *huma.ErrorDetail) int { return strings.Compare(a.Location, b.Location) })
	tidied := *problem
	if tidied.Errors = faults; tidied.Status == http.StatusUnprocessableEntity {
		tidied.Detail = invalid // as the faults say, whoever has found them
	}
	return &tidied, nil
}

// within tells whether a path leads into a value at one of the others: body.limit does into body.
func within(path string, others map[string]bool) bool {
	for i, c := range []byte(path) {
		if (c == '.' || c == '[') && others[path[:i]] {
			return true
		}
	}
	return false
}

// missingName is the property that a validator's message says is missing.
func missingName(message string) (string, bool) {
	rest, ok := strings.CutPrefix(message, "expected required property ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, " to be present")
}

// echo is a value as a fault tells it: no objects or lists, and of a long text nothing.
func echo(value any) any {
	switch v := value.(type) {
	case string:
		if len(v) > maxEcho || v == "" {
			return nil
		}
		return v
	case bool, float64, int64, int, json.Number:
		return v
	}
	return nil
}
