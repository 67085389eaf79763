package spec

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// planDeck has the limits of docs/plans.md, with two exports at once. The store is the first part of the config.
func planDeck(store string) string {
	return `_format_version: "3.0"
plugins:
- name: tenant-rate-settling
- name: key-auth
- name: tenant-rate-limiting
  config: {` + store + `, tiers: [{name: business, limits: [
    {name: monthly, scope: tenant, limit: 10000, algorithm: fixed_window, period: month, time_zone: Europe/Berlin},
    {name: exports, scope: tenant, endpoint: POST /exports, limit: 2, algorithm: concurrency, max_duration: 600}]}]}
services:
- {name: chat, url: "http://chat.internal", routes: [{name: all, paths: [/]}]}` + consumers
}

func TestAPlanIsAMonthInBerlinAndTwoExportsAtOnce(t *testing.T) {
	inStores(t, func(t *testing.T, store string) {
		arrived, finish := make(chan struct{}, 9), make(chan struct{})
		upstream := func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				arrived <- struct{}{}
				<-finish
			}
		}
		n := start(t, planDeck(store), settling, func(o *gateway.Options) {
			o.Upstreams = map[string]http.Handler{"chat.internal": http.HandlerFunc(upstream)}
		})
		berlin, err := time.LoadLocation("Europe/Berlin")
		require.NoError(t, err)
		now := time.Now().In(berlin)
		begin := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, berlin)
		end := begin.AddDate(0, 1, 0)
		month := fmt.Sprintf(`"monthly";q=10000;w=%d`, int(end.Sub(begin).Seconds()))

		read := n.get("/records", "apikey", "alice")
		policy, reset := read.Header.Get("RateLimit-Policy"), read.Header.Get("X-RateLimit-Reset")
		if policy != month || reset != fmt.Sprint(end.Unix()) || read.Header.Get("X-RateLimit-Remaining") != "9999" {
			t.Errorf("a read announces %q until %s, want %q until %d: %v", policy, reset, month, end.Unix(), read.Header)
		}

		exports := make(chan answer, 2)
		for range cap(exports) {
			go func() {
				a, _ := n.send("POST", "/exports", "apikey", "alice")
				exports <- a
			}()
		}
		for range cap(exports) {
			select {
			case <-arrived:
			case a := <-exports:
				t.Fatalf("an export is answered %d %v\n%s", a.Status, a.Header, a.Body)
			}
		}
		denied, err := n.send("POST", "/exports", "apikey", "alice")
		require.NoError(t, err)
		const atOnce = `"exports";q=2;qu="concurrent-requests"`
		if policy := denied.Header.Get("RateLimit-Policy"); denied.Status != 429 || !strings.Contains(policy, atOnce) ||
			!strings.Contains(denied.problem(t).Detail, "'exports' allows 2 requests at once") ||
			denied.Header.Get("Retry-After") == "" {
			t.Errorf("the third export is answered %q, %v\n%s", policy, denied.Header, denied.Body)
		}
		close(finish)
		for range cap(exports) {
			if a := <-exports; a.Status != http.StatusOK {
				t.Errorf("an export is answered %d", a.Status)
			}
		}
		await.That(t, "the exports have ended", func() bool {
			a, err := n.send("POST", "/exports", "apikey", "alice")
			return err == nil && a.Status == http.StatusOK
		})
	})
}
