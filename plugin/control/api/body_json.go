package api

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

// init makes huma match field names exactly, so that no third spelling passes for either of two valid ones, and
// describe lists as never null.
func init() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
}

// readJSON decodes a body. It rejects what JSON decoders disagree about: duplicate names, and bytes that are not UTF-8.
func readJSON(body []byte, into any) error {
	if !utf8.Valid(body) {
		return errors.New("is not valid UTF-8")
	}
	var err error
	if _, first := into.(*any); first { // huma decodes every body twice, first into an any
		if !json.Valid(body) { // much cheaper than finding out by rejectDuplicates
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
		return numberFault(body, strings.TrimPrefix(number.Value, "number "))
	}
	return err
}

// notJSON returns an error with the offset at which a body stops being JSON.
func notJSON(body []byte) error {
	const early = "unexpected end of JSON input" // a json.Decoder has an error for it, and takes five times as long
	syntax := new(json.SyntaxError)
	switch err := json.Unmarshal(body, new(json.RawMessage)); {
	case !errors.As(err, &syntax):
		return errors.New("is not JSON")
	case syntax.Error() == early:
		return fmt.Errorf("is not JSON: it ends after byte %d, before it is complete", len(body))
	}
	return fmt.Errorf("is not JSON: unexpected character at byte %d", syntax.Offset)
}

// numberProblem returns what is wrong with a number that is valid JSON and cannot be decoded.
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

// numberFault returns the fault of a number of the body: no field takes one of its form. huma reports a body that
// cannot be decoded as a whole, with the text of the error, so that text starts with the path: tidyProblem splits it.
func numberFault(body []byte, number string) error {
	w := walk(body)
	for {
		token, err := w.next()
		if err != nil {
			return err
		}
		if token == json.Number(number) {
			return errors.New(w.path() + pathSeparator + numberProblem(number))
		}
	}
}

// pathSeparator stands between a path and its problem in the text of an error.
const pathSeparator = "\x00"

// rejectDuplicates returns an error for an object with a duplicate name, or values nested too deep.
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

// walker iterates over the values of a body. Create it with walk.
type walker struct {
	*json.Decoder
	in []level // the objects and lists that are open
}

// level is an open object or list.
type level struct {
	names map[string]bool // of the object so far; nil: it is a list
	name  string          // of the value in the object
	named bool            // the value of that name is next
	index int             // of the value in the list; -1 before the first
}

// walk returns a walker before the first value of a body.
func walk(body []byte) *walker {
	w := &walker{Decoder: json.NewDecoder(bytes.NewReader(body))}
	w.UseNumber()
	return w
}

// next returns the next value that is neither an object nor a list. After the last the error is io.EOF.
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

// beginValue advances to a value, or reports that the token is the name of one.
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
	top.name, top.named = token.(string) // as the decoder ensures
	if top.names[top.name] {
		return false, fmt.Errorf("has the field %q twice", shorten(top.name))
	}
	top.names[top.name] = true
	return true, nil
}

// path returns the path of the current value.
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
	// maxEcho bounds how much of an invalid value or name an answer repeats, in characters.
	maxEcho = 100
	// maxPath and maxMessage bound the path and the message of a fault, in characters.
	maxPath    = 4 * maxEcho
	maxMessage = 5 * maxEcho
)

// shorten cuts a text to maxEcho characters.
func shorten(text string) string { return cut(text, maxEcho) }

// cut returns the first characters of a text, followed by … if there are more.
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

// tidyProblem makes the faults of a problem document few and short: one for each path, ordered by path, the first
// maxFaults of them, with little of the invalid values. If a value as a whole is invalid, such as a body that is not an
// object, faults of its fields are dropped.
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
	invalid := map[string]bool{}
	faults := make([]*huma.ErrorDetail, 0, len(problem.Errors))
	for _, f := range problem.Errors {
		tidy := *f
		if name, ok := missingName(f.Message); ok {
			tidy.Location, tidy.Message, tidy.Value = f.Location+"."+name, "must be given", nil
		}
		if tidy.Location == "body" {
			tidy.Value = nil // the client has it, and the fault may be deep inside
			if path, problem, ok := strings.Cut(f.Message, pathSeparator); ok {
				tidy.Location, tidy.Message = path, problem
			}
		}
		tidy.Value = echo(tidy.Value)
		if !invalid[tidy.Location] {
			invalid[tidy.Location] = true
			faults = append(faults, &tidy)
		}
	}
	faults = slices.DeleteFunc(faults, func(f *huma.ErrorDetail) bool { return isWithin(f.Location, invalid) })
	slices.SortStableFunc(faults, func(a, b *huma.ErrorDetail) int { return strings.Compare(a.Location, b.Location) })
	if tidied.Status == http.StatusUnprocessableEntity {
		tidied.Detail = invalidRequest // the same for faults of the schema and of Resolve
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

// isWithin reports whether a path leads into one of the others, as body.limit does into body.
func isWithin(path string, others map[string]bool) bool {
	for i, c := range []byte(path) {
		if (c == '.' || c == '[') && others[path[:i]] {
			return true
		}
	}
	return false
}

// missingName returns the property that a message of the validator reports as missing.
func missingName(message string) (string, bool) {
	name, ok := strings.CutPrefix(message, "expected required property ")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, " to be present")
}

// echo returns a value as a fault shows it: no objects or lists, and only the start of a long text.
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
