// Package events encodes what the limiter reports to other systems as CloudEvents 1.0 in structured mode: one JSON
// object for each event. It has the types of events, the rules for their attributes, and the encoding.
//
// It does not send. Package denial and the leader of `ratelimit serve` do, over Kafka and webhooks, and they decide
// when an event is lost. docs/events.md describes the types; the JSON schemas of their data are in schema/.
//
// The specification is https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md.
package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The media types of [Event.JSON] and [Batch].
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// Type says what an event reports, and so which schema its data has. A change that a reader of the data would
// misunderstand gets a new type.
type Type string

const prefix = "io.github.tenant-rate-limiting."

// The types.
const (
	Denial         Type = prefix + "denial"          // requests of a tenant that a policy denied
	PolicyUpdated  Type = prefix + "policy.updated"  // a change of a policy, tier, tenant, override or cost
	QuotaThreshold Type = prefix + "quota.threshold" // a tenant has used 50, 80 or 100 % of a quota
	AbuseStep      Type = prefix + "abuse.step"      // the abuse detector changed what it does with a tenant

	WebhookDisabled Type = prefix + "webhook.disabled" // a webhook was disabled, because its receiver failed
	WebhookTest     Type = prefix + "webhook.test"     // an operator tests a webhook
)

// Types returns all types, in the order of docs/events.md.
func Types() []Type {
	return []Type{Denial, PolicyUpdated, QuotaThreshold, AbuseStep, WebhookDisabled, WebhookTest}
}

// Control is the source of the events that the control plane makes: the leader, and Postgres.
const Control = "/control"

// NodeSource returns the source of the events that a node makes.
func NodeSource(node string) string { return "/nodes/" + url.PathEscape(node) }

// Event is one event.
type Event struct {
	ID     string // unique within Source: two events with equal Source and ID are one event, delivered twice
	Source string // NodeSource or Control, which are URI references
	Type   Type
	Time   time.Time
	// Tenant is the subject of the event, and its key in systems that partition. Any text is valid: the attributes have
	// U+FFFD for what a CloudEvent may not have, see [Text]. "" stands for no tenant.
	Tenant string
	Data   json.RawMessage // a JSON object
}

// cloudEvent has the attributes in the order in which they are written.
type cloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            Type            `json:"type"`
	Time            string          `json:"time"`
	Subject         string          `json:"subject,omitempty"`
	PartitionKey    string          `json:"partitionkey,omitempty"`
	DataContentType string          `json:"datacontenttype"`
	Data            json.RawMessage `json:"data"`
}

// JSON returns the event in structured mode, on one line. Its error names the attribute if a CloudEvent may not have
// its value.
func (e Event) JSON() ([]byte, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	tenant := Text(e.Tenant)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: e.Source, Type: e.Type, Time: e.Time.UTC().Format(time.RFC3339Nano),
		Subject: tenant, PartitionKey: tenant, DataContentType: "application/json", Data: e.Data,
	})
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// Batch returns the events as a JSON array in batch mode. Its error names the event and the attribute if one cannot be
// encoded.
func Batch(all []Event) ([]byte, error) {
	texts := make([][]byte, len(all))
	for i, event := range all {
		var err error
		if texts[i], err = event.JSON(); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]")), nil
}

// validate returns an error that names the first attribute that a CloudEvent may not have.
func (e Event) validate() error {
	switch {
	case e.ID == "":
		return fmt.Errorf("id: must not be empty")
	case e.ID != Text(e.ID):
		return fmt.Errorf("id: %q has a character that CloudEvents forbid: use printable UTF-8", e.ID)
	case e.Source == "":
		return fmt.Errorf("source: must not be empty: use NodeSource or Control")
	case !slices.Contains(Types(), e.Type):
		return fmt.Errorf("type: %q is none of %q", e.Type, Types())
	case e.Time.IsZero() || e.Time.UTC().Year() < 0 || e.Time.UTC().Year() > 9999:
		return fmt.Errorf("time: %d cannot be written in RFC 3339: set it to the instant of the event", e.Time.Unix())
	case !utf8.Valid(e.Data):
		return fmt.Errorf("data: must be UTF-8")
	case !json.Valid(e.Data) || bytes.TrimLeft(e.Data, " \t\r\n")[0] != '{':
		return fmt.Errorf("data: must be one JSON object, not %.60q", e.Data)
	}
	return nil
}

// Text returns text with U+FFFD in place of each character that an attribute may not have: control characters, code
// points that Unicode assigns to no character for ever, and bytes that are not UTF-8.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return utf8.RuneError
		}
		return r
	}, text)
}
