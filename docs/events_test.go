package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

var (
	// A row of the table of types, with the schema of its data.
	eventRow = regexp.MustCompile("(?m)^\\| `([a-z.]+)` \\| \\[(schema/\\w+\\.schema\\.json)\\]")
	// An example of an event.
	eventExample = regexp.MustCompile("(?ms)^`([a-z.]+)`[^\\n]*\\n\\n```json\\n(.*?)\\n```$")
)

const eventPrefix = "io.github.tenant-rate-limiting."

func TestTheDocsHaveAnExampleOfEachTypeOfEventWithValidData(t *testing.T) {
	page := read(t, "events.md")
	schemas := map[string]*jsonschema.Schema{}
	for _, row := range eventRow.FindAllStringSubmatch(page, -1) {
		compiled, err := jsonschema.NewCompiler().Compile("../" + row[2])
		require.NoError(t, err)
		schemas[eventPrefix+row[1]] = compiled
	}
	seen := map[string]bool{}
	for _, example := range eventExample.FindAllStringSubmatch(page, -1) {
		kind := eventPrefix + example[1]
		seen[kind] = true
		e := decodeEvent(t, example[2])
		if string(e.Type) != kind || schemas[kind] == nil {
			t.Errorf("the example of %s has the type %s; a schema: %t", kind, e.Type, schemas[kind] != nil)
			continue
		}
		data, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Data))
		if err == nil {
			err = schemas[kind].Validate(data)
		}
		if err != nil {
			t.Errorf("the data of %s: %v", kind, err)
		}
	}
	for kind := range schemas {
		if !seen[kind] {
			t.Errorf("%s has no example", kind)
		}
	}
	for _, kind := range events.Types() {
		name := strings.TrimPrefix(string(kind), eventPrefix)
		if schemas[string(kind)] == nil && !strings.Contains(read(t, "webhooks.md"), "`"+name+"`") {
			t.Errorf("%s has no row in docs/events.md, and docs/webhooks.md does not name it", kind)
		}
	}
}

func TestTheDocsCreateTheTopicOfDenialsWithARetentionOfSevenDays(t *testing.T) {
	_, command, found := strings.Cut(read(t, "events.md"), "```text\nkafka-topics.sh ")
	command, _, _ = strings.Cut(command, "```")
	for _, want := range []string{
		"--topic ratelimit.denials ", fmt.Sprintf("retention.ms=%d ", (7 * 24 * time.Hour).Milliseconds()),
		"message.timestamp.type=LogAppendTime",
	} {
		if !found || !strings.Contains(command, want) {
			t.Errorf("the command is %q, want it with %q", command, want)
		}
	}
}

// decodeEvent decodes an example, and checks that package events writes it so.
func decodeEvent(t *testing.T, text string) events.Event {
	t.Helper()
	var c struct {
		ID, Source, Subject string
		Type                events.Type
		Time                time.Time
		Data                json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	e := events.Event{ID: c.ID, Source: c.Source, Type: c.Type, Time: c.Time, Tenant: c.Subject, Data: c.Data}
	got, err := e.JSON()
	var want bytes.Buffer
	if err == nil {
		err = json.Compact(&want, []byte(text))
	}
	if err != nil || string(got) != want.String() {
		t.Errorf("the example is\n%s\nand package events writes\n%s (%v)", want.String(), got, err)
	}
	return e
}
