package redis

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed lua/*.lua
var fragments embed.FS

// takeScript takes and refunds buckets. testdata/script.lua has its text.
var takeScript = newFrame(nil)

// newFrame returns a script of lua/frame.lua, in which fragments are replaced as in assemble.
func newFrame(replaced map[string]string) *script {
	s := newScript(assemble("frame", replaced))
	s.merges = true
	return s
}

// assemble returns the text of a fragment, in which the file name.lua replaces each line "--@ name". A fragment in
// replaced is used instead of the file of its name: tests replace the clock.
func assemble(name string, replaced map[string]string) string {
	text, ok := replaced[name]
	if !ok {
		file, err := fragments.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(fmt.Sprintf("the script includes a fragment that is not embedded: %v", err))
		}
		text = string(file)
	}
	var script strings.Builder
	for line := range strings.Lines(text) {
		if included, ok := strings.CutPrefix(strings.TrimSpace(line), "--@ "); ok {
			script.WriteString(assemble(included, replaced))
		} else {
			script.WriteString(line)
		}
	}
	return script.String()
}
