package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"
	_ "time/tzdata" // tenants' time zones, where the system has none

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
)

// nodeName is what this node is called, given the setting.
func nodeName(setting string) (string, error) {
	if setting != "hostname" {
		return setting, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("node-name: %w", err)
	}
	return name, nil
}

// newRows makes what follows Postgres, and has changed told of every new snapshot.
func newRows(s *settings, node string, log *slog.Logger, changed func(*policy.Snapshot), away func() bool) (*policysync.Sync, error) {
	// Two processes of one node live at once while one takes over, and each reports for itself.
	return policysync.New(policysync.Options{
		Source: policysync.Source{DSN: s.Database, File: s.DatabaseFile}, Node: node + "/" + rand.Text()[:8],
		Dir: s.SnapshotDir, MaxRows: s.SnapshotMaxRows, Log: log, Changed: changed, Away: away,
	})
}

// patience is how long the socket stays closed for the rows of an earlier run: long enough for a hundred thousand. More of
// them come into force a moment after the first requests, because without a socket Kong answers 500.
const patience = 100 * time.Millisecond

// awaitSaved reads the rows that an earlier run has saved, and waits for them no longer than patience.
func (p *paths) awaitSaved(ctx context.Context) {
	if p.rows == nil {
		return
	}
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		p.rows.Load()
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-loaded:
	case <-ctx.Done():
	}
}

func policyNumbers(s policysync.Stats) metrics.Policies {
	return metrics.Policies{
		Connected: s.Connected, Standby: s.Standby, Version: s.Version, AgeSeconds: s.Age.Seconds(), PropagationSeconds: s.Propagation.Seconds(),
		Rows: s.Rows, Faults: s.FaultCount, Loads: s.Loads, CatchUps: s.CatchUps, Saves: s.Saves,
	}
}
