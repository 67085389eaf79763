package cli

import (
	"fmt"
	"math"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

// readSaved returns what a node has saved, however many rows.
func readSaved(file string) (policysync.Saved, error) {
	saved, err := policysync.ReadFile(file, math.MaxInt)
	if err != nil {
		return saved, fmt.Errorf("--snapshot: %w", err)
	}
	return saved, nil
}

// savedRows returns the rows that a node has saved, without its candidate.
func savedRows(file string) (policy.Rows, error) {
	saved, err := readSaved(file)
	return saved.Rows, err
}
