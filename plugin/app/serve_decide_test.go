package app

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// deciding is the decider of a serve with a decK file.
func deciding(t *testing.T, file string, flags ...string) *decider {
	t.Helper()
	s, c, err := serveOf(t, map[string]string{databaseVariable: nowhere}, strings.Join(append(flags, "--config "+file), " "))
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.decider(t.Context(), s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		if err := d.run(ended); err != nil { // closes what is open
			t.Error(err)
		}
	})
	return d
}

func TestServeBoundsHowManyAddressesHaveBucketsInRedis(t *testing.T) {
	for line, want := range map[string][2]int{
		"":                                      {addresses.DefaultMost/32*32 + 32, addresses.DefaultRate},
		"--max-addresses 64 --new-addresses 7":  {64, 7},
		"--max-addresses 64 --new-addresses 0":  {64, 0},
		"--max-addresses 0 --new-addresses 100": {0, 0},
	} {
		all := deciding(t, "testdata/ratelimit/buckets.yml", strings.Fields(line)...).stores.Stats()
		if len(all) != 1 || all[0].Addresses.Most != want[0] || all[0].Addresses.Rate != want[1] {
			t.Errorf("%q: %+v, want room for %d addresses (0: any number), %d new ones a second", line, all, want[0], want[1])
		}
	}
}

func TestServeKnowsTheRoutesOfItsFileAndLabelsNoOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kong.yml")
	text, err := os.ReadFile("testdata/ratelimit/buckets.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "strategy: redis", "strategy: local", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	d := deciding(t, file)
	if !slices.Equal(slices.Sorted(maps.Keys(d.routes)), []string{"records", "search"}) {
		t.Errorf("it knows the routes %v", d.routes)
	}
	for _, endpoint := range []string{"records", "invented"} {
		var x admit.Exchange
		known := &admit.Known{Tenant: "acme"}
		if known.Method, known.Path, known.Route = admit.Target(endpoint); d.path.Admit(t.Context(), known, &x) != nil || x.Decision.Denied() {
			t.Fatalf("%s: %+v", endpoint, x.Decision)
		}
	}
	told, err := testutil.GatherAndCount(d.metrics, "rate_limiter_requests_total")
	if err != nil || told != 2 {
		t.Errorf("%d series of requests (%v), want one for records and one for no endpoint", told, err)
	}
	families, err := d.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.Contains(f.String(), "invented") {
			t.Errorf("%s has a label that the config does not know", f.GetName())
		}
	}
	if p := leasable(t, d); d.asked != nil && d.asked(p) != p {
		t.Error("buckets of this process are asked as if others leased from them")
	}
}

func TestServeDecidesByTheRowsOfAnEarlierRunUntilItHasThoseOfTheDatabase(t *testing.T) {
	dsn, dir := pgtest.Start(t).Database(t), t.TempDir()
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	if x.call("override", "add", "--tenant", "acme", "--kind", "ban", "--permanent", "--reason", "abuse") != 0 {
		t.Fatal(x.output.String())
	}
	x.save(dsn, dir)
	d := deciding(t, onRedis(t, redistest.Single(t)), "--snapshot-dir "+dir)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.rows.Run(ctx) }()
	<-d.loaded
	var decided admit.Exchange
	if err := d.path.Admit(t.Context(), &admit.Known{Tenant: "acme"}, &decided); err != nil || !decided.Decision.Denied() {
		t.Errorf("a tenant whose ban was saved is decided about as %+v (%v)", decided.Decision, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestServeTellsWithWhatALeasedBucketIsAsked(t *testing.T) {
	d := deciding(t, onRedis(t, redistest.Single(t)))
	p := leasable(t, d)
	if d.asked == nil || d.asked(p).Limit.Capacity() >= p.Limit.Capacity() {
		t.Errorf("%s is not asked with less than it has", p.Name)
	}
}

func TestOperatorsOfServeReadWhatRequestsHaveNoTimeFor(t *testing.T) {
	proxy, err := faultproxy.New(faultproxy.TCP(redistest.Single(t).Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	d := deciding(t, onPort(t, proxy.Port()))
	proxy.Delay(faultproxy.ToClient, 150*time.Millisecond) // three times the default read_timeout
	p := leasable(t, d)
	bounds := []policy.Bound{{Policy: p, Key: policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByAll}}}
	statuses := make([]decision.Status, 1)
	if err := d.patient.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Source != decision.Redis {
		t.Errorf("%+v, %v: want an answer for operators", statuses[0], err)
	}
	if err := d.inRedis.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Failure == decision.NoFailure {
		t.Errorf("%+v, %v: want none for requests", statuses[0], err)
	}
}

// leasable is a policy of a decider's config of which tokens may be taken ahead of need.
func leasable(t *testing.T, d *decider) *policy.Policy {
	t.Helper()
	for _, p := range d.path.Policies.Load().Policies() {
		if p.Name == "everyone" {
			return p
		}
	}
	t.Fatal("the config has no limit for everyone")
	return nil
}
