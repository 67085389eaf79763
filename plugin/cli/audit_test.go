package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestTheAuditNamesTheBucketsThatAResetEmptied(t *testing.T) {
	for details, want := range map[string]string{
		`{"buckets":[{"policy":"writes","used":3},{"policy":"daily","used":3}]}`:   "2 buckets emptied: daily, writes",
		`{"buckets":[{"policy":"daily"},{"policy":"daily","endpoint":"records"}]}`: "2 buckets emptied: daily",
		`{"buckets":[{"policy":"daily"}]}`:                                         "1 bucket emptied: daily",
		`{"buckets":[]}`:                                                           "0 buckets emptied",
		`{"buckets": 3}`:                                                           "buckets=3",
		`["daily"]`:                                                                `["daily"]`,
		`null`:                                                                     "",
		``:                                                                         "",
	} {
		entry := rows.AuditEntry{Kind: "action", Operation: "reset", After: json.RawMessage(details)}
		if got := entryText(entry); got != want {
			t.Errorf("a reset of %s is shown as %q, want %q", details, got, want)
		}
	}
}

func TestAChangeInTheNameOfACallerOfTheAPIIsDenied(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	for _, actor := range []string{"token:ann", " Token:ann", "TOKEN:", "oidc:ann@example.org", " OIDC:"} {
		for _, x := range []*terminal{
			{t: t, env: map[string]string{databaseVariable: dsn, actorVariable: actor}},
			{t: t, env: map[string]string{databaseVariable: dsn}},
		} {
			args := []string{"tier", "put", "gold", "--reason", "x"}
			if x.env[actorVariable] == "" {
				args = append(args, "--actor", actor)
			}
			code, text := x.call(args...), x.output.String()
			if code != exitWrongCall || !strings.Contains(text, "reserved for the REST API") {
				t.Errorf("%q: exit code %d, want %d and the actor denied, in\n%s", args, code, exitWrongCall, text)
			}
		}
	}
}
