package control_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// probed is what /readyz answers.
func (w *world) probed(status int) control.Readiness {
	w.Helper()
	return read[control.Readiness](w, w.want(w.do(call{method: "GET", path: "/readyz"}), status))
}

func TestAProcessThatDecidesWithoutTheDatabaseStaysReadyAndSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	buckets := shelf{memstore.New(memstore.Options{Now: clock})}
	w := open(t, func(o *control.Options) { o.Buckets, o.Path = buckets, pathOf(t, plan(), buckets, enterprise()) })
	if got := w.probed(http.StatusOK); got.Status != "ok" || len(got.Missing) != 0 {
		t.Errorf("with all there is: %+v", got)
	}
	w.pool.Close()
	if got := w.probed(http.StatusOK); got.Status != "degraded" || len(got.Missing) != 1 || !strings.Contains(got.Missing[0], "database") {
		t.Errorf("without the database: %+v", got)
	}
	w.want(w.as("POST", "/v1/ratelimit/check", `{"org_id":"acme"}`), http.StatusOK)
	w.want(w.do(call{method: "GET", path: "/healthz"}), http.StatusOK)
}

func TestAProcessThatCanServeNothingIsNotReady(t *testing.T) {
	t.Parallel()
	rowless := &admit.Path{}
	snapshot, err := policy.FromConfig(admit.ForKnown(plan()))
	if err != nil {
		t.Fatal(err)
	}
	rowless.Policies.Store(snapshot)
	for name, path := range map[string]*admit.Path{"no config": nil, "no policies": {}, "no rows": rowless} {
		w := open(t, func(o *control.Options) { o.Path = path })
		before := http.StatusServiceUnavailable
		if path == nil {
			before = http.StatusOK // it serves what is in the database
		}
		w.want(w.do(call{method: "GET", path: "/readyz"}), before)
		w.pool.Close()
		a := w.want(w.do(call{method: "GET", path: "/readyz"}), http.StatusServiceUnavailable)
		if !strings.Contains(read[problem](w, a).Detail, "database") {
			t.Errorf("%s: %s", name, a.Body)
		}
		w.want(w.do(call{method: "GET", path: "/healthz"}), http.StatusOK)
	}
}
