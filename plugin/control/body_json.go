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
		return errors.New("is not valid UTF-8")
	}
	var err error
	if _, first := into.(*any); first { // huma reads every body twice, and first of all into this
		if !json.Valid(body) { // which costs a fraction of what it costs to find out by once
			return notJSON(body)
		}
		err = rejectDuplicates(body)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	number := new(json.UnmarshalTypeError)
	switch syntax := new(json.SyntaxError); {
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return notJSON(body)
	case errors.As(err, &number) && strings.HasPrefix(number.Value, "number "):
		return numberFault(body, number.Offset, numberProblem(strings.TrimPrefix(number.Value, "number ")))
	}
	return err
}

// notJSON says where a body stops being JSON.
func notJSON(body []byte) error {
	const early = "unexpected end of JSON input" // a json.Decoder has an error for that, and takes five times as long
	syntax := new(json.SyntaxError)
	switch err := json.Unmarshal(body, new(json.RawMessage)); {
	case !errors.As(err, &syntax):
		return errors.New("is not JSON")
	case syntax.Error() == early:
		return fmt.Errorf("is not JSON: it ends after byte %d, before it is complete", len(body))
	}
	return fmt.Errorf("is not JSON: unexpected character at byte %d", syntax.Offset)
}

// numberProblem is what is wrong with a number that JSON allows, and the validator may.
func numberProblem(number string) string {
	const longest = 32 // bytes
	switch {
	case !strings.ContainsAny(number, ".eE"):
		return "is too large for a number of 64 bits"
	case len(number) > longest:
		return "must be written in digits only"
	}
	return "must be written in digits only, not as " + number
}

// numberFault is what is wrong with the number of a body that ends at an offset. huma tells of a body as a whole that it could
// not be read, in the words of the error, which therefore have the path in front: tidyProblem takes them apart.
func numberFault(body []byte, end int64, problem string) error {
	w := walk(body)
	for {
		token, err := w.next()
		if err != nil {
			return err
		}
		// An offset of package json's may be one behind the number.
		if _, is := token.(json.Number); is && w.InputOffset() >= end-1 {
			return errors.New(w.path() + pathSeparator + problem)
		}
	}
}

// pathSeparator is between a path and what is wrong there.
const pathSeparator = "\x00"

