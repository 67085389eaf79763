package fieldschema

import "testing"

const conditionally = `{"name": "p", "fields": [{"config": {"type": "record", "fields": [
 {"algorithm": {"type": "string"}}, {"limit": {"type": "integer", "required": true}}],
 "entity_checks": [{"conditional": {"if_field": "algorithm", "if_match": {"eq": "log"},
   "then_field": "limit", "then_match": {"gt": 0}, "then_err": "wrong for %s"}}]}}]}`

func TestAConditionThatHasLookedAtItsFieldRequiresItAsTheFieldDoes(t *testing.T) {
	s := parsed(t, conditionally)
	for _, c := range []struct{ config, want string }{
		{`{"algorithm": "log", "limit": 0}`, "config: wrong for algorithm; config.limit: value must be greater than 0"},
		{
			`{"algorithm": "log"}`,
			"config: failed conditional validation given value of field 'algorithm'; config.limit: required field missing",
		},
	} {
		if got := denied(t, s, map[string]any{"name": "p", "config": tree(t, c.config)}); got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.config, got, c.want)
		}
	}
}

// limitsLikeThePlugins has the rules over several fields of a limit, as the schema of the recorded verdicts has them.
const limitsLikeThePlugins = `{"name": "p", "fields": [{"config": {"type": "record", "fields": [
 {"limits": {"type": "array", "elements": {"type": "record", "fields": [
  {"limit": {"type": "integer", "required": true}},
  {"algorithm": {"type": "string", "required": true, "default": "token_bucket"}},
  {"burst": {"type": "integer"}},
  {"hard_threshold_pct": {"type": "integer"}},
  {"soft_only": {"type": "boolean", "required": true, "default": false}}],
  "entity_checks": [
   {"conditional": {"if_field": "algorithm", "if_match": {"eq": "sliding_log"},
     "then_field": "limit", "then_match": {"between": [1, 10000]}, "then_err": "too much for a log"}},
   {"conditional": {"if_field": "burst", "if_match": {"required": true},
     "then_field": "algorithm", "then_match": {"one_of": ["token_bucket", "leaky_bucket"]},
     "then_err": "has no burst"}},
   {"conditional": {"if_field": "hard_threshold_pct", "if_match": {"required": true},
     "then_field": "soft_only", "then_match": {"eq": false}, "then_err": "never denies"}}]}}}]}}]}`

func TestConditionsOfLimitsAreJudgedInEachLimitOfAList(t *testing.T) {
	const failed = "failed conditional validation given value of field "
	for _, c := range []struct{ what, limits, want string }{
		{
			"two logs within the bound",
			`{"algorithm": "sliding_log", "limit": 10}, {"algorithm": "sliding_log", "limit": 10000}`, "",
		},
		{
			"two logs, one above the bound",
			`{"algorithm": "sliding_log", "limit": 10}, {"algorithm": "sliding_log", "limit": 20000}`,
			"config.limits[1]: too much for a log; config.limits[1].limit: value should be between 1 and 10000",
		},
		{
			"two logs above the bound",
			`{"algorithm": "sliding_log", "limit": 20000}, {"algorithm": "sliding_log", "limit": 20001}`,
			"config.limits[0]: too much for a log; config.limits[0].limit: value should be between 1 and 10000; " +
				"config.limits[1]: too much for a log; config.limits[1].limit: value should be between 1 and 10000",
		},
		{
			"two logs, the second without a limit",
			`{"algorithm": "sliding_log", "limit": 10}, {"algorithm": "sliding_log"}`,
			"config.limits[1]: " + failed + "'algorithm'; config.limits[1].limit: required field missing",
		},
		{
			"a burst without an algorithm that has one",
			`{"limit": 10, "algorithm": "fixed_window", "burst": 5}`,
			"config.limits[0]: has no burst; config.limits[0].algorithm: expected one of: token_bucket, leaky_bucket",
		},
		{"a burst for the default algorithm", `{"limit": 10, "burst": 5}`, ""},
		{"soft_only null", `{"limit": 10, "soft_only": null}`, "config.limits[0].soft_only: required field missing"},
		{
			"soft_only null in two limits",
			`{"limit": 10, "soft_only": null}, {"limit": 10, "soft_only": null}`,
			"config.limits[0].soft_only: required field missing; config.limits[1].soft_only: required field missing",
		},
		{
			"soft_only beside a hard threshold",
			`{"limit": 10, "soft_only": true, "hard_threshold_pct": 110}`,
			"config.limits[0]: never denies; config.limits[0].soft_only: value must be false",
		},
	} {
		s := parsed(t, limitsLikeThePlugins) // what a rule has looked at is remembered: each case is a Kong of its own
		config := `{"limits": [` + c.limits + `]}`
		if got := denied(t, s, map[string]any{"name": "p", "config": tree(t, config)}); got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.what, got, c.want)
		}
	}
}
