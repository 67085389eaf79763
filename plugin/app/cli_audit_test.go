package app

import (
	"encoding/json"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestAnAuditedResetTellsTheBucketsThatItEmptied(t *testing.T) {
	for details, want := range map[string]string{
		`[{"policy":"writes","used":3},{"policy":"daily","used":3}]`:               "2 buckets emptied: daily, writes",
		`{"buckets":[{"policy":"daily"},{"policy":"daily","endpoint":"records"}]}`: "2 buckets emptied: daily",
		`[{"policy":"daily"}]`: "1 bucket emptied: daily",
		`[]`:                   "0 buckets emptied",
		`{"buckets": 3}`:       "buckets=3",
		`["daily"]`:            `["daily"]`,
		`null`:                 "",
		``:                     "",
	} {
		entry := pgstore.AuditEntry{Kind: "action", Operation: "reset", After: json.RawMessage(details)}
		if got := entryText(entry); got != want {
			t.Errorf("a reset of %s is told as %q, want %q", details, got, want)
		}
	}
}

func TestAnAuditedFactorIsTheNumberThatLimitsAreMultipliedBy(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", `{"kind":"multiplier","factor":2000}`, `factor=2 kind="multiplier"`},
		{`{"factor":2000}`, `{"factor":1500}`, "factor: 2 → 1.5"},
		{`{"factor":1}`, "", "factor=0.001"},
		{"", `{"kind":"ban","factor":null}`, `kind="ban"`},
		{"", `{"factor":"odd"}`, `factor="odd"`},
	} {
		entry := pgstore.AuditEntry{Kind: "override", Before: json.RawMessage(c.before), After: json.RawMessage(c.after)}
		if got := entryText(entry); got != c.want {
			t.Errorf("%s → %s is told as %q, want %q", c.before, c.after, got, c.want)
		}
	}
	policy := pgstore.AuditEntry{Kind: "policy", After: json.RawMessage(`{"factor":2000}`)}
	if got := entryText(policy); got != "factor=2000" {
		t.Errorf("the column of another table is told as %q", got)
	}
}
