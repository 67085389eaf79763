package redis

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed lua/*.lua
var fragments embed.FS

// takeScript is what every bucket is taken with. Each of its lines that is a comment "--@ name" stands for the file
// name.lua.
var takeScript = newScript(assemble("frame", nil))

// assemble is the text of a fragment with all that it includes. replaced are fragments to be used instead of files:
// tests turn the clock so.
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
