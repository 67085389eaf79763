package spec

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

func TestExactLimitsAreNeverLeasedAndSharedExactly(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	noShare, others := f.joinAll(2, "-lease-share", "0"), f.joinAll(2)
	f.awaitLeases(others...) // so that the two that joined before could lease, too
	awaitTurn(t)
	quota := yearly(2000)
	drawn, granted := make([]int, len(others)), make([]int, len(others))
	for i, m := range others {
		drawn[i], granted[i] = m.drawn(), m.leased("granted")
	}
	bySetting, byAccuracy := f.offer(by("setting"), steady(1500)), f.offer(by("accuracy"), steady(1500))
	for i := range 2 {
		bySetting.to(noShare[i], noShare[i].open("", quota.config()), 4)
		byAccuracy.to(others[i], others[i].open(`"accuracy":"exact",`, quota.config()), 4)
	}
	for name, tr := range map[string]*traffic{"-lease-share 0": bySetting, "accuracy: exact": byAccuracy} {
		tr.awaitDenials(t, 200)
		if n := counted(tr.stop(), http.StatusOK); n != quota.limit {
			t.Errorf("%s: two nodes admitted %d together, want %d", name, n, quota.limit)
		}
	}
	for i, m := range noShare {
		if m.drawn() != 0 || m.leased("granted") != 0 {
			t.Errorf("with -lease-share 0, node %d leases:\n%v", i, m.numbers())
		}
	}
	for i, m := range others {
		if m.drawn() != drawn[i] || m.leased("granted") != granted[i] {
			t.Errorf("with accuracy: exact, node %d leases:\n%v", i, m.numbers())
		}
	}
}

// ask sends one request of one tenant.
func (m *member) ask(t testing.TB, id int32, request gateway.Request) gateway.Outcome {
	t.Helper()
	c, err := gateway.Dial(m.socket)
	require.NoError(t, err)
	defer c.Close()
	outcome, err := c.HandleEvent(id, "access", request)
	require.NoError(t, err)
	return outcome
}

// want fails the test unless these are the statuses of requests of one tenant, one after the other.
func (m *member) want(t testing.TB, id int32, statuses []int) {
	t.Helper()
	for i, want := range statuses {
		got := http.StatusOK
		if outcome := m.ask(t, id, by("acme")); outcome.Exit != nil {
			got = outcome.Exit.Status
		}
		if got != want {
			t.Errorf("request %d: %d, want %d", i+1, got, want)
		}
	}
}
