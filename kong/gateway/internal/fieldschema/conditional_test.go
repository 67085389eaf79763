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
