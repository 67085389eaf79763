// The command cp copies a file into a folder, as an executable. The image has no shell: this hands the plugin to Kong
// in an init container.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: cp FILE FOLDER")
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[1], filepath.Base(args[0])), content, 0o755)
}
