package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// everybody is b in the one bucket of all tenants, which is another group.
func everybody(b policy.Bound) policy.Bound {
	b.Key.Group, b.Key.Owner = policy.ByAll, ""
	return b
}

// grouped is a fixture that is served as a cluster is: each group by a call of its own. Its clock stands still.
func grouped(t *testing.T, client *redis.Client) (*fixture, clock, *faulty) {
	flush(t, client)
	transport := &faulty{direct: direct{client, turnedClock, true}}
	return &fixture{Store: newStore(transport, quiet), client: client}, newClock(t, client), transport
}

// faulty is a transport whose refunds can be made to fail, and counted.
type faulty struct {
	direct
	lose    bool
	refunds int
}

func (f *faulty) Run(ctx context.Context, keys []string, args []any) ([]any, error) {
	if args[0].([]byte)[0] == modeRefund {
		f.refunds++
		if f.lose {
			return nil, errors.New("the connection broke")
		}
	}
	return f.direct.Run(ctx, keys, args)
}

func TestAGroupThatRefusesCostsTheOthersNothing(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			f, clock, transport := grouped(t, client)
			spec := limit.Spec{Algorithm: algorithm, Quantity: 10, Window: hour}
			if algorithm == limit.LeakyBucket || algorithm == limit.TokenBucket {
				spec.Burst = 10
			}
			ours, shadow, all := bound(t, "ours", spec), bound(t, "shadow", spec), everybody(bound(t, "all", spec))
			p := *shadow.Policy
			p.Mode = policy.Shadow
			shadow.Policy = &p
			f.take(t, costing(ours, 4), costing(shadow, 2), costing(all, 10))
			for range 3 {
				clock.Advance(1)
				statuses := f.take(t, costing(ours, 3), costing(shadow, 3), all)
				if !statuses[0].Admits() || !statuses[1].Admits() || statuses[2].Admits() {
					t.Fatalf("waits are %d, %d, %d: want that of the third alone", statuses[0].Wait, statuses[1].Wait, statuses[2].Wait)
				}
				if statuses[0].Used != 4 || statuses[1].Used != 2 || statuses[2].Used != 10 {
					t.Errorf("told %d, %d, %d used: want 4, 2, 10 as before", statuses[0].Used, statuses[1].Used, statuses[2].Used)
				}
			}
			statuses := f.take(t, costing(ours, 0), costing(shadow, 0), costing(all, 0))
			if statuses[0].Used != 4 || statuses[1].Used != 2 || statuses[2].Used != 10 {
				t.Errorf("kept %d, %d, %d used: want 4, 2, 10 as before", statuses[0].Used, statuses[1].Used, statuses[2].Used)
			}
			if transport.refunds != 3 {
				t.Errorf("%d refunds for 3 refusals by one of two groups", transport.refunds)
			}
		})
	}
}

func TestALostRefundIsNotRepeatedAndUnderAdmits(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	ours, all := hundred(t), everybody(hundred(t))
	f.take(t, costing(all, 100))
	transport.lose = true
	if statuses := f.take(t, ours, all); statuses[1].Admits() {
		t.Fatalf("statuses are %+v, want the second refused", statuses)
	}
	transport.lose = false
	if s := f.take(t, costing(ours, 0))[0]; s.Used != 1 || transport.refunds != 1 || f.Stats().LostRefunds != 1 {
		t.Errorf("used %d after %d refunds of which %d were lost: want 1, 1, 1", s.Used, transport.refunds, f.Stats().LostRefunds)
	}
}

func TestAGroupThatDoesNotAnswerIsAnError(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	f.set(t, "clock", "no clock")
	err := f.Take(context.Background(), []policy.Bound{hundred(t), everybody(hundred(t))}, make([]decision.Status, 2))
	var said redis.Error
	if !errors.As(err, &said) {
		t.Errorf("error is %v, want that of Redis", err)
	}
}

