package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// frame holds a line of the recording of a real Kong 3.9.3.
type frame struct {
	Dir, Case, Label string
	Frame            *string
	EOF              bool
}

func (f frame) bytes(t *testing.T) []byte {
	t.Helper()
	if f.Frame == nil {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(*f.Frame)
	require.NoError(t, err)
	return b
}

// recordedCase holds one event of the recording.
type recordedCase struct {
	config    map[string]any
	questions []question
	answers   [][]byte
	lost      bool // Kong closed the connection instead of the last answer
}

// recordedCases reads the recording.
func recordedCases(t *testing.T) map[string]*recordedCase {
	t.Helper()
	cases := map[string]*recordedCase{}
	var method string
	for _, f := range recordedFrames(t, "testdata/kong-3.9.3.jsonl") {
		if f.Label == "RpcCall" {
			recordStart(t, cases, f.bytes(t))
		}
		c := cases[f.Case]
		switch {
		case c == nil:
		case f.Label == "method":
			method = string(f.bytes(t))
		case strings.HasPrefix(f.Label, "args of"):
			c.questions = append(c.questions, question{method, f.bytes(t)})
		case strings.HasPrefix(f.Label, "answer of") && f.EOF:
			c.lost = true
		case strings.HasPrefix(f.Label, "answer of"):
			c.answers = append(c.answers, f.bytes(t))
		}
	}
	return cases
}

// recordedFrames reads a recording without the questions that are not simulated, because no plugin here asks them.
// Those that Kong does not answer stay.
func recordedFrames(t *testing.T, path string) (frames []logFrame) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	omitted := map[string]bool{}
	for line := range bytes.Lines(text) {
		var f logFrame
		require.NoError(t, json.Unmarshal(line, &f))
		frames = append(frames, f)
		method := f.method(t)
		if strings.HasPrefix(f.Label, "answer of ") && !f.EOF && pdkMethods[method] == nil && logMethods[method] == nil {
			omitted[method] = strings.HasPrefix(method, "kong.")
		}
	}
	return slices.DeleteFunc(frames, func(f logFrame) bool { return omitted[f.method(t)] })
}

// method returns the method that a frame belongs to, "" for none.
func (f frame) method(t *testing.T) string {
	if f.Label == "method" {
		return string(f.bytes(t))
	}
	for _, kind := range []string{"args of ", "answer of "} {
		if step, ok := strings.CutPrefix(f.Label, kind); ok {
			method, _, _ := strings.Cut(step, "=")
			return method
		}
	}
	return ""
}

// recordStart adds the case of a start.
func recordStart(t *testing.T, cases map[string]*recordedCase, frame []byte) {
	t.Helper()
	var call pb.RpcCall
	require.NoError(t, proto.Unmarshal(frame, &call))
	start := call.GetCmdStartInstance()
	if start == nil {
		return
	}
	var config map[string]any
	require.NoError(t, json.Unmarshal(start.Config, &config))
	if name := config["case"].(string); cases[name] == nil {
		cases[name] = &recordedCase{config: config}
	}
}

// answerMessages decodes the answers of the methods whose maps have no order.
var answerMessages = map[string]func() proto.Message{
	"kong.client.get_consumer": func() proto.Message { return &pb.Consumer{} },
	"kong.router.get_route":    func() proto.Message { return &pb.Route{} },
	"kong.ctx.shared.get":      func() proto.Message { return &structpb.Value{} },
}

// sameAnswer reports whether two answers are equal, or equal as messages.
func sameAnswer(t *testing.T, method string, got, want []byte) bool {
	t.Helper()
	message, decoded := answerMessages[method]
	if !decoded {
		return string(got) == string(want)
	}
	a, b := message(), message()
	require.NoError(t, proto.Unmarshal(got, a))
	require.NoError(t, proto.Unmarshal(want, b))
	return proto.Equal(a, b)
}

// curl holds the headers of the recorded requests.
var curl = []string{"Host: 127.0.0.1:8000", "User-Agent: curl/7.88.1", "Accept: */*"}

// recordedRequests holds the requests of the recording, those of key-auth with forged headers.
var recordedRequests = map[string][]string{
	"no-auth": withCurl("GET /plain?q=1", "X-User-Id: u_7"),
	"key-auth": withCurl("GET /authed/records/7?x=y", "apikey: alice-key", "X-User-Id: u_42",
		"X-Consumer-Id: forged", "X-Anonymous-Consumer: true"),
	"key-auth-anonymous": withCurl("GET /anon?q=1", "X-User-Id: u_7",
		"X-Consumer-Custom-Id: forged", "X-Credential-Identifier: forged"),
	"jwt":                         withCurl("GET /jwt/records", "Authorization: TOKEN"),
	"minimal":                     withCurl("GET /minimal"),
	"no-questions":                withCurl("GET /none"),
	"exit":                        withCurl("GET /exit"),
	"unknown-method":              withCurl("GET /unknown"),
	"method-that-raises":          withCurl("GET /raises"),
	"path-normalisation":          withCurl("GET /norm"),
	"minimal-after-config-change": withCurl("GET /minimal"),
}

