package debian

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestWhatIsThereIsNotInstalled(t *testing.T) {
	looks := 0
	found, err := Find("no-such-package", func() (string, error) {
		looks++
		return "/usr/bin/it", nil
	})
	if found != "/usr/bin/it" || err != nil || looks != 1 {
		t.Errorf("%q, %v after %d looks", found, err, looks)
	}
}

func TestWhatCannotBeInstalledSaysHowToInstallIt(t *testing.T) {
	missing := errors.New("nowhere to be seen")
	_, err := Find("no-such-package-anywhere", func() (string, error) { return "", missing })
	if !errors.Is(err, missing) || !strings.Contains(err.Error(), "apt-get install no-such-package-anywhere") {
		t.Errorf("error is %v", err)
	}
}

func TestInstallationsTakeTurns(t *testing.T) {
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
		t.Errorf("%d installed at once", most.Load())
	}
}