// Random takes, some of which are given back at some later instant: whatever comes in between, no interval sees more
// than the limit's bound, of what was not given back.
func TestARefundNeverLetsAnIntervalSeeMoreThanTheBound(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				f, clock, _ := grouped(t, client)
				l := storetest.Limits(algorithm).Draw(rt, "limit")
				b := policy.Bound{Policy: &policy.Policy{Limit: *l}, Key: policy.Key{Policy: "p", Group: policy.ByAll}}
				var kept []limit.Admission
				var open []*plan
				for range 25 {
					clock.Advance(max(0, storetest.Gap(rt, l)))
					if len(open) > 0 && rapid.IntRange(0, 2).Draw(rt, "give back") == 0 {
						i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
						f.giveBackAfterAll(rt, open[i])
						open = append(open[:i], open[i+1:]...)
						continue
					}
					b.Cost = max(1, min(storetest.Cost(rt, l), l.Capacity()))
					p := new(plan)
					if err := f.ask(context.Background(), p, []policy.Bound{b}); err != nil {
						rt.Fatal(err)
					}
					switch {
					case p.denied():
					case rapid.Bool().Draw(rt, "stays"):
						kept = append(kept, limit.Admission{At: p.now, Cost: b.Cost})
					default:
						open = append(open, p)
					}
				}
				if err := (storetest.Bound{Limit: l}).Check(kept); err != nil {
					rt.Fatal(err)
				}
			})
		})
	}
}

// giveBackAfterAll refunds an admission as giveBack does.
func (f *fixture) giveBackAfterAll(t *rapid.T, p *plan) {
	var q plan
	if !q.refund(p) {
		t.Fatal("nothing was spent")
	}
	if _, err := f.transport.Run(context.Background(), q.keys, q.args); err != nil {
		t.Fatalf("refund: %v", err)
	}
}

func TestARefundIsDroppedWhenTheWindowHasMovedOn(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingLog, limit.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			f, clock, _ := grouped(t, client)
			b := bound(t, "p", limit.Spec{Algorithm: algorithm, Quantity: 10, Window: hour})
			p := new(plan)
			if err := f.ask(context.Background(), p, []policy.Bound{costing(b, 5)}); err != nil {
				t.Fatal(err)
			}
			clock.Advance(hour)
			if s := f.take(t, costing(b, 2))[0]; s.Used != 2 {
				t.Fatalf("an hour later %d are used, want 2", s.Used)
			}
			var q plan
			q.refund(p)
			if _, err := f.transport.Run(context.Background(), q.keys, q.args); err != nil {
				t.Fatal(err)
			}
			if s := f.take(t, costing(b, 0))[0]; s.Used != 2 {
				t.Errorf("after the refund %d are used, want 2", s.Used)
			}
		})
	}
}

func TestBoundsOfEveryGroupAreTakenInARealCluster(t *testing.T) {
	nodes := redistest.Cluster(t, 3, 0)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes.Addresses(), MaxRetries: -1})
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := client.ScriptLoad(context.Background(), takeScript.source).Err(); err != nil {
		t.Fatal(err)
	}
	f := &fixture{Store: newStore(&direct{client, takeScript, true}, quiet)}
	spec := limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1000, Window: 300 * 24 * hour}
	for i := range 50 {
		tenant := fmt.Sprint("tenant-", i)
		ours, log, user, ip := bound(t, "p", spec), bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 1, Window: hour}), bound(t, "p", spec), bound(t, "p", spec)
		ours.Key.Owner, log.Key.Owner, user.Key.Owner = tenant, tenant, tenant
		user = of(user, "u}{")
		ip.Key.Group, ip.Key.Owner = policy.ByIP, fmt.Sprint("192.0.2.", i)
		all := everybody(bound(t, "all", spec))
		if statuses := f.take(t, ours, log, user, ip, all); statuses[4].Used != int64(i+1) || statuses[1].Used != 1 {
			t.Fatalf("request %d: %+v", i, statuses)
		}
		refused := f.take(t, ours, log, user, ip, all)
		if refused[1].Admits() || refused[0].Used != 1 || refused[2].Used != 1 || refused[3].Used != 1 || refused[4].Used != int64(i+1) {
			t.Fatalf("refused request %d: %+v: want nothing but the log to refuse, and nothing charged", i, refused)
		}
		for j, s := range f.take(t, costing(ours, 0), costing(user, 0), costing(ip, 0)) {
			if s.Used != 1 {
				t.Fatalf("after refused request %d bound %d has %d used, want 1", i, j, s.Used)
			}
		}
	}
}
