package portal

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

func TestTheTenantsOfTheConsoleAreAllWithUsageOrARow(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.write(http.MethodPut, "/v1/orgs/t-30", `{"tier":"gold"}`)
	w.write(http.MethodPut, "/v1/orgs/unused", `{"tier":"silver"}`)
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) SELECT 't-' || n FROM generate_series(10, 69) n`)
	w.exec(`INSERT INTO rate_limiter.usage_minutes
		SELECT date_trunc('minute', now()), 1, 0, 0, 0, 0, NULL, id, 0, 0 FROM rate_limiter.usage_names WHERE name <> 't-11'`)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) VALUES ('t-20-is-an-endpoint')`)
	b := w.signedIn(viewerSecret)
	page := w.want(b.get("/portal/tenants"), http.StatusOK, `>t-10</a></th><td data-label="Tier">free <span class="dim">assumed<`,
		`>t-30</a></th><td data-label="Tier">gold <span class="dim">set<`, "60 tenants")
	w.want(b.get("/portal/tenants?tier=gold"), http.StatusOK, ">t-30<", "1 tenant ")
	w.want(b.get("/portal/tenants?sort=org_id&reverse=true&range=7d"), http.StatusOK, ">unused<", `aria-sort="descending"`,
		"/portal/tenants?sort=org_id&amp;range=7d", `name="range" value="7d"`)
	w.missing(page, "t-11<", "endpoint", ">t-61<", ">unused<", ">default<")
	page = w.want(b.get(next(page)), http.StatusOK, ">t-69<", ">unused<")
	w.missing(page, ">t-60<")
	if rows := strings.Count(page.text, `<th scope="row">`); rows != 10 {
		t.Errorf("the second page has %d tenants, want 10", rows)
	}
	w.missing(w.want(b.get("/portal/tenants?q=t-6"), http.StatusOK, ">t-69<"), ">t-10<")
	w.want(b.get("/portal/tenants?q=nothing-like-it"), http.StatusOK, "No tenant", "/portal/tenants/nothing-like-it")
}

// listing has the API answer a list with as many rows as it has and as the query wants.
func (w *world) listing(path string, rows int) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if w.api.answers == nil {
		w.api.answers = map[string]func(http.ResponseWriter, *http.Request, api.Caller){}
	}
	w.api.answers["GET "+path] = func(a http.ResponseWriter, r *http.Request, _ api.Caller) {
		most, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || most < 1 || most > 1000 {
			w.Errorf("%s: the limit must be 1 to 1000", r.URL)
		}
		items := make([]string, min(rows, most))
		for i := range items {
			items[i] = fmt.Sprintf(`{"org_id":"org-%04d","step":"warn"}`, i+1)
		}
		fmt.Fprintf(a, `{"items":[%s]}`, strings.Join(items, ","))
	}
}

// next returns the link of the next page, or "".
func next(page shown) string {
	_, link, _ := strings.Cut(page.text, `rel="next" href="`)
	link, _, _ = strings.Cut(link, `"`)
	return strings.ReplaceAll(link, "&amp;", "&")
}

func TestEveryRowOfARankingIsOnAPage(t *testing.T) {
	t.Parallel()
	for path, api := range map[string]string{
		"/portal/top?range=7d&policy=daily": "/v1/ratelimit/usage/top",
		"/portal/near-limit?above=0.5":      "/v1/ratelimit/near-limit",
		"/portal/abuse?step=warn":           "/v1/ratelimit/abuse",
	} {
		w := open(t)
		w.listing(api, 120)
		b := w.signedIn(viewerSecret)
		at, filters, _ := strings.Cut(path, "?")
		for i, want := range [][]string{
			{"Rows 1 to 50.", ">org-0001<", ">org-0050<"},
			{"Rows 51 to 100.", ">org-0051<", ">org-0100<"},
			{"Rows 101 to 120.", ">org-0101<", ">org-0120<"},
		} {
			page := w.want(b.get(path), http.StatusOK, want...)
			if rows := strings.Count(page.text, `<th scope="row">`); rows != min(50, 120-50*i) {
				t.Errorf("%s has %d rows", path, rows)
			}
			if path = next(page); i < 2 && path == "" {
				t.Fatalf("%s: page %d has no link to the next", at, i+1)
			}
		}
		if path != "" {
			t.Errorf("the last page of %s leads to %s", at, path)
		}
		for _, call := range w.api.requests() {
			for filter := range strings.SplitSeq(filters, "&") {
				if filter = strings.Replace(filter, rangeParameter+"=", "last=", 1); !strings.Contains(call, filter) {
					t.Errorf("the API was called with %s, without %s", call, filter)
				}
			}
		}
		w.want(b.get(at+"?page=19"), http.StatusOK, "Rows 101 to 120.")
		for _, page := range []string{"0", "-1", "x", "99999999999999999999"} {
			w.want(b.get(at+"?page="+page), http.StatusOK, "Rows 1 to 50.")
		}
		w.listing(api, 5000)
		if end := w.want(b.get(at+"?page=20"), http.StatusOK, "Rows 951 to 1,000. The list ends here"); next(end) != "" {
			t.Errorf("the end of %s leads to %s", at, next(end))
		}
		w.missing(w.want(b.get(at), http.StatusOK), "The list ends here")
		w.listing(api, 0)
		w.missing(w.want(b.get(at+"?page=7"), http.StatusOK), "Rows")
	}
}
