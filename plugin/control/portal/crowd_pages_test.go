package portal

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// crowdPage is a page of a tenant, or of operators.
type crowdPage struct {
	name       string
	path       func(tenant string) string
	ofTenants  bool // its viewers are tenants
	ranks      bool // all tenants; operators share the answer
	statements int  // at most
}

// fewRows is the most rows that a statement of a page reads: more than a page shows, and fewer than there are tenants.
const fewRows = 300

// at returns the path of a page that is the same for each tenant.
func at(path string) func(string) string { return func(string) string { return path } }

// ofTenant returns the path of the page of a tenant, from a pattern with its name.
func ofTenant(pattern string) func(string) string {
	return func(tenant string) string { return fmt.Sprintf(pattern, url.PathEscape(tenant)) }
}

// crowdPages are the pages that the benchmark measures.
var crowdPages = []crowdPage{
	{name: "overview", path: at(home), ranks: true, statements: 19},
	{name: "fleet", path: at("/portal/fleet"), statements: 2},
	{name: "tenants", path: at("/portal/tenants"), ranks: true, statements: 4},
	{name: "search", path: ofTenant("/portal/tenants?q=%.12s"), ranks: true, statements: 4},
	{name: "top-tenants", path: at("/portal/top"), ranks: true, statements: 1},
	{name: "near-limit", path: at("/portal/near-limit"), ranks: true, statements: 1},
	{name: "denials", path: at("/portal/denials"), ranks: true, statements: 1},
	{name: "denials-of-a-rare-endpoint", path: at("/portal/denials?endpoint=GET+/v1/rare"), ranks: true, statements: 1},
	{name: "denials-by-a-rare-policy", path: at("/portal/denials?policy=rare"), ranks: true, statements: 1},
	{name: "denials-one-by-one", path: at("/portal/denials?view=list"), statements: 1},
	{name: "candidates", path: at("/portal/candidates"), statements: 1},
	{name: "candidate", path: at("/portal/candidates/july"), ranks: true, statements: 16},
	{name: "policies", path: at("/portal/policies"), statements: 1},
	{name: "webhooks", path: at("/portal/webhooks"), statements: 1},
	{name: "abuse", path: at("/portal/abuse"), statements: 1},
	{name: "audit", path: at("/portal/audit"), statements: 1},
	{name: "audit-of-a-tenant", path: ofTenant("/portal/audit?tenant=%s"), statements: 1},
	{name: "audit-of-a-row", path: at("/portal/audit?key=2000"), statements: 1},
	{name: "tenant", path: ofTenant("/portal/tenants/%s"), statements: 10},
	{name: "tenant-usage-30-days", path: ofTenant("/portal/tenants/%s?policy=daily&range=30d"), statements: 10},
	{name: "tenant-usage-7-days", path: ofTenant("/portal/tenants/%s?range=7d"), statements: 10},
	{name: "own-plan", path: at(orgHome), ofTenants: true, statements: 5},
	{name: "own-usage-today", path: at(orgUsagePath), ofTenants: true, statements: 12},
	{name: "own-usage-30-days", path: at(orgUsagePath + "?span=30d"), ofTenants: true, statements: 8},
	{name: "own-denials", path: at(orgDenialsPath), ofTenants: true, statements: 1},
	{name: "own-webhooks", path: at(orgWebhooksPath), ofTenants: true, statements: 1},
	{name: "own-tokens", path: at(orgTokensPath), ofTenants: true, statements: 1},
}

// viewersOf returns browsers of an operator, and of tenants.
func (c *crowd) viewersOf(tenants ...int) (operator *browser, own map[string]*browser) {
	c.Helper()
	own = map[string]*browser{}
	for _, n := range tenants {
		secret := "secret-of-" + tenantOfCrowd(n)
		c.tokens.set(secret, api.Caller{Token: "portal", Role: api.Tenant, Org: tenantOfCrowd(n)})
		own[tenantOfCrowd(n)] = c.signedIn(secret)
	}
	return c.signedIn(viewerSecret), own
}

