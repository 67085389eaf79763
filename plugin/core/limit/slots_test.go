package limit_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestFaultsOfConcurrencyLimitsNameTheirFields(t *testing.T) {
	valid := limit.Spec{Algorithm: limit.Concurrency, Quantity: 10, Window: 60 * limit.Second}
	for field, change := range map[string]func(*limit.Spec){
		"limit":              func(s *limit.Spec) { s.Quantity = limit.MaxSlots + 1 },
		"max_duration":       func(s *limit.Spec) { s.Window = limit.MaxDuration + limit.Second },
		"burst":              func(s *limit.Spec) { s.Burst = 10 },
		"soft_threshold_pct": func(s *limit.Spec) { s.SoftPct = 80 },
		"hard_threshold_pct": func(s *limit.Spec) { s.HardPct = 120 },
		"soft_only":          func(s *limit.Spec) { s.SoftOnly = true },
	} {
		spec := valid
		change(&spec)
		_, err := limit.New(spec)
		var fault *limit.FieldError
		assert.True(t, errors.As(err, &fault) && fault.Field == field, "%s: %v", field, err)
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

func TestOtherAlgorithmsTakeNothingOverFromSlots(t *testing.T) {
	slots, _ := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 2, Window: limit.MaxDuration})
	tokens, _ := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 2, Window: limit.MaxDuration})
	var s limit.State
	now := 1_700_000_000 * limit.Second
	slots.Advance(&s, now)
	slots.Acquire(&s, now, 1, limit.SlotID{1, 1})
	tokens.Advance(&s, now)
	assert.Zero(t, tokens.Status(&s, now).Used)
	tokens.Spend(&s, now, 1)
	slots.Advance(&s, now)
	assert.Zero(t, slots.Status(&s, now).Used)
}
