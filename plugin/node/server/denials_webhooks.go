package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

const (
	// notWantedFor is how long denials are not offered after no webhook wanted any.
	notWantedFor = 10 * time.Second
	// maxReport bounds the bytes of the lines in one report; a line has far less.
	maxReport = 256 << 10
)

// denialReporter offers denials to webhooks. It returns how many were added, and the IDs of those that were dropped.
type denialReporter interface {
	Report(ctx context.Context, node string, all []policysync.DenialEvent) (kept int, dropped []string, err error)
}

// denialOffers is a sink of the record of denials: those that a webhook wants go to Postgres, where ratelimit serve
// reads them. The others count as written.
type denialOffers struct {
	node string
	now  func() time.Time
	sink denialReporter

	notBefore time.Time // no webhook wanted denials a moment ago
}

// Write implements [denial.Sink]. Its error is a [denial.Partial] with the lines that are in no successful report, so
// that a later try does not offer the others again, and those that Postgres had no room for.
func (d *denialOffers) Write(ctx context.Context, batch []denial.Line) error {
	if d.now().Before(d.notBefore) {
		return nil
	}
	var all []policysync.DenialEvent
	var full []int
	size, reported := 0, 0
	for i, line := range batch {
		all = append(all, policysync.DenialEvent{
			ID: line.ID, Time: line.Time, Tenant: pgtext.Storable(line.Org), Data: line.Text,
		})
		if size += len(line.Text); size < maxReport && i < len(batch)-1 {
			continue
		}
		kept, dropped, err := d.sink.Report(ctx, d.node, all)
		if err != nil {
			return &notOffered{err, reported, len(batch), full}
		}
		if kept == policysync.NotWanted {
			d.notBefore = d.now().Add(notWantedFor)
			break
		}
		for ; reported <= i; reported++ {
			if slices.Contains(dropped, batch[reported].ID) {
				full = append(full, reported)
			}
		}
		all, size = all[:0], 0
	}
	if len(full) > 0 {
		return &notOffered{errNoRoom, len(batch), len(batch), full}
	}
	return nil
}

var errNoRoom = errors.New("denials were dropped: too many of their tenants wait for webhooks")

// notOffered is the error of a batch, with the indexes of the lines that are left, [from, end), and of those that were
// dropped.
type notOffered struct {
	error
	from, end int
	dropped   []int
}

func (e *notOffered) Unwrap() error { return e.error }

// Left implements [denial.Partial].
func (e *notOffered) Left() (retry, rejected []int) {
	for i := e.from; i < e.end; i++ {
		retry = append(retry, i)
	}
	return retry, e.dropped
}

// MayArrive implements [denial.Partial]. A report whose answer was lost can be kept, but no later try can learn that.
func (*notOffered) MayArrive() bool { return false }
