package app

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestARequestDoesNotExceedItsTimeBudgetForARedisThatMayTakeLonger(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // it connects, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	stores := newSharedStores(t.Context(), &settings{MaxBuckets: 10, Nodes: 1, TimeBudget: 50 * time.Millisecond}, slog.New(slog.DiscardHandler))
	config := schema.Config{Redis: schema.Redis{Host: "127.0.0.1", Port: int64(mute.Addr().(*net.TCPAddr).Port), ReadTimeout: 60_000}}.WithDefaults()
	view, release, err := stores.view(&config)
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: limit.Second})
	if err != nil {
		t.Fatal(err)
	}
	bounds := []policy.Bound{{Policy: &policy.Policy{Name: "p", Limit: l, FailMode: policy.FailOpen}, Key: policy.Key{Policy: "p", Group: policy.ByAll}, Cost: 1}}
	statuses := make([]decision.Status, 1)
	begun := time.Now()
	if err := view.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Failure == decision.NoFailure {
		t.Errorf("%v, %+v: want no answer", err, statuses[0])
	}
	if took := time.Since(begun); took > 10*time.Second { // far from the minute that the config allows
		t.Errorf("a request waited %v, with a budget of 50 ms", took)
	}
	release()
	stores.running.Wait()
}
