package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// tokens is a limit a year that settles, as arguments of a command that puts a policy.
func tokens(limit, reserve int, source string) []string {
	return []string{
		"tokens", "--tier", "enterprise", "--limit", strconv.Itoa(limit), "--window", "31536000",
		"--algorithm", "fixed_window", "--reason", "a spec", "--wait=30s",
		"--settle", fmt.Sprintf(`{"sources":[{"from":"header.%s"}],"reserve":%d}`, source, reserve),
	}
}

// free is the answer to a request that has used nothing, by either rule of the spec.
const free = "/answer?header=X-Used:0&header=X-Billed:0"

func TestAnAssignedTenantIsSettledUnderTheLimitsOfTheCandidate(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise}, {name: essentials}]`)
	deck := `_format_version: "3.0"
services:
- {name: answer, url: "http://answer.internal", routes: [{name: answer, paths: [/answer], plugins: [{name: key-auth},
    {name: tenant-rate-settling}, {name: tenant-rate-limiting, config: ` + p.config + `}]}]}` + consumers
	n := start(t, deck, serverWith("-database", p.dsn, "-snapshot-dir", "off", "-metrics-listen", "off",
		"-node-name", "one"), withCompanion)
	sent := int64(0)
	get := func(key, path string) answer { // its charge is settled when get returns
		t.Helper()
		sent++
		a := n.get(path, "apikey", key)
		await.That(t, "the log phase", func() bool { return n.Counters().LogEvents() >= sent })
		return a
	}
	awaitLimit := func(key string, limit int) {
		t.Helper()
		await.That(t, fmt.Sprintf("%s has a limit of %d", key, limit), func() bool {
			return get(key, free).Header.Get("X-RateLimit-Limit") == strconv.Itoa(limit)
		})
	}
	want := func(key, path string, status, remaining int) {
		t.Helper()
		a := get(key, path)
		if got := a.Header.Get("X-RateLimit-Remaining"); a.Status != status || got != strconv.Itoa(remaining) {
			t.Errorf("%s of %s: %d with %s tokens left, want %d with %d", path, key, a.Status, got, status, remaining)
		}
	}
	// it fails while no node is live
	await.That(t, "the node reports", func() bool {
		return p.command("fleet").Run() == nil
	})
	p.operate(append([]string{"policy", "put"}, tokens(10_000, 100, "X-Used")...)...)
	p.operate("tenant", "set", "gamma", "--tier", "enterprise", "--reason", "a spec", "--wait=30s")
	awaitLimit("alice", 10_000)
	awaitLimit("gus", 10_000)
	const used30Billed70 = "/answer?header=X-Used:30&header=X-Billed:70"
	want("alice", used30Billed70, http.StatusOK, 9900)
	want("alice", free, http.StatusOK, 9870)

	p.operate("candidate", "create", "july", "--reason", "a spec")
	p.operate(append([]string{"candidate", "put", "july"}, tokens(900, 300, "X-Billed")...)...)
	want("alice", free, http.StatusOK, 9870) // it is only tried beside the active limit
	p.operate("candidate", "assign", "july", "--tenant", "acme", "--reason", "a spec", "--wait=30s")
	awaitLimit("alice", 900)
	awaitLimit("gus", 10_000)

	// The candidate reserves 300 tokens and charges what is billed, in the bucket that has spent 30.
	want("alice", used30Billed70, http.StatusOK, 570)
	want("alice", free, http.StatusOK, 500)
	want("alice", "/answer?header=X-Used:0&header=X-Billed:650", http.StatusOK, 500)
	want("alice", free, http.StatusTooManyRequests, 150)
	want("alice", free, http.StatusTooManyRequests, 150) // a denied request has reserved nothing
	want("gus", used30Billed70, http.StatusOK, 9900)
	want("gus", free, http.StatusOK, 9870)

	// The active limit has what the candidate has spent, and its rule again.
	p.operate("candidate", "assign", "july", "--remove", "acme", "--reason", "a spec", "--wait=30s")
	awaitLimit("alice", 10_000)
	want("alice", used30Billed70, http.StatusOK, 9150)
	want("alice", free, http.StatusOK, 9120)
}
