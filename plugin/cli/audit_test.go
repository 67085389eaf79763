package cli

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

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
