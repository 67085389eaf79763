package phase

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// timeline holds configs on a clock that the test sets.
type timeline struct {
	*configs
	now time.Duration
	log bytes.Buffer
}

func newTimeline() *timeline {
	l := &timeline{}
	build := func(schema.Config, *resolve.Plan) (*admit.Decider, func(), error) { return nil, nil, nil }
	l.configs = newConfigs(build, slog.New(slog.NewTextHandler(&l.log, nil)), func() time.Duration { return l.now })
	return l
}

// define starts an instance of a plugin with one limit.
func (l *timeline) define(seq int, plugin string, limit int) *instance {
	return l.defineLimit(seq, plugin, fmt.Sprintf(`{"name":"burst","scope":"tenant","limit":%d,"window_size":1}`, limit))
}

// defineLimit starts an instance of a plugin with a limit.
func (l *timeline) defineLimit(seq int, plugin, limit string) *instance {
	text := []byte(kongtest.WithSeq(seq, plugin, fmt.Sprintf(`{"tiers":[{"name":"a","limits":[%s]}]}`, limit)))
	return l.start(wire.Config{JSON: text, Common: text, PluginID: plugin})
}

// conflicts returns the number of conflicts logged since the last call.
func (l *timeline) conflicts() int {
	defer l.log.Reset()
	return strings.Count(l.log.String(), "share its buckets")
}

func TestAConfigThatServesNoRequestsStopsCountingAsALiveDefinition(t *testing.T) {
	l := newTimeline()
	l.define(1, "deleted", 5)
	l.now = unusedAfter
	l.define(2, "other", 6)
	assert.Equal(t, 1, l.conflicts(), "conflicts with a config that was in use")
	l.now += useStep
	l.define(3, "other", 7)
	assert.Zero(t, l.conflicts(), "conflicts with a config that serves no requests, want none")
}

func TestAConfigThatServesRequestsStaysALiveDefinition(t *testing.T) {
	l := newTimeline()
	first := l.define(1, "one", 5)
	for range 30 {
		l.now += useStep
		l.recordUse(first, l.now)
	}
	l.define(2, "two", 6)
	assert.Equal(t, 1, l.conflicts(), "conflicts")
}

func TestAConfigThatIsUsedAgainIsComparedAgain(t *testing.T) {
	l := newTimeline()
	first := l.define(1, "one", 5)
	l.now = unusedAfter + useStep
	l.define(2, "two", 6)
	require.Zero(t, l.conflicts(), "conflicts with a config that serves no requests, want none")
	for range 3 {
		l.recordUse(first, l.now)
	}
	assert.Equal(t, 1, l.conflicts(), "conflicts once it serves requests again")
}

func TestLimitsThatSettleDifferentlyAreAConflict(t *testing.T) {
	limit := func(settle string) string {
		return `{"name":"tokens","scope":"tenant","limit":1000,"window_size":60,"algorithm":"fixed_window"` + settle + `}`
	}
	const (
		settles = `,"settle":{"sources":[{"from":"shared.tokens"}],"reserve":20}`
		more    = `,"settle":{"sources":[{"from":"shared.tokens"}],"reserve":30}`
	)
	for _, test := range []struct {
		name, first, second string
		want                int
	}{
		{"the same", settles, settles, 0},
		{"one does not settle", settles, `,"accuracy":"exact"`, 1},
		{"another reservation", settles, more, 1},
	} {
		l := newTimeline()
		l.defineLimit(1, "one", limit(test.first))
		l.defineLimit(2, "two", limit(test.second))
		if strings.Contains(l.log.String(), "leased") {
			t.Errorf("%s: what settles is exact, but the log has %s", test.name, l.log.String())
		}
		assert.Equal(t, test.want, l.conflicts(), "%s: conflicts", test.name)
	}
}

func TestLimitsThatCountOtherModelsOrUnitsAreNotAlike(t *testing.T) {
	policyOf := func(unit string, match *schema.Match) *policy.Policy {
		rule, err := settle.New(schema.Settle{Sources: []schema.SettleSource{{From: "shared.n"}}, Reserve: 5}, match)
		require.NoError(t, err)
		return &policy.Policy{Unit: unit, Settle: rule}
	}
	base := policyOf(schema.UnitUSD, &schema.Match{Model: "gpt-4o*"})
	assert.True(t, settlesAlike(base, policyOf(schema.UnitUSD, &schema.Match{Model: "gpt-4o*"})))
	assert.False(t, settlesAlike(base, policyOf("", &schema.Match{Model: "gpt-4o*"})), "another unit")
	assert.False(t, settlesAlike(base, policyOf(schema.UnitUSD, &schema.Match{Model: "claude"})), "another model")
	assert.False(t, settlesAlike(base, policyOf(schema.UnitUSD, nil)), "all models")
}
