package debian

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestAFoundProgramIsNotInstalled(t *testing.T) {
	looks := 0
	found, err := Find("no-such-package", func() (string, error) {
		looks++
		return "/usr/bin/tool", nil
	})
	if found != "/usr/bin/tool" || err != nil || looks != 1 {
		t.Errorf("%q, %v after %d looks", found, err, looks)
	}
}

func TestAFailedInstallationNamesTheCommand(t *testing.T) {
	missing := errors.New("not found")
	_, err := Find("no-such-package-anywhere", func() (string, error) { return "", missing })
	if !errors.Is(err, missing) || !strings.Contains(err.Error(), "apt-get install no-such-package-anywhere") {
		t.Errorf("error %v", err)
	}
}

func TestOnlyOneInstallationRunsAtATime(t *testing.T) {
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			unlock, err := lock()
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n > 1 {
				most.Store(n)
			}
			inside.Add(-1)
			if err := unlock(); err != nil {
				t.Error(err)
			}
		})
	}
	if all.Wait(); most.Load() > 1 {
		t.Errorf("%d installations at once", most.Load())
	}
}
