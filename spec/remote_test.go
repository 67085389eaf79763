package spec

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// operatorAway runs commands of the operator's program on a machine without a database.
type operatorAway struct {
	t      *testing.T
	server string
	dir    string
}

// want runs a command, which must end with an exit code and show a text.
func (o operatorAway) want(code int, text string, args ...string) {
	o.t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "ratelimit"), append(args, "--server", o.server)...)
	cmd.Dir = o.dir
	out, err := cmd.CombinedOutput()
	got := 0
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		got, err = failed.ExitCode(), nil
	}
	require.NoError(o.t, err)
	if got != code || !strings.Contains(string(out), text) {
		o.t.Errorf("ratelimit %q: exit code %d, want %d and %q in\n%s", args, got, code, text, out)
	}
}

func TestCommandsRunByTheRESTAPIOfAServerWithATokensRights(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	a := p.serve()
	a.awaitFleet(1) // a write awaits the nodes that have reported
	o := operatorAway{t, a.url, t.TempDir()}
	file := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o600))
	}
	file("admin", p.admin+"\n")
	file("tenant", p.token("dash", "tenant:acme"))
	file("wrong", "rl_unknown")
	put := func(name, limit string, more ...string) []string {
		return append([]string{
			"policy", "put", name, "--tier", "gold", "--limit", limit, "--window", "24h", "--reason", "a spec",
			"--token-file", "admin",
		}, more...)
	}

	o.want(0, `no tier is named "gold", in the plugin's config or in the database`, put("daily", "1000")...)
	o.want(1, "--force: must be true for this policy", put("all", "10", "--scope", "global")...)
	o.want(0, "put policy all of tier gold", put("all", "10", "--scope", "global", "--force")...)
	o.want(0, "enforced on 1 of 1 live node", put("daily", "900", "--wait=30s")...)
	o.want(0, "window size  86400\n", "policy", "get", "daily", "--tier", "gold", "--token-file", "admin")
	if audit := p.operate("audit", "--actor", "token:ann"); !strings.Contains(audit, "a spec") {
		t.Errorf("the audit does not name the token:\n%s", audit)
	}

	file("limits.yaml", "policies: []\ntenants: [{id: acme, tier: gold}]\n")
	apply := []string{"apply", "-f", "limits.yaml", "--reason", "a spec", "--token-file"}
	o.want(1, "2 rows would be deleted: use --yes", append(apply, "admin")...)
	o.want(1, "1 to create, 0 to change, 2 to delete", "diff", "-f", "limits.yaml", "--token-file", "admin")
	o.want(1, "use a token with the role admin", append(apply, "tenant", "--yes")...)
	o.want(0, "applied limits.yaml; version", append(apply, "admin", "--partial")...)
	o.want(0, "{id: acme, tier: gold}", "dump", "--token-file", "admin")
	o.want(1, "use a token with the role admin", "dump", "--token-file", "tenant")

	o.want(1, "unknown, expired or revoked: ratelimit token create makes a new one",
		"policy", "list", "--token-file", "wrong")
	o.want(1, "use a token with the role admin, or viewer to read", "policy", "list", "--token-file", "tenant")
	o.want(0, "none\n", "override", "list", "--token-file", "admin")
	o.want(0, "token:ann", "audit", "--token-file", "admin")
	o.want(0, "none\n", "usage", "notices", "--token-file", "admin")
	o.want(0, "are not closed, and left out", "usage", "export", "--month", "2099-01", "--token-file", "admin")
	o.want(1, "use a token with the role admin", "usage", "export", "--month", "2099-01", "--token-file", "tenant")
	o.want(2, "--token-file is required", "policy", "list")
	o.want(2, "with --server the actor is the token", put("daily", "1", "--actor", "bob")...)
	o.want(2, "use either --server or a database", "policy", "list", "--token-file", "admin", "--database", p.dsn)

	o.server = "http://192.0.2.1:8090"
	o.want(2, "must begin with https://", "policy", "list", "--token-file", "admin")
	o.server = "https://nosuchhost.invalid"
	o.want(1, "nosuchhost.invalid", "policy", "list", "--token-file", "admin")

	at, err := url.Parse(a.url)
	require.NoError(t, err)
	encrypted := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(at))
	t.Cleanup(encrypted.Close)
	o.server = encrypted.URL
	o.want(1, "its certificate is not trusted", "policy", "list", "--token-file", "admin")
	file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encrypted.Certificate().Raw})))
	o.want(0, "daily", "policy", "list", "--token-file", "admin", "--ca-file", "ca.pem")

	foreign := httptest.NewServer(nil)
	t.Cleanup(foreign.Close)
	o.server = foreign.URL
	o.want(1, "does not answer as the REST API of ratelimit serve", "policy", "list", "--token-file", "admin")
}
