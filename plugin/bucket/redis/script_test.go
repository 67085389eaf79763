package redis

import (
	"path/filepath"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// The scripts as Redis gets them stand in testdata, to be read as a whole and to show each change of the assembled
// text.
func TestTheAssembledScriptsAreTheGoldenFiles(t *testing.T) {
	for name, script := range map[string]*script{"script.lua": takeScript, "split.lua": splitScript} {
		golden.Check(t, filepath.Join("testdata", name), script.source)
	}
}
