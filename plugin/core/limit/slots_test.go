package limit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestFaultsOfConcurrencyLimitsNameTheirFields(t *testing.T) {
	valid := limit.Spec{Algorithm: limit.Concurrency, Quantity: 10, Window: 60 * limit.Second}
	for field, changes := range map[string][]func(*limit.Spec){
		"limit":        {func(s *limit.Spec) { s.Quantity = limit.MaxSlots + 1 }},
		"max_duration": {func(s *limit.Spec) { s.Window = limit.MaxDuration + limit.Second }},
		"algorithm": {
			func(s *limit.Spec) { s.Window = 0 },
			func(s *limit.Spec) { s.Burst, s.SoftPct, s.HardPct = 10, 80, 120 },
			func(s *limit.Spec) { s.Burst = 10 },
			func(s *limit.Spec) { s.SoftPct = 80 },
			func(s *limit.Spec) { s.HardPct = 120 },
		},
		"soft_only": {func(s *limit.Spec) { s.SoftOnly = true }},
	} {
		for _, change := range changes {
			spec := valid
			change(&spec)
			_, err := limit.New(spec)
			assert.Equal(t, []string{field}, faults(err))
		}
	}
	for _, spec := range []limit.Spec{
		{Algorithm: limit.Concurrency, Window: 60 * limit.Second}, {Algorithm: limit.Concurrency, Quantity: 1},
	} {
		_, err := limit.New(spec)
		assert.Error(t, err, "%+v", spec)
	}
	parsed, err := limit.ParseAlgorithm("concurrency")
	assert.True(t, err == nil && parsed == limit.Concurrency && parsed.String() == "concurrency")
}

func TestSlotsOutliveNoClockThatStepsBackFar(t *testing.T) {
	l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 2, Window: limit.MaxDuration})
	assert.NoError(t, err)
	var s limit.State
	now := 1_700_000_000 * limit.Second
	l.Advance(&s, now)
	l.Acquire(&s, now, 1, limit.SlotID{1, 1})
	now -= limit.StepBack
	l.Advance(&s, now)
	assert.EqualValues(t, 1, l.Status(&s, now).Used, "after a step back of an hour")
	l.Acquire(&s, now, 1, limit.SlotID{2, 2})
	assert.Equal(t, now+limit.MaxDuration, s.Slots[0].Deadline, "slots stand in the order of their deadlines")
	now--
	l.Advance(&s, now)
	assert.EqualValues(t, 1, l.Status(&s, now).Used, "after another step")
}
