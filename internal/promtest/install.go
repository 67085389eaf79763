package promtest

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// installation is of Debian's package that has both programs.
const installation = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 prometheus"

// programs are the paths of both programs.
var programs = sync.OnceValues(func() (paths struct{ prometheus, promtool string }, err error) {
	look := func() error {
		if paths.prometheus, err = exec.LookPath("prometheus"); err == nil {
			paths.promtool, err = exec.LookPath("promtool")
		}
		return err
	}
	if look() == nil {
		return paths, nil
	}
	output, failure := exec.Command("sh", "-c", installation).CombinedOutput()
	if look() == nil {
		return paths, nil
	}
	return paths, fmt.Errorf("prometheus is missing and cannot be installed (%w: %s): apt-get install prometheus", failure, lastLine(output))
})

func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}
