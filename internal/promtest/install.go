package promtest

import (
	"os/exec"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// paths holds the paths of both programs.
type paths struct{ prometheus, promtool string }

// programs finds both programs, which one Debian package has.
var programs = sync.OnceValues(func() (paths, error) {
	return debian.Find("prometheus", func() (found paths, err error) {
		if found.prometheus, err = exec.LookPath("prometheus"); err == nil {
			found.promtool, err = exec.LookPath("promtool")
		}
		return found, err
	})
})
