package redis

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The scripts as Redis gets them stand in testdata, to be read as a whole and to show each change of the assembled
// text.
func TestTheAssembledScriptsAreTheGoldenFiles(t *testing.T) {
	for name, script := range map[string]*script{"script.lua": takeScript, "split.lua": splitScript} {
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, []byte(script.source), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatalf("%v: write it with go test ./plugin/bucket/redis -run GoldenFiles -update", err)
		}
		if string(want) != script.source {
			t.Errorf("%s is not the assembled script: look at the change, and write it with -update", golden)
		}
	}
}
