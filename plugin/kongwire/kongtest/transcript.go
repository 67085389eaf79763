package kongtest

import (
	"bytes"
	_ "embed" // the transcript
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

//go:embed kong-3.9.3.jsonl
var transcript []byte

// Recorded is one frame between a running Kong 3.9.3 and a plugin.
type Recorded struct {
	N     int // of the line
	Conn  int
	Dir   string
	Label string // "RpcCall", "args of METHOD=ARGUMENT", "answer of METHOD=ARGUMENT", …
	Case  string // how the request was authenticated
	EOF   bool
	Frame []byte
}

// Transcript returns all recorded frames.
func Transcript(t T) []Recorded {
	t.Helper()
	var all []Recorded
	for decoder := json.NewDecoder(bytes.NewReader(transcript)); ; {
		var line struct {
			Recorded
			Frame string
		}
		switch err := decoder.Decode(&line); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		frame, err := base64.StdEncoding.DecodeString(line.Frame)
		if err != nil {
			t.Fatal(err)
		}
		line.Recorded.Frame = frame
		all = append(all, line.Recorded)
	}
}

// AnswersOf returns Kong's recorded answers in one case, as [Worker] has them.
func AnswersOf(t T, name string) map[string][]byte {
	t.Helper()
	answers := map[string][]byte{}
	for _, line := range Transcript(t) {
		if question, ok := strings.CutPrefix(line.Label, "answer of "); ok && line.Case == name {
			answers[question] = line.Frame
		}
	}
	if len(answers) == 0 {
		t.Fatalf("the transcript has no case %s", name)
	}
	// nginx's variable of a header that came once was not recorded. It holds what get_header answers.
	answers["kong.nginx.get_var=http_x_user_id"] = answers["kong.request.get_header=x-user-id"]
	delete(answers, "kong.request.get_header=x-user-id")
	return answers
}