// once refuses an object that has a name twice, and values that lie too deep in each other.
func rejectDuplicates(body []byte) error {
	w := walk(body)
	for {
		if _, err := w.next(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// walker goes from value to value of a body. Make it with walk.
type walker struct {
	*json.Decoder
	in []level // the objects and lists that are open
}

// level is an object or a list.
type level struct {
	names map[string]bool // of the object so far; nil: it is a list
	name  string          // of the value in the object
	named bool            // the value of that name is next
	index int             // of the value in the list; -1: none was there yet
}

func walk(body []byte) *walker {
	w := &walker{Decoder: json.NewDecoder(bytes.NewReader(body))}
	w.UseNumber()
	return w
}

// next is the next value that is no object and no list. After the last the error is io.EOF.
func (w *walker) next() (json.Token, error) {
	for {
		token, err := w.Token()
		if err != nil {
			return nil, err
		}
		delim, _ := token.(json.Delim)
		if delim == '}' || delim == ']' {
			w.in = w.in[:len(w.in)-1]
			continue
		}
		if named, err := w.beginValue(token); err != nil {
			return nil, err
		} else if named {
			continue
		}
		switch {
		case delim == 0:
			return token, nil
		case len(w.in) == maxDepth:
			return nil, fmt.Errorf("has values nested more than %d deep", maxDepth)
		case delim == '{':
			w.in = append(w.in, level{names: map[string]bool{}})
		default:
			w.in = append(w.in, level{index: -1})
		}
	}
}

// begin goes on to a value, or tells that the token is the name of one.
func (w *walker) beginValue(token json.Token) (named bool, err error) {
	if len(w.in) == 0 {
		return false, nil
	}
	top := &w.in[len(w.in)-1]
	switch {
	case top.names == nil:
		top.index++
		return false, nil
	case top.named:
		top.named = false
		return false, nil
	}
	top.name, top.named = token.(string) // as the decoder has made sure
	if top.names[top.name] {
		return false, fmt.Errorf("has the field %q twice", shorten(top.name))
	}
	top.names[top.name] = true
	return true, nil
}

// path is where the value is.
func (w *walker) path() string {
	path := []byte("body")
	for _, l := range w.in {
		if l.names == nil {
			path = fmt.Appendf(path, "[%d]", l.index)
		} else {
			path = fmt.Appendf(path, ".%s", shorten(l.name))
		}
	}
	return string(path)
}

const (
	// maxEcho is how much of a value, or of a name, at fault an answer echoes, in characters.
	maxEcho = 100
	// maxPath and maxMessage bound where a fault is, and what is said about it, whoever made the text, in characters.
	maxPath    = 4 * maxEcho
	maxMessage = 5 * maxEcho
)

// shorten cuts a text to what an answer may echo of it.
func shorten(text string) string { return cut(text, maxEcho) }

// cut returns the first characters of a text, with a mark where there are more.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for at := range text {
		if most--; most < 0 {
			return text[:at] + "…"
		}
	}
	return text
}

// shortenPath cuts the names in the path of a fault.
func shortenPath(path string) string {
	names := strings.SplitN(path, ".", maxDepth)
	for i, name := range names {
		names[i] = shorten(name)
	}
	return cut(strings.Join(names, "."), maxPath)
}

// tidyProblem makes the faults of a problem document few, short and plain: one for each path, in the order of the
// paths, the first maxFaults of them, with no more of what was sent than helps to find it. Where a value as a whole is
// at fault, such as a body that is no object, nothing is told of what should be in it.
func tidyProblem(_ huma.Context, _ string, body any) (any, error) {
	problem, ok := body.(*huma.ErrorModel)
	if !ok {
		return body, nil
	}
	tidied := *problem
	tidied.Detail = cut(problem.Detail, maxMessage)
	if len(problem.Errors) == 0 {
		return &tidied, nil
	}
	known := map[string]bool{}
	faults := make([]*huma.ErrorDetail, 0, len(problem.Errors))
	for _, f := range problem.Errors {
		tidy := *f
		if name, ok := missingName(f.Message); ok {
			tidy.Location, tidy.Message, tidy.Value = f.Location+"."+name, "must be given", nil
		}
		if tidy.Location == "body" {
			tidy.Value = nil // whoever sent it has it, and what is at fault may be far inside
			if path, problem, ok := strings.Cut(f.Message, pathSeparator); ok {
				tidy.Location, tidy.Message = path, problem
			}
		}
		tidy.Value = echo(tidy.Value)
		if !known[tidy.Location] {
			known[tidy.Location] = true
			faults = append(faults, &tidy)
		}
	}
	faults = slices.DeleteFunc(faults, func(f *huma.ErrorDetail) bool { return isWithin(f.Location, known) })
	slices.SortStableFunc(faults, func(a, b *huma.ErrorDetail) int { return strings.Compare(a.Location, b.Location) })
	if tidied.Status == http.StatusUnprocessableEntity {
		tidied.Detail = invalidRequest // as the faults say, whoever has found them
	}
	if more := len(faults) - maxFaults; more > 0 {
		faults = faults[:maxFaults]
		tidied.Detail += fmt.Sprintf("; these are the first %d faults, and %d more", maxFaults, more)
	}
	for _, f := range faults {
		f.Location, f.Message = shortenPath(f.Location), cut(f.Message, maxMessage)
	}
	tidied.Errors = faults
	return &tidied, nil
}

// maxFaults bounds how many faults an answer lists.
const maxFaults = 20

// isWithin tells whether a path leads into a value at one of the others: body.limit does into body.
func isWithin(path string, others map[string]bool) bool {
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

// echo returns a value as a fault shows it: no objects or lists, and of a long text the beginning.
func echo(value any) any {
	switch v := value.(type) {
	case string:
		if v == "" {
			return nil
		}
		return shorten(v)
	case bool, float64, int64, int, json.Number:
		return v
	}
	return nil
}
