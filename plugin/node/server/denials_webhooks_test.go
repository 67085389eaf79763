package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

// reporter answers reports with a number or an error.
type reporter struct {
	got     [][]policysync.DenialEvent
	kept    int
	dropped []string
	err     error

	failFrom int // reports before succeed
}

// Report implements denialReporter.
func (r *reporter) Report(_ context.Context, _ string, all []policysync.DenialEvent) (int, []string, error) {
	r.got = append(r.got, append([]policysync.DenialEvent(nil), all...))
	if len(r.got) <= r.failFrom {
		return r.kept, r.dropped, nil
	}
	return r.kept, r.dropped, r.err
}

func TestDenialsAreNotOfferedForAWhileAfterNoWebhookWantedAny(t *testing.T) {
	now, to := time.Unix(1_790_000_000, 0), &reporter{kept: policysync.NotWanted}
	offers := &denialOffers{node: "gw-1", now: func() time.Time { return now }, sink: to}
	write := func() error {
		return offers.Write(t.Context(), []denial.Line{{ID: "a-1", Org: "acme", Text: []byte(`{}`)}})
	}
	for range 3 {
		require.NoError(t, write())
	}
	assert.Len(t, to.got, 1, "reports were sent, want one")
	now = now.Add(notWantedFor)
	to.kept = 1
	if err := errors.Join(write(), write()); err != nil || len(to.got) != 3 {
		t.Errorf("%d reports were sent (%v), want two more", len(to.got), err)
	}
	to.err = errors.New("down")
	if err := write(); !errors.Is(err, to.err) {
		t.Errorf("the error is %v, so the recorder would not retry", err)
	}
}

func TestDenialsThatPostgresHasNoRoomForAreRejected(t *testing.T) {
	to := &reporter{kept: 1, dropped: []string{"a-2", "a-4"}}
	offers := &denialOffers{node: "gw-1", now: time.Now, sink: to}
	text := []byte(`{"a":"` + strings.Repeat("x", maxReport/2) + `"}`) // two lines fill a report
	batch := []denial.Line{
		{ID: "a-1", Text: text}, {ID: "a-2", Text: text}, {ID: "a-3", Text: text}, {ID: "a-4", Text: text},
	}
	err := offers.Write(t.Context(), batch)
	var partial denial.Partial
	require.True(t, errors.As(err, &partial) && !partial.MayArrive(), "the error is %v", err)
	if retry, rejected := partial.Left(); len(retry) > 0 || !slices.Equal(rejected, []int{1, 3}) || len(to.got) != 2 {
		t.Errorf("%d reports; retried are %d, rejected %d; want the second and the fourth rejected", len(to.got), retry,
			rejected)
	}
}

func TestABatchOfDenialsIsOfferedInReportsOfBoundedSize(t *testing.T) {
	to := &reporter{}
	offers := &denialOffers{node: "gw-1", now: time.Now, sink: to}
	line := denial.Line{ID: "a-1", Org: "bad\xff\x00name", Text: []byte(`{"a":"` + strings.Repeat("x", 4000) + `"}`)}
	batch := make([]denial.Line, 200)
	for i := range batch {
		batch[i] = line
	}
	require.NoError(t, offers.Write(t.Context(), batch))
	count := 0
	for _, report := range to.got {
		if count += len(report); len(report)*len(line.Text) > maxReport+len(line.Text) {
			t.Errorf("a report has %d lines of %d bytes", len(report), len(line.Text))
		}
	}
	if count != len(batch) || to.got[0][0].Tenant != "bad\ufffd\ufffdname" {
		t.Errorf("%d lines were offered, the first of %q", count, to.got[0][0].Tenant)
	}
}

func TestLinesOfASuccessfulReportAreNotOfferedAgainAfterALaterOneFailed(t *testing.T) {
	to := &reporter{err: errors.New("too many denials wait"), failFrom: 1}
	offers := &denialOffers{node: "gw-1", now: time.Now, sink: to}
	batch := make([]denial.Line, 100)
	for i := range batch {
		batch[i] = denial.Line{ID: fmt.Sprint("a-", i), Text: []byte(`{"a":"` + strings.Repeat("x", 4000) + `"}`)}
	}
	err := offers.Write(t.Context(), batch)
	var left denial.Partial
	if !errors.Is(err, to.err) || !errors.As(err, &left) {
		t.Fatalf("the error is %v, want one of a part of the batch", err)
	}
	retry, rejected := left.Left()
	first := len(to.got[0])
	if len(retry) != len(batch)-first || retry[0] != first || retry[len(retry)-1] != len(batch)-1 || len(rejected) > 0 {
		t.Errorf("after a report of %d lines %v are retried and %v rejected", first, retry, rejected)
	}
}

func TestDenialWebhooksNeedADatabase(t *testing.T) {
	s, err := parseSettings([]string{"-denial-webhooks", "on"}, func(string) string { return "" }, io.Discard)
	require.NoError(t, err)
	_, err = newDenials(&s, "gw-1", io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "denial-webhooks: on needs a database") {
		t.Errorf("the error is %v", err)
	}
	s.Database = "host=127.0.0.1"
	d, err := newDenials(&s, "gw-1", io.Discard, slog.New(slog.DiscardHandler))
	assert.True(t, err == nil && d != nil && d.offer != nil, "with a database there is no sink (%v)", err)
}

func TestRecentDenialsAreReportedWhereThereIsADatabaseUnlessTheyAreOff(t *testing.T) {
	for args, want := range map[string]bool{
		"":                               false,
		"-database x":                    true,
		"-database x -denial-recent off": false,
	} {
		s, err := parseSettings(strings.Fields(args), func(string) string { return "" }, nil)
		require.NoError(t, err)
		d, err := newDenials(&s, "n1", nil, slog.New(slog.DiscardHandler))
		if got := d != nil && len(d.Metrics()) > 0; err != nil || got != want {
			t.Errorf("%q: they are reported: %v (%v), want %v", args, got, err, want)
		}
	}
}
