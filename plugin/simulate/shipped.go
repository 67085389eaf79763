package simulate

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed scenarios/*.yaml
var shipped embed.FS

// Shipped returns the names of the scenarios that are part of the program.
func Shipped() (names []string) {
	files, err := shipped.ReadDir("scenarios")
	if err != nil {
		panic(fmt.Sprintf("simulate: %v", err)) // the folder is embedded
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(file.Name(), path.Ext(file.Name())))
	}
	return names
}

// ReadShipped returns the text of a scenario that is part of the program, and whether there is one of that name.
func ReadShipped(name string) (text []byte, ok bool) {
	text, err := shipped.ReadFile("scenarios/" + name + ".yaml")
	return text, err == nil
}
