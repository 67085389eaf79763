package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// fakeNode answers each scrape with the next of its texts, and then with the last; it returns the node's address.
func fakeNode(t *testing.T, texts ...string) string {
	t.Helper()
	var scrapes atomic.Int64
	return nodeThat(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, texts[min(int(scrapes.Add(1)), len(texts))-1]) // a client that is gone fails the test itself
	})
}

func nodeThat(t *testing.T, answers http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answers)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func deadNode(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	return strings.TrimPrefix(server.URL, "http://")
}

// metric returns a line of a node's answer.
func metric(value float64, name string, labels ...string) string {
	var pairs []string
	for i := 0; i < len(labels); i += 2 {
		pairs = append(pairs, fmt.Sprintf(`%s="%s"`, labels[i], labels[i+1]))
	}
	return fmt.Sprintf("%s{%s} %v\n", name, strings.Join(pairs, ","), value)
}

func requested(value float64, tenant, result string) string {
	return metric(value, requestsFamily, "org_id", tenant, "endpoint", "POST /records", "tier", "gold",
		"result", result, "mode", "enforce")
}

// watching runs a monitor of nodes whose clock advances by the time it waits, until it has shown so many views.
func watching(t *testing.T, refreshes int, nodes ...string) (views []*topView) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	now := noon
	m := &monitor{
		every: 2 * time.Second, timeout: mostTimeout, order: byRequests, rows: defaultRows,
		now: func() time.Time { return now },
		wait: func(ctx context.Context, length time.Duration) error {
			now = now.Add(length)
			return ctx.Err()
		},
		show: func(v *topView) error {
			if views = append(views, v); len(views) == refreshes {
				cancel()
			}
			return nil
		},
	}
	for _, address := range nodes {
		m.nodes = append(m.nodes, &watched{address: address})
	}
	if err := m.run(ctx); err != nil {
		t.Fatalf("the end by Ctrl-C is an error: %v", err)
	}
	if len(views) != refreshes {
		t.Fatalf("it showed %d refreshes, want %d", len(views), refreshes)
	}
	return views
}

// topOnce calls the program with a clock that advances by two seconds with each reading.
func topOnce(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	var both bytes.Buffer
	now := noon
	o := operator{stdout: screen{to: &both}, stderr: screen{to: &both}, now: func() time.Time {
		now = now.Add(2 * time.Second)
		return now
	}}
	code = o.run(t.Context(), append([]string{"top", "--once", "--every", "100ms"}, args...))
	return both.String(), code
}

// busyFleet returns two nodes that answer and one that does not.
func busyFleet(t *testing.T) (nodes []string) {
	t.Helper()
	var texts [4]string
	for i, file := range []string{"edge-1.first", "edge-1.second", "edge-2.first", "edge-2.second"} {
		text, err := os.ReadFile(filepath.Join("testdata/ratelimit/top", file))
		require.NoError(t, err)
		texts[i] = string(text)
	}
	return []string{fakeNode(t, texts[:2]...), fakeNode(t, texts[2:]...), deadNode(t)}
}

// named returns an output with names of the same length in place of addresses, whose ports differ from run to run.
func named(output string, nodes []string) string {
	for i, address := range nodes {
		output = strings.ReplaceAll(output, address, fmt.Sprintf("edge-%d.lan:9542", i+1))
	}
	return output
}

func TestTopShowsAFleetAsPublished(t *testing.T) {
	for file, args := range map[string][]string{"top.table": nil, "top.json": {"-o", "json"}} {
		nodes := busyFleet(t)
		for _, node := range nodes {
			args = append(args, "--node", node)
		}
		output, code := topOnce(t, args...)
		if code != 0 {
			t.Errorf("%s: exit code %d, want 0: a node that does not answer is shown, and no failure", file, code)
		}
		golden.Check(t, filepath.Join("testdata/ratelimit/top", file), named(output, nodes))
	}
}