func TestNoPageReadsForEachRowOrAllTenants(t *testing.T) {
	t.Parallel()
	c := openCrowd(t, pgtest.Shared(t).Database(t), crowdSize{
		tenants: 2 * fewRows, days: 2, hours: 1, denials: 5000, audit: 5000,
	})
	start := time.Now()
	c.portal.Now = func() time.Time { return start } // answers stay shared
	operator, own := c.viewersOf(70)
	for _, page := range crowdPages {
		b, tenant := operator, tenantOfCrowd(70)
		if page.ofTenants {
			b = own[tenant]
		}
		path := page.path(tenant)
		c.want(b.get(path), http.StatusOK, "<h1>")
		read := c.queries.take()
		if len(read) > page.statements || len(read) == 0 && !page.ranks {
			t.Errorf("%s takes %d statements, want at most %d:\n%s", path, len(read), page.statements, textOf(read))
		}
		for _, s := range read {
			if rows := c.rowsRead(s); rows > fewRows && !page.ranks {
				t.Errorf("%s reads %v rows by\n%s", path, rows, s.sql)
			}
		}
	}
	for _, page := range crowdPages {
		if !page.ranks {
			continue
		}
		c.want(operator.get(page.path("")), http.StatusOK)
		for _, s := range c.queries.take() {
			if rows := c.rowsRead(s); rows > fewRows {
				t.Errorf("%s ranks all tenants again, by\n%s", page.name, s.sql)
			}
		}
	}
}

// textOf returns the statements line by line.
func textOf(list []statement) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintln(&b, strings.Join(strings.Fields(s.sql), " "))
	}
	return b.String()
}

// planNode is a node of a statement's plan.
type planNode struct {
	Rows    float64    `json:"Actual Rows"` // of a loop
	Loops   float64    `json:"Actual Loops"`
	Removed float64    `json:"Rows Removed by Filter"`
	Again   float64    `json:"Rows Removed by Index Recheck"`
	Plans   []planNode `json:"Plans"`
}

// rowsRead returns the largest number of rows that a node has read.
func (p planNode) rowsRead() float64 {
	rows := (p.Rows + p.Removed + p.Again) * p.Loops
	for _, child := range p.Plans {
		rows = max(rows, child.rowsRead())
	}
	return rows
}

// rowsRead returns the largest number of rows that a node of a statement's plan reads; 0 for one without a plan.
func (c *crowd) rowsRead(s statement) int {
	c.Helper()
	if text := strings.TrimSpace(s.sql); !strings.HasPrefix(text, "SELECT") && !strings.HasPrefix(text, "WITH") {
		return 0
	}
	rows, err := c.pool.Query(c.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+s.sql, s.args...)
	require.NoError(c, err)
	plans, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[[]struct{ Plan planNode }])
	if err != nil {
		c.Fatalf("%s: %v", s.sql, err)
	}
	c.queries.take()
	return int(plans[0].Plan.rowsRead())
}

// BenchmarkPages measures the aim that the 99th percentile of a page is at most 100 ms with 10,000 tenants and 30 days
// of usage. make bench-portal runs it with a Postgres on the disk.
func BenchmarkPages(b *testing.B) {
	const viewers, first = 4, 200
	each, size := 100, crowdSize{tenants: 10_000, days: 30, hours: 47, denials: 200_000, audit: 100_000}
	if testing.Short() {
		each, size = 2, crowdSize{tenants: first, days: 2, hours: 1, denials: 5000, audit: 5000}
	}
	server := pgtest.Start(b)
	c := openCrowd(b, server.Database(b), size)
	c.transport.MaxIdleConnsPerHost = viewers
	random := rand.New(rand.NewPCG(1, 2))
	tenants := random.Perm(c.tenants)[:first]
	operator, own := c.viewersOf(tenants...)
	for _, page := range crowdPages {
		visit := func(random *rand.Rand) time.Duration {
			tenant := tenantOfCrowd(tenants[random.IntN(first)])
			viewer := operator
			if page.ofTenants {
				viewer = own[tenant]
			}
			began := time.Now()
			c.want(viewer.get(page.path(tenant)), http.StatusOK, "<h1>")
			return time.Since(began)
		}
		b.Run("page="+page.name, func(b *testing.B) {
			for b.Loop() {
				c.queries.take()
				alone := visit(random)
				b.ReportMetric(float64(len(c.queries.take())), "statements")
				b.ReportMetric(millis(alone), "first-ms")
				all := make([]time.Duration, viewers*each)
				var group sync.WaitGroup
				for n := range viewers {
					group.Go(func() {
						random := rand.New(rand.NewPCG(3, uint64(n)))
						for i := range each {
							all[n*each+i] = visit(random)
						}
					})
				}
				group.Wait()
				slices.Sort(all)
				b.ReportMetric(millis(all[len(all)/2]), "p50-ms")
				b.ReportMetric(millis(all[len(all)*99/100]), "p99-ms")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
