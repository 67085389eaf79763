package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

func TestAMadeNameHasNoUserCredentialOrAddressAndTheScopeIsThatOfTheTarget(t *testing.T) {
	t.Parallel()
	w := open(t)
	names := map[string]bool{}
	for target, want := range map[string]string{
		`"tenant": "acme", "user": "u_42"`: "user", `"tenant": "acme", "user": "u_43"`: "user",
		`"credential": "key_42"`: "credential", `"ip": "192.0.2.42"`: "ip",
		`"for": "anonymous"`: "ip", `"for": "all"`: "global",
	} {
		body := `{` + target + `, "limit": 1000, "window_size": 60}`
		p := read[api.PolicyWritten](w, w.want(w.as("POST", policies+"?force=true", body), http.StatusCreated)).Policy
		if p.Scope != want || names[p.Name] || strings.Contains(p.Name, "_42") || strings.Contains(p.Name, "192") {
			t.Errorf("%s is named %q, with scope %s", body, p.Name, p.Scope)
		}
		names[p.Name] = true
	}
}