func TestTopOnceWritesExactlyOneDocumentAfterTwoScrapes(t *testing.T) {
	var scrapes atomic.Int64
	node := nodeThat(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, requested(float64(100*scrapes.Add(1)), "acme", "allowed"))
	})
	output, code := topOnce(t, "--node", node, "-o", "json")
	decoder := json.NewDecoder(strings.NewReader(output))
	var view topView
	if err := decoder.Decode(&view); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v, output\n%s", code, err, output)
	}
	if view.Total.Requests != 50 || scrapes.Load() != 2 {
		t.Errorf("%v requests/s from %d scrapes, want 50 from 2", view.Total.Requests, scrapes.Load())
	}
	if err := decoder.Decode(&view); !errors.Is(err, io.EOF) {
		t.Errorf("behind the document there is more (%v):\n%s", err, output)
	}
}

func TestTopOfDeadNodesOnlyFails(t *testing.T) {
	output, code := topOnce(t, "--node", deadNode(t))
	if code != exitFailed || !strings.Contains(output, "0 of 1 node answering") ||
		!strings.Contains(output, "connection refused") {
		t.Errorf("exit code %d, output\n%s", code, output)
	}
}

func TestTopReadsAllNodesAtTheSameTime(t *testing.T) {
	var both sync.WaitGroup // each node answers only after the other is scraped
	both.Add(2)
	var scrapes atomic.Int64
	answer := func(w http.ResponseWriter, _ *http.Request) {
		if scrapes.Add(1) <= 2 {
			both.Done()
			both.Wait()
		}
		_, _ = io.WriteString(w, requested(1, "acme", "allowed"))
	}
	view := watching(t, 1, nodeThat(t, answer), nodeThat(t, answer))[0]
	if n := view.answering(); n != 2 {
		t.Errorf("%d nodes answer, want 2: %+v", n, view.Nodes)
	}
}

func TestTopGivesUpANodeThatHangs(t *testing.T) {
	release := make(chan struct{})
	hangs := nodeThat(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	n := &watched{address: hangs}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	n.read(ctx, newScraper(), noon)
	if n.err == nil || n.err.Error() != "timed out" {
		t.Errorf("the error of a node that hangs is %v", n.err)
	}
}

func TestTopReportsWhatAnswersInsteadOfANode(t *testing.T) {
	for name, c := range map[string]struct {
		answers http.HandlerFunc
		want    string
	}{
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			"status 503",
		},
		"a page": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") },
			"read the metrics",
		},
		"a redirect": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
			"status 302",
		},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, "not a node"},
		"another one": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "go_goroutines 7\n") },
			"not a node",
		},
		"invalid UTF-8": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, requested(1, "\xff\xfe", "allowed"))
		}, "read the metrics"},
	} {
		n := &watched{address: nodeThat(t, c.answers)}
		n.read(t.Context(), newScraper(), noon)
		if n.err == nil || !strings.Contains(n.err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q in it", name, n.err, c.want)
		}
	}
}

func TestTopWritesNothingThatATerminalObeys(t *testing.T) {
	hostile := "\x1b[2J\x1b]0;owned\x07\u009b31m\u202eevil\x7f\U000e0001" + strings.Repeat("long", 1000)
	hostile += `\" \\ \n|`
	labelled := func(value float64) string {
		return metric(value, requestsFamily, "org_id", hostile, "endpoint", hostile, "tier", hostile,
			"result", "allowed", "mode", hostile) +
			metric(value, denialsFamily, "policy", hostile, "scope", hostile, "tier", hostile) +
			metric(0.5, usageFamily, "org_id", hostile, "policy", hostile) + metric(1, degradedFamily, "store", hostile)
	}
	for _, format := range []string{formatTable, formatJSON, formatYAML} {
		output, code := topOnce(t, "--node", fakeNode(t, labelled(1), labelled(21)), "-o", format)
		obeyed := func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }
		if i := strings.IndexFunc(output, obeyed); i >= 0 || code != 0 {
			t.Errorf("%s: exit code %d, and at %d there is %q", format, code, i, output[max(i, 0):][:20])
		}
		if format != formatTable {
			var view topView
			if err := readAs(format, output, &view); err != nil || len(view.Tenants) != 1 ||
				!strings.HasPrefix(view.Tenants[0].Tenant, hostile[:20]) {
				t.Errorf("the document does not have the tenant's name (%v):\n%.300q", err, output)
			}
			continue
		}
		for line := range strings.Lines(output) {
			if len([]rune(line)) > 250 {
				t.Errorf("a line has %d characters: %.80q…", len(line), line)
			}
		}
	}
}

