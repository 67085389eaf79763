package suggest_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/suggest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// minutely takes the most of each minute, without headroom.
var minutely = suggest.Options{
	Percentile: 100, Headroom: 1, Window: 60 * limit.Second, Endpoints: 5, DefaultTier: "default",
}

// traffic is a log in CSV.
type traffic struct{ bytes.Buffer }

func newTraffic() *traffic {
	t := new(traffic)
	t.WriteString("started_at,consumer.custom_id,consumer.tag.tier,method,path\n")
	return t
}

// add adds n requests of a tenant that begin in a minute.
func (t *traffic) add(n, minute int, tenant, tier, endpoint string) {
	method, path, _ := strings.Cut(endpoint, " ")
	for i := range n {
		at := time.Date(2026, 11, 20, 12, minute, 0, i*1000, time.UTC)
		fmt.Fprintf(t, "%s,%s,%s,%s,%s\n", at.Format(time.RFC3339Nano), tenant, tier, method, path)
	}
}

// run replays the traffic under configs.
func (t *traffic) run(
	tb testing.TB, file *routeconfig.File, decided func(*replay.Request, *decision.Decision),
) *replay.Report {
	tb.Helper()
	log, err := replay.NewLog("access.csv", bytes.NewReader(t.Bytes()), replay.LogOptions{})
	require.NoError(tb, err)
	gateway, err := replay.NewGateway(file, replay.GatewayOptions{})
	require.NoError(tb, err)
	stream := replay.NewStream([]*replay.Log{log}, replay.StreamOptions{})
	report, err := replay.Run(context.Background(), stream, gateway, decided)
	if err != nil || report.Counts.Unparsed > 0 {
		tb.Fatalf("%v, %+v", err, report.Counts)
	}
	return report
}

// suggest returns the suggestions for the traffic.
func (t *traffic) suggest(tb testing.TB, file *routeconfig.File, o suggest.Options) []suggest.Suggestion {
	tb.Helper()
	c := suggest.NewCollector(o)
	t.run(tb, suggest.Probe(file), c.Add)
	list := c.Suggest()
	suggest.AddTouched(list, t.run(tb, suggest.Judge(file, list, o.DefaultTier), nil))
	return list
}

// limits returns tier, endpoint and limit of suggestions.
func limits(list []suggest.Suggestion) (texts []string) {
	for _, s := range list {
		texts = append(texts, strings.TrimSpace(fmt.Sprintf("%s %d %s", s.Tier, s.Limit, s.Endpoint)))
	}
	return texts
}

func TestLimitsSufficeForTheMostOfEachTierAndEndpoint(t *testing.T) {
	log := newTraffic()
	log.add(10, 0, "acme", "gold", "GET /records/17?q=1")
	log.add(3, 0, "acme", "gold", "POST /records")
	log.add(4, 1, "globex", "gold", "GET /records/9")
	log.add(7, 1, "initech", "", "GET /records/10")
	list := log.suggest(t, suggest.Default(), minutely)
	want := []string{
		"default 7", "default 7 GET /records/{id}",
		"gold 13", "gold 10 GET /records/{id}", "gold 3 POST /records",
	}
	if !slices.Equal(limits(list), want) {
		t.Errorf("limits %q, want %q", limits(list), want)
	}
	for _, s := range list {
		if s.Touched.Denied != 0 {
			t.Errorf("%+v would have denied requests", s)
		}
	}
}

func TestTouchedTenantsAreThoseThatAReplayDenies(t *testing.T) {
	log := newTraffic()
	for i := range 9 {
		log.add(10, i, "acme", "gold", "GET /")
	}
	log.add(50, 9, "globex", "gold", "GET /")
	o := minutely
	o.Percentile, o.Headroom, o.Endpoints = 90, 1.2, 0
	list := log.suggest(t, suggest.Default(), o)
	if len(list) != 1 || list[0].Limit != 12 || list[0].Observed != 10 || list[0].Most != 50 || list[0].Tenants != 2 {
		t.Fatalf("suggestions %+v", list)
	}
	if want := (suggest.Touched{Tenants: 1, Denied: 38}); list[0].Touched != want {
		t.Errorf("touched %+v, want %+v", list[0].Touched, want)
	}
}

func TestCostsAndTiersAreThoseOfTheConfig(t *testing.T) {
	const config = `
plugins:
- name: tenant-rate-limiting
  config:
    default_tier: small
    costs: {"POST /bulk": 5}
    tiers:
    - {name: big, limits: []}
    - {name: small, limits: [{name: x, scope: tenant, limit: 1, window_size: 1}]}
    exempt: [{endpoint: "GET /healthz"}]
    global: {limits: [{name: all, scope: global, limit: 1, window_size: 60}]}
`
	file, err := routeconfig.Read([]byte(config), "kong.yml")
	require.NoError(t, err)
	log := newTraffic()
	log.add(2, 0, "acme", "big", "POST /bulk")
	log.add(100, 0, "acme", "big", "GET /healthz")
	log.add(2, 1, "globex", "unheard", "GET /records")
	got := limits(log.suggest(t, file, minutely))
	want := []string{"big 10", "big 10 POST /bulk", "small 2", "small 2 GET /records"}
	if !slices.Equal(got, want) {
		t.Errorf("limits %q, want %q", got, want)
	}
}

func TestManyNamesBelowAPathAreIDs(t *testing.T) {
	log := newTraffic()
	for i := range 500 {
		name := fmt.Sprintf("%c%c", 'a'+i%26, 'a'+i/26)
		log.add(1, 0, "acme", "gold", "GET /users/"+name+"/orders")
	}
	list := log.suggest(t, suggest.Default(), minutely)
	if len(list) < 2 || list[1].Endpoint != "GET /users/{id}/orders" || list[1].Requests < 400 {
		t.Errorf("suggestions %+v", list)
	}
}

func TestHostileTrafficMakesNoInvalidPolicies(t *testing.T) {
	log := newTraffic()
	for i, path := range []string{
		"/a*b", "/{x}", "//", "/%", "/a/../b", "/" + strings.Repeat("x/", 40), "/" + strings.Repeat("y", 3000), "/a:b@c",
		"/caf\u00e9", "*", "/a/{x}/c", "/a/b/{y}", "/a/b/c",
	} {
		log.add(i+1, 0, "acme", "gold", "GET "+path)
		log.add(1, 0, "acme", strings.Repeat("t", 65), "get "+path)
	}
	o := minutely
	o.Endpoints = 100
	for _, s := range log.suggest(t, suggest.Default(), o) { // Judge compiles them, or the test fails
		if s.Limit < 1 || s.Name == "" || len(s.Name) > 64 || s.Tier != "gold" {
			t.Errorf("suggestion %+v", s)
		}
	}
}