// withCurl returns the lines of a request by curl.
func withCurl(line string, headers ...string) []string {
	return append(append([]string{line + " HTTP/1.1"}, curl...), headers...)
}

// recordedToken returns the token of the jwt case, from the recorded answer.
func recordedToken(c *recordedCase) string {
	for i, q := range c.questions {
		if q.method == "kong.ctx.shared.get" && strings.Contains(string(q.arg), "authenticated_jwt_token") {
			var value structpb.Value
			if proto.Unmarshal(c.answers[i], &value) == nil {
				return value.GetStringValue()
			}
		}
	}
	return ""
}

func TestRecordedQuestionsGetTheAnswersOfARealKong(t *testing.T) {
	document, err := os.ReadFile("testdata/recorded.yml")
	require.NoError(t, err)
	for name, c := range recordedCases(t) {
		t.Run(name, func(t *testing.T) {
			config, err := ParseConfig(document)
			require.NoError(t, err)
			fillRecorded(config, c.config)
			var answers [][]byte
			lost, finished := false, make(chan struct{})
			fake := newFakePlugin(t, func(e *fakeEvent) {
				defer close(finished)
				for _, q := range c.questions {
					got, err := e.ask(q)
					if lost = err != nil; lost {
						return
					}
					answers = append(answers, got...)
				}
				e.end()
			})
			g := start(t, Options{
				Config: config, Workers: 1,
				Upstreams: map[string]http.Handler{"127.0.0.1": http.HandlerFunc(echo)},
				Servers:   []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
			})
			request := append([]string(nil), recordedRequests[name]...)
			for i := range request {
				request[i] = strings.ReplaceAll(request[i], "TOKEN", "Bearer "+recordedToken(c))
			}
			response := send(t, g, request...)
			<-finished
			compareRecorded(t, c, answers, lost, response)
			compareConfig(t, fake.startedConfigs()[0], c.config)
		})
	}
}

// fillRecorded sets the config of the route's plugin to that of the recording.
func fillRecorded(config *Config, recorded map[string]any) {
	for _, p := range config.Plugins {
		if p.Name == "rec" && p.Route.ID == recorded["route_id"] {
			p.Config = map[string]any{
				"case": recorded["case"], "ask": recorded["ask"], "set": recorded["set"], "exit": recorded["exit"],
			}
		}
	}
}

// compareRecorded compares answers and the response with the recording.
func compareRecorded(t *testing.T, c *recordedCase, answers [][]byte, lost bool, response answer) {
	t.Helper()
	if lost != c.lost || len(answers) != len(c.answers) {
		t.Fatalf("%d answers, closed %v; Kong gave %d, closed %v", len(answers), lost, len(c.answers), c.lost)
	}
	for i, got := range answers {
		q := c.questions[i]
		if strings.Contains(string(q.arg), "kong_request_id") {
			if len(got) != len(c.answers[i]) {
				t.Errorf("request id %q", got)
			}
			continue
		}
		if !sameAnswer(t, q.method, got, c.answers[i]) {
			t.Errorf("%s(%q):\n got  %q\n Kong %q", q.method, q.arg, got, c.answers[i])
		}
	}
	want := 200
	if c.lost {
		if want = 500; c.config["exit"] == true {
			want = 429
		}
	}
	if response.status != want {
		t.Errorf("status %d, want %d: %s", response.status, want, response.body)
	}
	if want == 429 && (response.body != `{"title":"no"}` ||
		!reflect.DeepEqual(response.named("retry-after"), []string{"Retry-After: 7"}) ||
		!reflect.DeepEqual(response.named("content-type"), []string{"Content-Type: application/problem+json"})) {
		t.Errorf("exit: %q %q", response.lines, response.body)
	}
}

// compareConfig compares the config of StartInstance, but for the instance's number.
func compareConfig(t *testing.T, got, want map[string]any) {
	t.Helper()
	if _, numbered := got["__seq__"].(float64); !numbered {
		t.Errorf("no __seq__ in %v", got)
	}
	delete(got, "__seq__")
	delete(want, "__seq__")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("config\n got  %v\n Kong %v", got, want)
	}
}
