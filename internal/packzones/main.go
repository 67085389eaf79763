// Packzones writes zoneinfo.zip and zoneinfo.version to plugin/core/calendar, from the zone data of the Go toolchain that
// runs it. Run it in the top folder: go run ./internal/packzones
package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "packzones:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	folder := filepath.Join(strings.TrimSpace(string(root)), "lib", "time")
	script, err := os.ReadFile(filepath.Join(folder, "update.bash"))
	if err != nil {
		return err
	}
	version := regexp.MustCompile(`(?m)^DATA=(\w+)$`).FindSubmatch(script)
	if version == nil {
		return errors.New("update.bash does not name the version of the zone data")
	}
	source, err := zip.OpenReader(filepath.Join(folder, "zoneinfo.zip"))
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	target := zip.NewWriter(&packed)
	for _, file := range source.File {
		if err := compress(target, file); err != nil {
			return err
		}
	}
	if err := target.Close(); err != nil {
		return err
	}
	const to = "plugin/core/calendar/zoneinfo"
	if err := os.WriteFile(to+".version", version[1], 0o600); err != nil {
		return err
	}
	return os.WriteFile(to+".zip", packed.Bytes(), 0o600)
}

func compress(target *zip.Writer, file *zip.File) error {
	from, err := file.Open()
	if err != nil {
		return err
	}
	to, err := target.CreateHeader(&zip.FileHeader{Name: file.Name, Method: zip.Deflate})
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return err
}
