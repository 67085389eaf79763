package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestADeniedApplyShowsItsDiffInTheOutputFormat(t *testing.T) {
	var stdout strings.Builder
	c := newCall(&operator{stdout: screen{to: &stdout}}, documentCommands[0])
	c.format = formatJSON
	problem := &answers.Problem{
		Status: http.StatusUnprocessableEntity, Errors: []answers.Fault{{Location: "query.allow_delete"}},
		Diff: json.RawMessage(`{"delete":[{"name":"daily"}]}`),
	}
	if err := c.declined(new(document), problem); err == nil || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("the error is %v, want one that names --yes", err)
	}
	var shown struct{ Diff rows.SetDiff }
	if err := json.Unmarshal([]byte(stdout.String()), &shown); err != nil || len(shown.Diff.Delete) != 1 {
		t.Errorf("the output is %q (%v), want the diff as JSON", stdout.String(), err)
	}
}
