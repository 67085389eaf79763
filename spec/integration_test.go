package spec

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// program is a client of docs/integration.md.
type program struct {
	name string // of the command that runs it, or builds it
	file string
}

// clientPrograms returns the clients of docs/integration.md whose languages this machine has; that is Go at least.
func clientPrograms(t *testing.T) []program {
	t.Helper()
	languages := map[string]program{
		"bash":       {name: "bash", file: "client.sh"},
		"go":         {name: "go", file: "client.go"},
		"python":     {name: "python3", file: "client.py"},
		"javascript": {name: "node", file: "client.mjs"},
	}
	var all []program
	for _, b := range codeBlocks(file(t, "docs/integration.md")) {
		p, expected := languages[b.language]
		if !expected {
			t.Fatalf("a client in %s, which no test runs", b.language)
		}
		delete(languages, b.language)
		if _, err := exec.LookPath(p.name); err != nil {
			t.Logf("no client in %s is run: %v", b.language, err)
			continue
		}
		if p.file = filepath.Join(t.TempDir(), p.file); os.WriteFile(p.file, []byte(b.text), 0o600) != nil {
			t.Fatalf("write %s", p.file)
		}
		if p.name == "go" {
			if out, err := exec.Command("go", "build", "-o", p.file+".exe", p.file).CombinedOutput(); err != nil {
				t.Fatalf("build the client: %v\n%s", err, out)
			}
			p.file += ".exe"
		}
		all = append(all, p)
	}
	if len(languages) > 0 || len(all) == 0 {
		t.Fatalf("%d programs run, and none is in %v", len(all), languages)
	}
	return all
}

// command returns the command that runs the program.
func (p program) command(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	if p.name == "go" {
		return exec.CommandContext(t.Context(), p.file, url)
	}
	return exec.CommandContext(t.Context(), p.name, p.file, url)
}

// denying answers the first request with a status and a Retry-After, and the later ones with 200.
type denying struct {
	status     int
	retryAfter string

	mu       sync.Mutex
	requests []time.Time
}

func (d *denying) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, time.Now())
	if len(d.requests) > 1 {
		_, _ = w.Write([]byte("done\n"))
		return
	}
	if d.retryAfter != "" {
		w.Header().Set("Retry-After", d.retryAfter)
	}
	w.WriteHeader(d.status)
}

func TestTheClientsOfTheDocsWaitAsLongAsADenialSays(t *testing.T) {
	t.Parallel()
	for _, p := range clientPrograms(t) {
		for name, test := range map[string]struct {
			status     int
			retryAfter string
			admitted   bool
			not        []string // the clients that it does not hold for
		}{
			"a wait":                 {429, "1", true, nil},
			"fails closed":           {503, "1", true, nil},
			"no wait helps":          {429, "", false, []string{"bash"}},
			"a wait until tomorrow":  {429, "86400", false, nil},
			"an error of the server": {500, "", false, []string{"bash"}},
		} {
			if slices.Contains(test.not, p.name) {
				continue
			}
			t.Run(p.name+", "+name, func(t *testing.T) {
				t.Parallel()
				d := &denying{status: test.status, retryAfter: test.retryAfter}
				server := httptest.NewServer(d)
				defer server.Close()
				out, err := p.command(t, server.URL).Output()
				if admitted := err == nil && string(out) == "done\n"; admitted != test.admitted {
					t.Errorf("%q, %v; admitted is to be %v", out, err, test.admitted)
				}
				if want := map[bool]int{true: 2, false: 1}[test.admitted]; len(d.requests) != want {
					t.Fatalf("%d requests, want %d", len(d.requests), want)
				}
				if test.admitted && d.requests[1].Sub(d.requests[0]) < time.Second {
					t.Errorf("the second request came %v after the first, before its Retry-After", d.requests[1].Sub(d.requests[0]))
				}
			})
		}
	}
}
