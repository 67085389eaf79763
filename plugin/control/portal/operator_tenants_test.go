package portal

import (
	"net/http"
	"strings"
	"testing"
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
	page := w.want(b.get("/portal/tenants"), http.StatusOK, ">t-10</a></th><td>–</td>", ">t-30</a></th><td>gold</td>")
	w.missing(page, "t-11<", "endpoint", ">t-61<", ">unused<", ">default<")
	_, link, _ := strings.Cut(page.text, `href="/portal/tenants?`)
	link, _, _ = strings.Cut(link, `"`)
	page = w.want(b.get("/portal/tenants?"+strings.ReplaceAll(link, "&amp;", "&")), http.StatusOK, ">t-69<", ">unused<")
	w.missing(page, ">t-60<")
	if rows := strings.Count(page.text, `<th scope="row">`); rows != 10 {
		t.Errorf("the second page has %d tenants, want 10", rows)
	}
	w.missing(w.want(b.get("/portal/tenants?q=t-6"), http.StatusOK, ">t-69<"), ">t-10<")
}
