package phase

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

func TestTheQuestionsOfTwoRulesInTurnAreMadeOnce(t *testing.T) {
	active, candidate := &identity.Rules{Headers: []string{"X-User"}}, &identity.Rules{Headers: []string{"X-Cost"}}
	var cache headerCache
	first, second := cache.questionsFor(active), cache.questionsFor(candidate)
	for range 3 {
		if cache.questionsFor(active) != first || cache.questionsFor(candidate) != second {
			t.Fatal("the questions are made again")
		}
	}
	if next := cache.questionsFor(&identity.Rules{}); next == first || next == second || len(next.questions) != 0 {
		t.Error("other rules have the questions of earlier ones")
	}
}
