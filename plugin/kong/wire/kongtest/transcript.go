package kongtest

import (
	"bytes"
	_ "embed" // the transcripts
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	//go:embed kong-3.9.3.jsonl
	transcript []byte
	//go:embed kong-3.9.3-log.jsonl
	logTranscript []byte
)

// Recorded is one frame between a running Kong 3.9.3 and a plugin.
type Recorded struct {
	N     int // of the line
	Conn  int
	Dir   string
	Label string // "RpcCall", "args of METHOD=ARGUMENT", "answer of METHOD=ARGUMENT", …
	Case  string // of the request
	EOF   bool
	Frame []byte
	// Server is the plugin that was called, in LogTranscript.
	Server string
}

// The decoded transcripts.
var (
	recorded    = sync.OnceValues(func() ([]Recorded, error) { return decode(transcript) })
	logRecorded = sync.OnceValues(func() ([]Recorded, error) { return decode(logTranscript) })
)

// Transcript returns all recorded frames of an access phase. The callers share the frames.
func Transcript(t testing.TB) []Recorded {
	t.Helper()
	all, err := recorded()
	require.NoError(t, err)
	return slices.Clone(all)
}

// LogTranscript returns the recorded frames of requests with a log phase. Two plugins were called: "rec" in the access
// phase, "rec-log" in the log phase. The callers share the frames.
func LogTranscript(t testing.TB) []Recorded {
	t.Helper()
	all, err := logRecorded()
	require.NoError(t, err)
	return slices.Clone(all)
}

func decode(lines []byte) (all []Recorded, err error) {
	for decoder := json.NewDecoder(bytes.NewReader(lines)); ; {
		var line struct {
			Recorded
			Frame string
		}
		switch err := decoder.Decode(&line); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		if line.Recorded.Frame, err = base64.StdEncoding.DecodeString(line.Frame); err != nil {
			return nil, err
		}
		all = append(all, line.Recorded)
	}
}

// AnswersOf returns Kong's recorded answers in one case, as [Worker] has them.
func AnswersOf(t testing.TB, name string) map[string][]byte {
	t.Helper()
	answers := map[string][]byte{}
	for _, line := range append(Transcript(t), LogTranscript(t)...) {
		if question, ok := strings.CutPrefix(line.Label, "answer of "); ok && line.Case == name {
			answers[question] = bytes.Clone(line.Frame)
		}
	}
	require.NotEmpty(t, answers, "the transcript has no case %s", name)
	if !strings.HasPrefix(name, "log-") {
		// nginx's variable of a header that came once was not recorded. It holds what get_header answers.
		answers["kong.nginx.get_var=http_x_user_id"] = answers["kong.request.get_header=x-user-id"]
		delete(answers, "kong.request.get_header=x-user-id")
	}
	return answers
}
