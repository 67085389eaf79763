package metrics

import (
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

func TestLimitsThatConfigsDifferInShowTheFewestTokens(t *testing.T) {
	source := []Limit{
		{"minute", "gold", 600}, {"\xff", "", 7}, {"minute", "gold", 60}, {"minute", "", 90}, {"\xfe", "", 8},
	}
	m := New("1", Sources{Limits: func() []Limit { return source }})
	const want = `policy="minute" tier="(none)" 90
policy="minute" tier="gold" 60
policy="` + "\uFFFD" + `" tier="(none)" 7`
	got := samples(t, m, "limit")
	assert.True(t, got == want, "limits are\n%s\nwant\n%s", got, want)
	assert.True(t, source[0].Tokens == 600 && source[1].Policy == "\xff", "the source's own slice is now %v", source)
}

func TestLimitsHaveACeiling(t *testing.T) {
	var source []Limit
	for i := range 2 * maxSeries {
		source = append(source, Limit{Policy: strconv.Itoa(i), Tokens: 1})
	}
	m := New("1", Sources{Limits: func() []Limit { return source }})
	assert.Equal(t, maxSeries, strings.Count(samples(t, m, "limit"), "\n")+1, "limits are shown")
}

func TestAPanicOfOneSourceLeavesTheOthersNumbers(t *testing.T) {
	m := New("1", Sources{
		Limits: func() []Limit { panic("a config is gone") },
		Numbers: []prometheus.Collector{
			Read(func() Overrides { panic("the snapshot is gone") }),
			of([]denial.SinkStats{{Name: "\xff", Written: 1, Dropped: map[denial.Reason]uint64{denial.Queue: 2}}}),
		},
	})
	observe(m, 1, "acme")
	numbers, err := gathered(m)
	if err == nil || strings.Count(err.Error(), "panic:") != 2 || strings.Count(numbers, "\n") != 3 {
		t.Errorf("numbers are %v, %v; want those of denials and requests, and two panics", numbers, err)
	}
}
