package portal

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// connectOnly opens a live part over a connection of its own, and reads nothing.
func (b *browser) connectOnly(path string) {
	b.Helper()
	c, err := new(net.Dialer).DialContext(b.Context(), "tcp", b.server.Listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		b.Fatal(err)
	}
	at := b.get(home).Request
	cookies := b.client.Jar.Cookies(at.URL)
	request := fmt.Sprintf("GET %s%s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", livePath, path, at.URL.Host, cookies[0])
	if _, err := c.Write([]byte(request)); err != nil {
		b.Fatal(err)
	}
}

func TestSoakOfViewersAmongWhomSomeNeverRead(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.portal.hub.limit = 200 * time.Millisecond
	viewers, silent := soak.Count(40, 200), soak.Count(4, 20)
	long := strings.Repeat("x", 1<<20) // more than a connection buffers after a few of them
	polls := ticking(w.portal, "long", tenants, func(_ *visit, n int64) (any, error) { return fmt.Sprint(n, long), nil })
	short := ticking(w.portal, "short", operators, func(_ *visit, n int64) (any, error) { return n, nil })
	start := time.Now()
	acme := w.signedIn(acmeSecret)
	for range silent {
		acme.connectOnly("long")
	}
	var reading sync.WaitGroup
	counts := make([]atomic.Int64, viewers)
	for i := range viewers {
		e := w.signedIn(viewerSecret).watch("short")
		reading.Go(func() {
			for e.next() != "" {
				counts[i].Add(1)
			}
		})
	}
	dropped := w.portal.metrics.dropped.WithLabelValues(droppedSlow)
	await.That(t, "those that never read are dropped", func() bool {
		return testutil.ToFloat64(dropped) == float64(silent)
	})
	for end := start.Add(soak.For(t, 2*time.Second)); time.Now().Before(end); {
		n := counts[0].Load()
		await.That(t, "the state goes on", func() bool { return counts[0].Load() > n })
	}
	if n := testutil.ToFloat64(w.portal.metrics.viewers); n != float64(viewers) {
		t.Errorf("%v viewers are left, want all %d that read", n, viewers)
	}
	w.portal.Close()
	reading.Wait()
	most := int64(time.Since(start)/(pollTime*9/10)) + 2
	for name, n := range map[string]int64{"long": polls.Load(), "short": short.Load()} {
		if n > most {
			t.Errorf("%d polls of %s, want one a second: %d at most", n, name, most)
		}
	}
	for i := range counts {
		if counts[i].Load() == 0 {
			t.Errorf("viewer %d saw nothing", i)
		}
	}
	await.That(t, "all have left", func() bool { return w.feeds() == 0 })
}