// readAs reads a document into a value whose fields are named for JSON.
func readAs(format, document string, to any) error {
	if format == formatYAML {
		var value any
		if err := yaml.Unmarshal([]byte(document), &value); err != nil {
			return err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		document = string(text)
	}
	return json.Unmarshal([]byte(document), to)
}

func TestTopOverwritesOnATerminalAndAppendsElsewhere(t *testing.T) {
	view := newTopView(noon, nil, byRequests, 1)
	for over, want := range map[bool]string{
		true:  overwrite + topText(view) + overwrite + topText(view),
		false: topText(view) + "\n" + topText(view),
	} {
		var b strings.Builder
		show := tablePrinter(screen{to: &b}, over)
		for range 2 {
			require.NoError(t, show(view))
		}
		if b.String() != want {
			t.Errorf("on a terminal: %t; wrote %q, want %q", over, b.String(), want)
		}
	}
}

func TestTopEndsCleanlyWhenItIsInterrupted(t *testing.T) {
	for name, once := range map[string]bool{"for ever": false, "once": true} {
		for _, reading := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			m := &monitor{
				nodes: []*watched{{address: fakeNode(t, "rate_limiter_instances 1\n")}},
				every: time.Hour, timeout: mostTimeout, once: once,
				now: func() time.Time {
					if reading {
						cancel()
					}
					return noon
				},
				wait: func(ctx context.Context, length time.Duration) error {
					cancel()
					return pause(ctx, length)
				},
				show: func(*topView) error { t.Error("showed an interrupted refresh"); return nil },
			}
			if err := m.run(ctx); (err != nil) != once {
				t.Errorf("%s, interrupted while it reads: %t; the end is %v", name, reading, err)
			}
		}
	}
}

func TestATerminalShowsTheFirstAnswerBeforeThereAreRates(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := &monitor{
		nodes: []*watched{{address: fakeNode(t, metric(7, versionFamily))}},
		every: time.Hour, timeout: mostTimeout, live: true,
		now: func() time.Time { return noon }, wait: pause,
		show: func(v *topView) error {
			cancel()
			if text := topText(v); !strings.Contains(text, "version 7") || !strings.Contains(text, "first answer") {
				t.Errorf("before there are rates it shows\n%s", text)
			}
			return nil
		},
	}
	if err := m.run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("it ended with %v before it showed anything", err)
	}
}

func TestTopReportsAWrongCall(t *testing.T) {
	for _, c := range []struct{ call, want string }{
		{"top --node edge-1", "must be host:port"},
		{"top --node :9542", "must be host:port"},
		{"top --node edge-1:http", "must be host:port"},
		{"top --node edge-1/path:9542", "must be host:port"},
		{"top --node me@edge-1:9542", "must be host:port"},
		{"top --node edge-1:1 --node edge-1:1", "appears twice"},
		{"top --every 10ms", "--every must be at least 100ms"},
		{"top --every never", "must be a duration above 0"},
		{"top --sort tenant", "must be requests, denied or near"},
		{"top --rows 0", "at least 1"},
		{"top edge-1:9542", "unexpected argument"},
	} {
		x := &terminal{t: t}
		if code := x.call(words(t, c.call)...); code != exitWrongCall || !strings.Contains(x.output.String(), c.want) {
			t.Errorf("%s: exit code %d, want 2; output\n%s\nwant %q", c.call, code, x.output.String(), c.want)
		}
	}
}

// TestTopReadsOnlyMetricsThatANodePublishes keeps the names of both sides the same.
func TestTopReadsOnlyMetricsThatANodePublishes(t *testing.T) {
	published, err := os.ReadFile("../observe/metrics/testdata/metrics.golden")
	require.NoError(t, err)
	for _, family := range []string{
		requestsFamily + " counter {endpoint,mode,org_id,result,tier}", denialsFamily + " counter {policy,scope,tier}",
		shadowFamily + " counter {policy,scope,tier}", unverifiedFamily + " counter {fail_mode,policy}",
		usageFamily + " gauge {org_id,policy}", degradedFamily + " gauge {store}",
		versionFamily + " gauge {}", ageFamily + " gauge {}", connectedFamily + " gauge {}",
	} {
		if !strings.Contains("\n"+string(published), "\n"+family+"\n") {
			t.Errorf("no node publishes %s", family)
		}
	}
}
