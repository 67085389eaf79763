package gateway

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// sameFrame compares what happened on a connection with what was recorded.
func (p *logPlay) sameFrame(got tapped, want logFrame) {
	p.t.Helper()
	what := fmt.Sprintf("line %d, %s of %s", want.N, want.Label, want.Case)
	payload := want.bytes(p.t)
	if got.dir != want.Dir || got.eof != want.EOF {
		p.t.Errorf("%s: got %s, end of file %v: %q", what, got.dir, got.eof, got.payload)
		return
	}
	method, isAnswer := strings.CutPrefix(want.Label, "answer of ")
	method, _, _ = strings.Cut(method, "=")
	switch {
	case got.eof || got.dir == "plugin->kong":
	case want.Label == "RpcCall":
		sameCall(p.t, what, got.payload, payload)
	case isAnswer && !sameLogAnswer(p.t, method, got.payload, payload):
		p.t.Errorf("%s:\n got  %q\n Kong %q", what, got.payload, payload)
	}
}

func sameCall(t *testing.T, what string, got, want []byte) {
	t.Helper()
	var a, b pb.RpcCall
	if proto.Unmarshal(got, &a) != nil || proto.Unmarshal(want, &b) != nil {
		t.Fatalf("%s: %q is no call", what, got)
	}
	if start, recorded := a.GetCmdStartInstance(), b.GetCmdStartInstance(); start != nil && recorded != nil {
		var config, recordedConfig map[string]any
		if json.Unmarshal(start.Config, &config) != nil || json.Unmarshal(recorded.Config, &recordedConfig) != nil {
			t.Fatalf("%s: %q is no config", what, start.Config)
		}
		compareConfig(t, config, recordedConfig)
		start.Config, recorded.Config = nil, nil
	}
	if !proto.Equal(&a, &b) {
		t.Errorf("%s:\n got  %v\n Kong %v", what, &a, &b)
	}
}

// sameLogAnswer compares answers without what differs from request to request.
func sameLogAnswer(t *testing.T, method string, got, want []byte) bool {
	t.Helper()
	switch method {
	case "kong.response.get_headers":
		var a, b structpb.Struct
		return proto.Unmarshal(got, &a) == nil && proto.Unmarshal(want, &b) == nil &&
			reflect.DeepEqual(steady(a.AsMap()), steady(b.AsMap()))
	case "kong.log.serialize":
		return sameEntry(t, got, want)
	}
	return sameAnswer(t, method, got, want)
}

// sameEntry compares log entries, as far as the gateway has one.
func sameEntry(t *testing.T, got, want []byte) bool {
	t.Helper()
	entries := [2]map[string]any{}
	for i, answer := range [][]byte{got, want} {
		text, err := decodeString(answer)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(text), &entries[i]))
		steadyEntry(entries[i])
	}
	request := entries[1]["request"].(map[string]any)
	delete(request, "url")
	delete(request, "querystring")
	same := true
	for name, value := range entries[0] {
		if !reflect.DeepEqual(entries[1][name], value) {
			t.Logf("%s:\n got  %v\n Kong %v", name, value, entries[1][name])
			same = false
		}
	}
	return same && len(entries[0]) >= 6
}

// steady replaces the values of response headers that differ from request to request.
func steady(headers map[string]any) map[string]any {
	for _, name := range []string{
		"x-kong-request-id", "x-kong-proxy-latency", "x-kong-upstream-latency", "x-kong-response-latency",
	} {
		if text, given := headers[name].(string); given {
			headers[name] = strings.Repeat("*", map[bool]int{true: len(text), false: 1}[name == "x-kong-request-id"])
		}
	}
	return headers
}

// steadyEntry replaces what differs from request to request, and from one gateway to another, by its kind.
func steadyEntry(entry map[string]any) {
	request, response := entry["request"].(map[string]any), entry["response"].(map[string]any)
	headers := response["headers"].(map[string]any)
	digits := 0
	for name, value := range headers {
		if strings.HasSuffix(name, "-latency") {
			digits += len(value.(string))
		}
	}
	response["size"] = response["size"].(float64) - float64(digits)
	steady(headers)
	request["id"] = len(request["id"].(string))
	latencies := entry["latencies"].(map[string]any)
	for name, value := range latencies {
		latencies[name] = value.(float64) >= 0
	}
	entry["started_at"] = entry["started_at"].(float64) > 1.7e12
	if tries, given := entry["tries"].([]any); given {
		entry["tries"] = len(tries) > 0
	}
}
