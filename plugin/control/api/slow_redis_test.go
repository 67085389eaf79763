package api_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// hurried implements buckets that time out.
type hurried struct{}

func (hurried) Peek(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	for i := range statuses {
		statuses[i] = decision.Status{Failure: decision.TimedOut}
	}
	return nil
}

func (hurried) Forget(context.Context, []policy.Key) (int, error) {
	return 0, errors.New("not in time")
}

func TestOperatorsReadAndEmptyBucketsThatAreTooSlowForRequests(t *testing.T) {
	t.Parallel()
	p := using(t)
	options := p.server.Options
	options.Buckets, options.OperatorBuckets = hurried{}, p.store
	server, err := api.New(options)
	require.NoError(t, err)
	p.server = server
	p.want(p.as("GET", acmeUsage, ""), http.StatusOK)
	p.want(p.as("POST", acmeReset, `{"reason":"billed twice"}`), http.StatusOK)
	if used := p.has("acme", "")["daily of the org"]; used != 0 {
		t.Errorf("%d are used after a reset", used)
	}
}
