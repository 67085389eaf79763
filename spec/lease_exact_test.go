package spec

import (
	"net/http"
	"testing"

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

func TestAChangedLimitDropsRememberedDenials(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	m := f.join()
	before := m.open("", yearly(20).config())
	m.want(t, before, append(times(20, 200), 429, 429))
	m.want(t, m.change(m.plugins, "", yearly(25).config()), append(times(5, 200), 429, 429))
	m.want(t, m.change(m.plugins, "", yearly(20).config()), []int{429})
}

func TestAChangedLimitHoldsWhileTokensOfTheOldOneAreOnLease(t *testing.T) {
	t.Parallel()
	f := onSocket(t, redistest.Single(t))
	m := f.join()
	f.awaitLeases(m)
	awaitTurn(t)
	more, fewer := yearly(4000), yearly(3000)
	first := f.offer(by("acme"), steady(1000))
	first.to(m, m.open("", more.config()), 8)
	m.awaitSpent(t, 200)
	then := f.offer(by("acme"), steady(3000))
	then.to(m, m.change(m.plugins, "", fewer.config()), 8)
	n := counted(first.stop(), http.StatusOK)
	then.awaitDenials(t, 200)
	if n += counted(then.stop(), http.StatusOK); n > fewer.limit || n < fewer.limit-more.share() {
		t.Errorf("%d were admitted under a limit of %d that became %d", n, more.limit, fewer.limit)
	}
}

// ask sends one request of one tenant.
func (m *member) ask(t testing.TB, id int32, request gateway.Request) gateway.Outcome {
	t.Helper()
	c, err := gateway.Dial(m.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	outcome, err := c.HandleEvent(id, "access", request)
	if err != nil {
		t.Fatal(err)
	}
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
