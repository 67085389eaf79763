package policysync_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

// conditioned returns the options of a node that reports often, and its condition, which the test sets.
func (w *world) conditioned(first policysync.Condition) (policysync.Options, *atomic.Pointer[policysync.Condition]) {
	now := new(atomic.Pointer[policysync.Condition])
	now.Store(&first)
	options := w.options()
	options.BeatEvery = 5 * time.Millisecond
	options.Condition = func() policysync.Condition { return *now.Load() }
	return options, now
}

func TestAReportHasTheLeasesAndEachRedisOfItsNode(t *testing.T) {
	w := newWorld(t)
	options, now := w.conditioned(policysync.Condition{Leases: 7, Redis: []policysync.Redis{
		{Name: "b:6379"}, {Name: "c:6379", AwaySeconds: 90}, {Name: "b:6379"}, {Name: "a:6379"},
	}})
	n := start(t, options)
	reported := func(names string, leases, away int) func(policysync.Stats) bool {
		return func(policysync.Stats) bool {
			return value[int](w, `SELECT count(*) FROM rate_limiter.nodes WHERE leases = $1
				AND jsonb_path_query_array(redis, '$[*].name')::text = $2
				AND jsonb_array_length(jsonb_path_query_array(redis, '$[*].away_since')) = $3
				AND ($3 = 0 OR reported_at - (redis -> 0 ->> 'away_since')::timestamptz = interval '90 seconds')`,
				leases, names, away) == 1
		}
	}
	n.until("it has reported one Redis that is away", reported(`["c:6379", "a:6379", "b:6379"]`, 7, 1))
	now.Store(&policysync.Condition{Redis: []policysync.Redis{{Name: "c:6379"}}})
	n.until("it has reported that all answer", reported(`["c:6379"]`, 0, 0))
	now.Store(&policysync.Condition{})
	n.until("it has reported that it uses none", reported(`[]`, 0, 0))
}
