package portal

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const topAPI = "/v1/ratelimit/usage/top"

// sharing is a portal whose API counts reads of a ranking, each of which waits for a turn.
type sharing struct {
	*world
	now    atomic.Int64 // seconds
	turns  chan int     // the status of the next answer
	reads  atomic.Int64
	begins chan struct{}
}

func openSharing(t *testing.T) *sharing {
	t.Helper()
	w := &sharing{turns: make(chan int), begins: make(chan struct{}, 1)}
	w.world = open(t, func(o *Options) { o.Now = func() time.Time { return time.Unix(1_900_000_000+w.now.Load(), 0) } })
	w.api.answers = map[string]func(http.ResponseWriter, *http.Request, api.Caller){
		"GET " + topAPI: func(a http.ResponseWriter, r *http.Request, _ api.Caller) {
			n := w.reads.Add(1)
			w.begins <- struct{}{}
			select {
			case status := <-w.turns:
				a.WriteHeader(status)
				_, _ = io.WriteString(a, fmt.Sprintf(`{"items":[{"admitted":%d}]}`, n))
			case <-r.Context().Done():
				a.WriteHeader(http.StatusServiceUnavailable)
			}
		},
	}
	return w
}

// get returns which read of the ranking a page shows to a role, or the status of the problem.
func (w *sharing) get(role api.Role) (read int64, status int) {
	w.Helper()
	r := httptest.NewRequestWithContext(w.Context(), http.MethodGet, "/portal/top", http.NoBody)
	v := &visit{r: r, caller: api.Caller{Token: "someone", Role: role, Org: "acme"}, portal: w.portal}
	var found rows.UsageTop
	if err := v.getCached(topAPI, url.Values{"limit": {"5"}}, &found); err != nil {
		if p := answers.ProblemOf(err); p != nil {
			return 0, p.Status
		}
		w.Error(err)
		return 0, 0
	}
	return found.Items[0].Admitted, http.StatusOK
}

// idle waits until no read is in progress: it joins one, or is one that does nothing.
func (w *sharing) idle() {
	w.Helper()
	<-w.portal.shared.reads.DoChan(topAPI+"?limit=5", func() (any, error) { return nil, nil })
}

// shows fails the test unless a page shows a read to operators without waiting, and a further one begins or not.
func (w *sharing) shows(want int64, begins bool) {
	w.Helper()
	before := w.reads.Load()
	if got, status := w.get(api.Viewer); got != want {
		w.Fatalf("a page shows the read %d (%d), want %d", got, status, want)
	}
	if begins {
		<-w.begins
	}
	if got := w.reads.Load() - before; (got == 1) != begins {
		w.Fatalf("%d reads have begun", got)
	}
}

func TestPagesShareAReadThatTakesLongAndShowTheOneBeforeMeanwhile(t *testing.T) {
	w := openSharing(t)
	var pages sync.WaitGroup
	for _, role := range []api.Role{api.Admin, api.Viewer, api.Viewer} {
		pages.Go(func() {
			if got, status := w.get(role); got != 1 {
				t.Errorf("a page that waits shows the read %d (%d), want the first", got, status)
			}
		})
	}
	<-w.begins
	w.turns <- http.StatusOK
	pages.Wait()
	w.now.Add(9)
	w.shows(1, false)
	w.now.Add(1)
	w.shows(1, true) // the second is in progress
	w.shows(1, false)
	w.turns <- http.StatusOK
	w.idle()
	w.shows(2, false)
	w.now.Add(59)
	w.shows(2, true)
	w.turns <- http.StatusServiceUnavailable
	w.idle()
	w.shows(2, true) // it is read again at once
	w.turns <- http.StatusOK
	w.idle()
	w.now.Add(60) // a page does not show an answer of a minute ago
	pages.Go(func() {
		if got, status := w.get(api.Viewer); got != 5 {
			t.Errorf("a page shows the read %d (%d), want the fifth", got, status)
		}
	})
	<-w.begins
	w.turns <- http.StatusOK
	pages.Wait()
	if !strings.Contains(w.log.String(), "reading an answer for pages failed") {
		t.Error("the log has nothing of the read that failed")
	}
	for _, call := range w.api.requests() {
		if call != cacheCaller+" GET "+topAPI+"?limit=5" {
			t.Errorf("the API gets %q", call)
		}
	}
}

func TestAReadThatFailsIsAProblemOfThePagesThatWait(t *testing.T) {
	w := openSharing(t)
	var page sync.WaitGroup
	page.Go(func() {
		if _, status := w.get(api.Admin); status != http.StatusServiceUnavailable {
			t.Errorf("the page has the status %d", status)
		}
	})
	<-w.begins
	w.turns <- http.StatusServiceUnavailable
	page.Wait()
}

func TestATenantReadsNoSharedAnswer(t *testing.T) {
	w := openSharing(t)
	var page sync.WaitGroup
	page.Go(func() { w.get(api.Tenant) })
	<-w.begins
	w.turns <- http.StatusForbidden
	page.Wait()
	if got := w.api.requests(); len(got) != 1 || !strings.HasPrefix(got[0], "someone ") || len(w.portal.shared.kept) > 0 {
		t.Errorf("the API gets %q, want the read of the tenant", got)
	}
}

func TestTheEndOfThePortalEndsItsReads(t *testing.T) {
	w := openSharing(t)
	var page sync.WaitGroup
	page.Go(func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/portal/top", http.NoBody)
		v := &visit{r: r, caller: api.Caller{Role: api.Admin}, portal: w.portal}
		var found rows.UsageTop
		if err := v.getCached(topAPI, nil, &found); !errors.Is(err, errClosed) {
			if p := answers.ProblemOf(err); p == nil || p.Status != http.StatusServiceUnavailable {
				t.Errorf("the page that waits has %v", err)
			}
		}
	})
	<-w.begins
	w.portal.Close()
	page.Wait()
}

func TestFewAnswersAreKept(t *testing.T) {
	w := open(t)
	w.api.answer("GET "+topAPI, http.StatusOK, `{}`)
	b := w.signedIn(adminSecret)
	for n := range 2 * maxCached {
		w.want(b.get(fmt.Sprint("/portal/top?policy=p", n)), http.StatusOK)
	}
	w.portal.shared.mu.Lock()
	defer w.portal.shared.mu.Unlock()
	if got := len(w.portal.shared.kept); got != maxCached {
		t.Errorf("%d answers are kept, want at most %d", got, maxCached)
	}
}
