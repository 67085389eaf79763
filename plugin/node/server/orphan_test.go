package server

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAProcessEndsWhenItsKongHasLeftItAloneForTenSeconds(t *testing.T) {
	type seen struct {
		at time.Duration
		observation
		ends bool
	}
	for name, timeline := range map[string][]seen{
		"the parent is gone": {
			{0, observation{}, false},
			{time.Second, observation{orphaned: true}, false},
			{10 * time.Second, observation{orphaned: true}, false},
			{11 * time.Second, observation{orphaned: true}, true},
		},
		"the socket is taken": {
			{0, observation{taken: true}, false},
			{orphanTimeout - 1, observation{taken: true}, false},
			{orphanTimeout, observation{taken: true}, true},
		},
		"another worker stays connected": {
			{0, observation{orphaned: true, taken: true, open: 1, accepted: 1}, false},
			{time.Hour, observation{orphaned: true, taken: true, open: 1, accepted: 1}, false},
			{2 * time.Hour, observation{orphaned: true, taken: true, accepted: 1}, false},
			{2*time.Hour + orphanTimeout, observation{orphaned: true, taken: true, accepted: 1}, true},
		},
		"somebody connects between two looks": {
			{0, observation{orphaned: true}, false},
			{9 * time.Second, observation{orphaned: true, accepted: 1}, false},
			{18 * time.Second, observation{orphaned: true, accepted: 2}, false},
			{20 * time.Second, observation{orphaned: true, accepted: 2}, false},
			{30 * time.Second, observation{orphaned: true, accepted: 2}, true},
		},
		"Kong lives and is idle": {
			{0, observation{}, false},
			{24 * time.Hour, observation{}, false},
		},
	} {
		var check orphanCheck
		begun := time.Now()
		for _, s := range timeline {
			assert.Equal(t, s.ends, check.observe(begun.Add(s.at), s.observation), "%s, after %v: ends", name, s.at)
		}
	}
}

func TestOnlyAProcessThatKongStartedMayEndByItself(t *testing.T) {
	parent := os.Getpid()
	for name, c := range map[string]struct {
		environ []string
		parent  int
		want    bool
	}{
		"an empty environment, as Kong's workers give": {nil, parent, true},
		"what a shell adds to that": {
			[]string{"PWD=/", "SHLVL=1", "_=/usr/local/bin/tenant-rate-limiting"}, parent, true,
		},
		"systemd":                    {[]string{"INVOCATION_ID=1"}, parent, false},
		"socket activation":          {[]string{"LISTEN_FDS=1"}, parent, false},
		"a manager that is notified": {[]string{"NOTIFY_SOCKET=/run/n"}, parent, false},
		"a shell":                    {[]string{"HOME=/root"}, parent, false},
		"init":                       {nil, 1, false},
	} {
		assert.Equal(t, c.want, startedByKong(c.environ, c.parent), "%s", name)
	}
}
