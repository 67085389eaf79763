package portal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

func TestPagesShareAReadThatTakesLong(t *testing.T) {
	var c answerCache
	start, turn := time.Now(), make(chan string)
	wants := func(after time.Duration, want string) {
		t.Helper()
		body, err := c.answer(t.Context(), start.Add(after), "/a", func() (json.RawMessage, error) {
			if text := <-turn; text != "fails" {
				return json.RawMessage(text), nil
			}
			return nil, errors.New("fails")
		})
		if got := fmt.Sprint(string(body), err); got != want {
			t.Errorf("after %v a page shows %s, want %s", after, got, want)
		}
	}
	var pages sync.WaitGroup
	for range 3 {
		pages.Go(func() { wants(0, "1<nil>") })
	}
	turn <- "1"
	pages.Wait()
	wants(sharedTime-1, "1<nil>")
	for _, text := range []string{"fails", "2"} { // it is read again at once
		pages.Go(func() { wants(sharedTime, map[bool]string{true: "fails", false: "2<nil>"}[text == "fails"]) })
		turn <- text
		pages.Wait()
	}
	wants(2*sharedTime-1, "2<nil>")
}

func TestAPageThatWaitsForAReadEndsWithItsRequestAndIsDeniedByItsOwnLimit(t *testing.T) {
	var c answerCache
	begun, end := make(chan bool), make(chan bool)
	first := func() (json.RawMessage, error) {
		close(begun)
		<-end
		return nil, &problem{Status: http.StatusTooManyRequests}
	}
	second := func() (json.RawMessage, error) { return json.RawMessage("2"), nil }
	ctx, cancel := context.WithCancel(t.Context())
	var pages sync.WaitGroup
	pages.Go(func() {
		if _, err := c.answer(t.Context(), time.Now(), "/a", first); !isStatus(err, http.StatusTooManyRequests) {
			t.Errorf("the page whose read is denied shows %v", err)
		}
	})
	<-begun
	cancel()
	if _, err := c.answer(ctx, time.Now(), "/a", second); !errors.Is(err, context.Canceled) {
		t.Errorf("a page whose request has ended waits until %v", err)
	}
	pages.Go(func() {
		if body, err := c.answer(t.Context(), time.Now(), "/a", second); string(body) != "2" || err != nil {
			t.Errorf("a page that waited for a read that is denied shows %s, %v", body, err)
		}
	})
	time.Sleep(time.Millisecond) // usually it waits by now
	close(end)
	pages.Wait()
}

func TestOperatorsShareFewAnswersAndTenantsNone(t *testing.T) {
	const topAPI = "/v1/ratelimit/usage/top"
	now := time.Now()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return now } })
	w.api.answer("GET "+topAPI, http.StatusOK, `{}`)
	admin, viewer := w.signedIn(adminSecret), w.signedIn(viewerSecret)
	for n := range 2 * maxCached {
		for _, b := range []*browser{admin, viewer} {
			w.want(b.get(fmt.Sprint("/portal/top?policy=p", n)), http.StatusOK)
		}
	}
	calls := w.api.requests()
	if n := len(w.portal.shared.kept); n > maxCached || len(calls) != 3*maxCached {
		t.Errorf("%d answers are kept after %d reads, want at most %d after %d", n, len(calls), maxCached, 3*maxCached)
	}
	w.want(w.signedIn(acmeSecret).get("/portal/top"), http.StatusForbidden)
	if more := w.api.requests()[len(calls):]; len(more) > 0 {
		t.Errorf("a tenant reads %q", more)
	}
}
