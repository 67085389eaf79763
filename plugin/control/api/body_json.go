package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// init makes huma match field names exactly, so that no third spelling passes for either of two valid ones, and
// describe lists as never null.
func init() {
	huma.ValidateStrictCasing = true
	huma.DefaultArrayNullable = false
}

// Bounds of a body, which are checked before it is decoded.
const (
	maxDepth  = 32   // of nested values
	maxTokens = 4000 // names and values
)

// inspect returns the answer to a body that exceeds a bound, or the first texts that isText rejects, without decoding
// it. A body that is no JSON, or no UTF-8, has no such texts: decoding it reports that.
func inspect(body []byte, mostTokens int) error {
	mayHaveFaults := utf8.Valid(body) &&
		(bytes.Contains(body, []byte(`\u`)) || bytes.ContainsRune(body, utf8.RuneError))
	var faults []*huma.ErrorDetail
	d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for count := 0; ; count++ {
		token, err := d.ReadToken()
		switch {
		case err != nil && len(faults) > 0:
			return unprocessable(faults...)
		case err != nil:
			return nil
		case d.StackDepth() > maxDepth:
			return huma.Error400BadRequest(invalidRequest,
				fault("body", fmt.Sprintf("has values nested more than %d deep", maxDepth), nil))
		case count > mostTokens:
			return unprocessable(fault("body", fmt.Sprintf("has more than %d names and values", mostTokens), nil))
		case mayHaveFaults && len(faults) < maxFaults && token.Kind() == '"' && !isText(token.String()):
			faults = append(faults, fault(pathTo(d, d.StackPointer()), notText, nil))
		}
	}
}

// pathTo returns the path of the value at a pointer.
func pathTo(d *jsontext.Decoder, pointer jsontext.Pointer) string {
	path, level := "body", 1
	for name := range pointer.Tokens() {
		if in, _ := d.StackIndex(level); in == '[' {
			path += "[" + name + "]"
		} else {
			path += "." + shorten(name)
		}
		level++
	}
	return path
}

// readJSON decodes a body. It rejects what JSON decoders disagree about: duplicate names, and bytes that are not UTF-8.
func readJSON(body []byte, into any) error {
	var err error
	if _, first := into.(*any); !first { // huma decodes every body twice, first into an any
		err = json.Unmarshal(body, into)
	} else if !utf8.Valid(body) && json.Valid(body) {
		err = faultIn(body, "", "is not valid UTF-8")
	} else {
		err = jsonv2.Unmarshal(body, into, jsontext.AllowInvalidUTF8(true)) // half a surrogate is a fault of its field
	}
	syntax, huge, number := new(jsontext.SyntacticError), new(jsonv2.SemanticError), new(json.UnmarshalTypeError)
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return faultIn(body, "", "is given twice")
	case errors.As(err, &syntax):
		return notJSON(body)
	case errors.As(err, &huge):
		return numberFault(body, string(huge.JSONValue))
	case errors.As(err, &number) && strings.HasPrefix(number.Value, "number "):
		return numberFault(body, strings.TrimPrefix(number.Value, "number "))
	}
	return err
}

// notJSON returns an error with the offset at which a body stops being JSON.
func notJSON(body []byte) error {
	syntax := new(json.SyntaxError)
	switch err := json.Unmarshal(body, new(json.RawMessage)); {
	case !errors.As(err, &syntax):
		return errors.New("is not JSON")
	case syntax.Error() == "unexpected end of JSON input":
		return fmt.Errorf("is not JSON: it ends after byte %d, before it is complete", len(body))
	}
	return fmt.Errorf("is not JSON: unexpected character at byte %d", syntax.Offset)
}

// numberFault returns the fault of a number of the body that is valid JSON: no field takes one of its form.
func numberFault(body []byte, number string) error {
	const longest = 32 // bytes
	problem := "must be written in digits only"
	switch {
	case !strings.ContainsAny(number, ".eE"):
		problem = "is too large for a number of 64 bits"
	case len(number) <= longest:
		problem += ", not as " + number
	}
	return faultIn(body, number, problem)
}

// faultIn returns the fault of the first value of the body that is this number, or that no decoder may read. huma
// reports a body that cannot be decoded as a whole, with the text of the error, so that text starts with the path:
// tidyProblem splits it.
func faultIn(body []byte, number, problem string) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	for {
		token, err := d.ReadToken()
		at, syntax := jsontext.Pointer(""), new(jsontext.SyntacticError)
		switch {
		case errors.As(err, &syntax):
			at = syntax.JSONPointer
		case err != nil:
			return err
		case token.Kind() != '0' || token.String() != number:
			continue
		default:
			at = d.StackPointer() // which takes time: not of each token
		}
		return errors.New(pathTo(d, at) + pathSeparator + problem)
	}
}

// pathSeparator stands between a path and its problem in the text of an error.
const pathSeparator = "\x00"

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

func shortenPath(path string) string {
	names := strings.Split(path, ".")
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
		if name, ok := strings.CutPrefix(f.Message, "expected required property "); ok {
			tidy.Location += "." + strings.TrimSuffix(name, " to be present")
			tidy.Message, tidy.Value = "must be given", nil
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

// echo returns a value as a fault shows it: no objects or lists, and only the start of a long text.
func echo(value any) any {
	switch v := value.(type) {
	case string:
		if v == "" {
			return nil
		}
		return shorten(v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil // JSON has no form for it
		}
		return v
	case bool, int64, int, json.Number:
		return v
	}
	return nil
}
