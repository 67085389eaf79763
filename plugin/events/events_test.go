package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var instant = time.Date(2026, 11, 22, 14, 20, 7, 123456000, time.UTC)

// valid returns an event that can be encoded.
func valid() Event {
	return Event{
		ID: "9f3a-17", Source: NodeSource("gw-1"), Type: Denial, Time: instant, Tenant: "acme",
		Data: json.RawMessage(`{"count": 3}`),
	}
}

func encode(t testing.TB, e Event) []byte {
	t.Helper()
	text, err := e.JSON()
	require.NoError(t, err)
	return text
}

// decode reads an event as a consumer does.
func decode(t testing.TB, text []byte) (e Event) {
	t.Helper()
	var c cloudEvent
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&c), "%s", text)
	at, err := time.Parse(time.RFC3339Nano, c.Time)
	if err != nil || c.SpecVersion != "1.0" || c.DataContentType != "application/json" || c.Subject != c.PartitionKey {
		t.Fatalf("%s is no event of ours (%v)", text, err)
	}
	return Event{ID: c.ID, Source: c.Source, Type: c.Type, Time: at, Tenant: c.Subject, Data: c.Data}
}

func TestAnEventIsOneLineOfStructuredJSON(t *testing.T) {
	t.Parallel()
	const want = `{"specversion":"1.0","id":"9f3a-17","source":"/nodes/gw-1",` +
		`"type":"io.github.tenant-rate-limiting.denial","time":"2026-11-22T14:20:07.123456Z","subject":"acme",` +
		`"partitionkey":"acme","datacontenttype":"application/json","data":{"count":3}}`
	e := valid()
	e.Data = json.RawMessage("{\n \"count\": 3\n}\n")
	text := encode(t, e)
	assert.Equal(t, want, string(text), "got  %s", text)
}

func TestAnEventOfNoTenantHasNoSubjectAndNoKey(t *testing.T) {
	t.Parallel()
	e := valid()
	e.Tenant, e.Source = "", Control
	if text := encode(t, e); bytes.Contains(text, []byte("subject")) || bytes.Contains(text, []byte("partitionkey")) {
		t.Errorf("%s has a subject or a key", text)
	}
}

func TestWhatACloudEventMayNotHaveIsAnErrorThatNamesTheAttribute(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Event){
		"id: must not be empty":          func(e *Event) { e.ID = "" },
		"id: \"a\\nb\"":                  func(e *Event) { e.ID = "a\nb" },
		"id: \"a\\xff\"":                 func(e *Event) { e.ID = "a\xff" },
		"id: \"\\ufdd0\"":                func(e *Event) { e.ID = "\ufdd0" },
		"source: must":                   func(e *Event) { e.Source = "" },
		"type: \"\" is none of":          func(e *Event) { e.Type = "" },
		"type: \"denial\" is none of":    func(e *Event) { e.Type = "denial" },
		"time: -62135596800 cannot":      func(e *Event) { e.Time = time.Time{} },
		"time: 253402300800 cannot":      func(e *Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"data: must be UTF-8":            func(e *Event) { e.Data = json.RawMessage("{\"a\":\"\xff\"}") },
		"data: must be one JSON object":  func(e *Event) { e.Data = nil },
		"JSON object, not \"[1]\"":       func(e *Event) { e.Data = json.RawMessage(`[1]`) },
		"JSON object, not \"null\"":      func(e *Event) { e.Data = json.RawMessage(`null`) },
		"JSON object, not \"{} {}\"":     func(e *Event) { e.Data = json.RawMessage(`{} {}`) },
		"JSON object, not \"{\\\"a\\\":": func(e *Event) { e.Data = json.RawMessage(`{"a":`) },
	} {
		e := valid()
		change(&e)
		text, err := e.JSON()
		if err == nil || !strings.Contains(err.Error(), name) || text != nil {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
	}
}

func TestABatchIsAnArrayAndItsErrorNamesTheEvent(t *testing.T) {
	t.Parallel()
	text, err := Batch([]Event{valid(), valid()})
	var all []cloudEvent
	if err != nil || json.Unmarshal(text, &all) != nil || len(all) != 2 {
		t.Errorf("%s: %v", text, err)
	}
	if text, err = Batch(nil); err != nil || string(text) != "[]" {
		t.Errorf("no events: %s, %v", text, err)
	}
	wrong := valid()
	wrong.ID = ""
	text, err = Batch([]Event{valid(), wrong})
	if err == nil || !strings.HasPrefix(err.Error(), "event 1: id: ") || text != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestEveryEventThatIsEncodedIsDecodedAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		data, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.String()).Draw(r, "data"))
		require.NoError(r, err)
		e := Event{
			ID:     rapid.StringMatching(`[0-9a-f]{1,16}-[0-9]{1,5}`).Draw(r, "id"),
			Source: NodeSource(rapid.String().Draw(r, "node")),
			Type:   rapid.SampledFrom(Types()).Draw(r, "type"),
			Time:   time.UnixMicro(rapid.Int64Range(-1<<52, 1<<57).Draw(r, "time")).UTC(),
			Tenant: rapid.String().Draw(r, "tenant"), Data: data,
		}
		text := encode(t, e)
		got := decode(t, text)
		want := e
		want.Tenant, want.Data = Text(e.Tenant), got.Data
		if fmt.Sprint(got) != fmt.Sprint(want) || !sameJSON(t, got.Data, data) || bytes.ContainsAny(text, "\n\r") {
			r.Fatalf("%s is decoded as %v, want %v", text, got, want)
		}
	})
}

func sameJSON(t testing.TB, a, b []byte) bool {
	t.Helper()
	var left, right map[string]string
	if json.Unmarshal(a, &left) != nil || json.Unmarshal(b, &right) != nil {
		t.Fatalf("%s or %s is no object of strings", a, b)
	}
	return fmt.Sprint(left) == fmt.Sprint(right)
}

func FuzzAnyTenantAndNodeGiveAValidEvent(f *testing.F) {
	for _, name := range []string{"acme", "a,b\nc", "\xff\xfe", "=cmd", "\u202e", "\x00\u0085", "\U0001fffe", "<&>", ""} {
		f.Add(name, name)
	}
	f.Fuzz(func(t *testing.T, tenant, node string) {
		e := valid()
		e.Tenant, e.Source = tenant, NodeSource(node)
		text := encode(t, e)
		got := decode(t, text)
		if !utf8.Valid(text) || got.Tenant != Text(tenant) || Text(got.Tenant) != got.Tenant || got.Source != e.Source {
			t.Fatalf("%q: tenant %q, source %q", text, got.Tenant, got.Source)
		}
	})
}
