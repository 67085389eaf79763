package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const nearLimit = "/v1/ratelimit/near-limit"

// nearing returns a world in which limits left tenants little in the last minute. acme has the tier enterprise.
func nearing(t *testing.T) *world {
	t.Helper()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(1, schema.Override{Kind: policy.Ban, Tenant: "banned"}),
		policytest.Override(2, schema.Override{Kind: policy.Exempt, Tenant: "exempt"}),
	}
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := deciderOf(t, plan(), buckets, rows)
	w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
	_, err := w.pool.Exec(t.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name)
		VALUES (''), ('acme'), ('=cmd,"b"'), ('globex'), ('banned'), ('exempt'),
			('daily'), ('all/default/'), ('POST /records/{id}'), ('search');
		INSERT INTO rate_limiter.usage_names (name)
		SELECT policy || '/default/' || tier FROM unnest(ARRAY['daily', 'writes', 'per-user', 'gone']) policy,
			unnest(ARRAY['enterprise', 'essentials']) tier;
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()) - minutes * interval '1 minute', t.id, e.id, p.id, 1, 0, 0, 0, 0, remaining
		FROM (VALUES ('acme', '', 'daily', 0, 300), ('acme', 'search', 'daily', 0, 200), ('acme', 'search', 'daily', 3, 150),
				('acme', 'search', 'daily', 30, 0), ('acme', 'POST /records/{id}', 'daily', 1, 180),
				('acme', 'POST /records/{id}', 'writes', 0, 1),
				('acme', 'search', 'per-user', 0, 5), ('acme', '', 'all', 0, 0), ('acme', '', 'gone', 0, 0),
				('globex', '', 'daily', 0, 9), ('globex', 'search', 'daily', 0, NULL), ('=cmd,"b"', '', 'daily', 1, 2),
				('banned', '', 'daily', 1, 0), ('exempt', '', 'daily', 1, 0), ('', '', 'daily', 0, 0)
			) v (tenant, endpoint, policy, minutes, remaining)
		JOIN rate_limiter.usage_names t ON t.name = v.tenant JOIN rate_limiter.usage_names e ON e.name = v.endpoint
		JOIN rate_limiter.usage_names p ON p.name = v.policy || '/default/' ||
			CASE WHEN v.policy = 'all' THEN '' WHEN v.tenant = 'acme' THEN 'enterprise' ELSE 'essentials' END
		UNION ALL SELECT date_trunc('minute', now()), t.id, e.id, p.id, 1, 0, 0, 0, 0, 0 -- usage by another tier's limit
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name = 'acme' AND e.name = 'search' AND p.name = 'daily/default/essentials'`)
	require.NoError(t, err)
	return w
}

func TestOrgsThatUsedMostOfALimitAreListedWithTheLimitInForce(t *testing.T) {
	t.Parallel()
	w := nearing(t)
	for query, want := range map[string]string{
		"": `acme writes at "POST /records/{id}": 1 of 20 (0.95), acme per-user at "search": 5 of 50 (0.9), ` +
			`acme daily at "search": 150 of 1000 (0.85), =cmd,"b" daily at "": 2 of 10 (0.8)`,
		"?above=0.81&limit=2": `acme writes at "POST /records/{id}": 1 of 20 (0.95), ` +
			`acme per-user at "search": 5 of 50 (0.9)`,
		"?above=1":          ``,
		"?above=1&last=40m": `acme daily at "search": 0 of 1000 (1)`,
	} {
		got := read[answers.NearLimits](w, w.want(w.as("GET", nearLimit+query, ""), http.StatusOK))
		var list []string
		for _, n := range got.Items {
			list = append(list, fmt.Sprintf("%s %s at %q: %d of %d (%v)", n.Org, n.Policy, n.Endpoint, n.Remaining, n.Limit,
				n.Fraction))
		}
		if got := strings.Join(list, ", "); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

func TestAFractionThatIsNoNumberIsInvalid(t *testing.T) {
	t.Parallel()
	w := nearing(t)
	for _, text := range []string{"NaN", "Inf", "-inf", "1.1"} {
		w.wantFaults(w.as("GET", nearLimit+"?above="+text, ""), "query.above")
	}
}

func TestLimitsThatAreNearNeedAPluginConfig(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("GET", nearLimit, ""), http.StatusServiceUnavailable)
}
