package metrics

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadinessIsServingAndWithReadyNeedsStoreTheStore(t *testing.T) {
	for _, test := range []struct {
		state                State
		degraded, needsStore bool
		want                 int
	}{
		{Starting, false, false, 503},
		{Starting, true, false, 503},
		{Starting, false, true, 503},
		{Starting, true, true, 503},
		{Serving, false, false, 200},
		{Serving, true, false, 200},
		{Serving, false, true, 200},
		{Serving, true, true, 503},
		{Draining, false, false, 503},
		{Draining, true, false, 503},
		{Draining, false, true, 503},
		{Draining, true, true, 503},
	} {
		m := New("1", Sources{Stores: func() []Store {
			return []Store{{Name: "fine:6379"}, {Name: "redis:6379", Degraded: test.degraded}}
		}})
		s := start(t, ServerOptions{Metrics: m, Address: "127.0.0.1:0", ReadyNeedsStore: test.needsStore}).listening(t)
		s.SetState(test.state)
		got := get(t, "GET", "http://"+s.address+"/readyz")
		var body readinessBody
		err := json.Unmarshal([]byte(got.body), &body)
		require.True(t, err == nil, "%v in %s", err, got.body)
		degraded := len(body.DegradedStores) == 1 && body.DegradedStores[0] == "redis:6379"
		if got.status != test.want || body.Ready != (test.want == 200) || body.State != test.state.String() ||
			degraded != test.degraded || body.ReadyNeedsStore != test.needsStore {
			t.Errorf("%+v: answer is %d %s", test, got.status, got.body)
		}
		live := get(t, "GET", "http://"+s.address+"/healthz")
		assert.True(t, live.status == http.StatusOK, "%+v: /healthz answers %d", test, live.status)
		s.stop()
	}
}

func TestHealthReportsVersionAgeAndDegradedStores(t *testing.T) {
	s := start(t, ServerOptions{Metrics: New("1.2.3", everySource()), Address: "127.0.0.1:0"}).listening(t)
	got := get(t, "GET", "http://"+s.address+"/healthz")
	var body healthBody
	require.NoError(t, json.Unmarshal([]byte(got.body), &body))
	if body.Version != "1.2.3" || body.UptimeSeconds < 0 || body.UptimeSeconds > 60 ||
		len(body.DegradedStores) != 1 || body.DegradedStores[0] != "redis:6379" {
		t.Errorf("answer is %s", got.body)
	}
	if got.header.Get("Content-Type") != "application/json" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers are %v", got.header)
	}
}

func TestNoDegradedStoreIsAnEmptyList(t *testing.T) {
	s := start(t, ServerOptions{Address: "127.0.0.1:0"}).listening(t)
	const want = `{"ready":false,"state":"starting","degraded_stores":[],"ready_needs_store":false}` + "\n"
	got := get(t, "GET", "http://"+s.address+"/readyz")
	assert.True(t, got.body == want, "answer is %s, want %s", got.body, want)
}
