package reservation_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// faulty is a Redis behind a proxy, with two processes that reach it so, and one that does not.
type faulty struct {
	t                     *testing.T
	server                *redistest.Server
	proxy                 *faultproxy.Proxy
	first, second, direct *process
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	server := redistest.Single(t)
	proxy := faultproxy.New(t, server.Address())
	config := inRedis(server)
	f := &faulty{t: t, server: server, proxy: proxy, direct: newProcess(t, config)}
	config.Redis.Port = int64(proxy.Port())
	f.first, f.second = newProcess(t, config), newProcess(t, config)
	return f
}

// fault is what happens to Redis.
type fault uint8

const (
	none fault = iota
	down       // its connections are reset, and it accepts none
	cut        // the next reply is cut, after the command was run
	full       // it runs no script that writes
)

func (f *faulty) begin(is fault) {
	f.t.Helper()
	switch is {
	case down:
		require.NoError(f.t, f.proxy.Down())
	case cut:
		f.proxy.CutReplies(1, faultproxy.Reset)
	case full:
		f.proxy.Answer("evalsha", "-OOM command not allowed when used memory > 'maxmemory'.")
	}
}

func (f *faulty) heal() {
	f.t.Helper()
	require.NoError(f.t, f.proxy.Heal())
}

// reserve admits a request in the first process as soon as Redis answers there, and records it behind a fault.
func (f *faulty) reserve(b policy.Bound, behind fault) string {
	f.t.Helper()
	unrecorded, written := f.first.table.Stats().Unrecorded, len(f.records())
	var d decision.Decision
	await.That(f.t, "Redis answers", func() bool {
		d.Reset()
		d.Resolution.Bounds = append(d.Resolution.Bounds[:0], b)
		d.Grow()
		require.NoError(f.t, f.first.store.Take(f.t.Context(), d.Resolution.Bounds, d.Statuses))
		d.Combine()
		return d.Statuses[0].Source == decision.Redis
	})
	f.begin(behind)
	token := f.first.keeper.Keep(&d)
	await.That(f.t, "the recording ends", func() bool {
		return f.first.table.Stats().Unrecorded > unrecorded || len(f.records()) > written
	})
	f.heal()
	return token
}

func (f *faulty) records() []string { return recordsIn(f.t, f.server, false) }

// Whatever Redis does around the record, the claim and the settlement, each request is settled once or stays charged:
// in sum no less than min(A, R) of each is charged, and no more than max(A, R).
func TestWhateverRedisDoesARequestIsNeitherReturnedNorChargedTwice(t *testing.T) {
	f := newFaulty(t)
	b := budget(t, year, 100)
	b.Policy.FailMode = policy.FailClosed // nothing is admitted without Redis
	var least, most int64
	requests := 0
	for _, used := range []int64{10, 100, 170} {
		for _, faults := range [][2]fault{
			{none, none}, {none, down}, {none, cut}, {none, full}, {down, none}, {cut, none}, {full, none}, {cut, cut},
		} {
			token := f.reserve(b, faults[0])
			f.begin(faults[1])
			f.first.settle(token, used)
			f.heal()
			requests++
			least, most = least+min(used, 100), most+max(used, 100)
			settledIn(t, requests, f.first)
			f.second.settle(token, used) // Kong sends the event of a log phase again
		}
	}
	outcomes := settledIn(t, requests, f.first, f.second)
	sum := 0
	for _, n := range outcomes {
		sum += n
	}
	if sum != requests || outcomes[reservation.Measured] < requests/2 {
		t.Errorf("%d requests have the outcomes %v, want one each, most of them measured", requests, outcomes)
	}
	if charged := f.direct.used(b); charged < least || charged > most {
		t.Errorf("%d tokens are charged, want %d to %d, with the outcomes %v", charged, least, most, outcomes)
	}
}
