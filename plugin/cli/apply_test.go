package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestADeniedApplyShowsItsDiffInTheOutputFormat(t *testing.T) {
	var stdout strings.Builder
	c := newCall(&operator{stdout: screen{to: &stdout}}, documentCommands[0])
	c.format = formatJSON
	var gone rows.SetDiff
	gone.Delete = []rows.Policy{{Policy: schema.Policy{Limit: schema.Limit{Name: "daily"}}}}
	if err := c.acceptable(gone, rows.Review{}, false, false); err == nil || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("the error is %v, want one that names --yes", err)
	}
	var shown struct{ Diff rows.SetDiff }
	if err := json.Unmarshal([]byte(stdout.String()), &shown); err != nil || len(shown.Diff.Delete) != 1 {
		t.Errorf("the output is %q (%v), want the diff as JSON", stdout.String(), err)
	}
}
