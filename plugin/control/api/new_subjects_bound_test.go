package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// name sends new subjects for a number of tokens, beginning at a second.
func name(t *testing.T, n *subjectLimiter, from, tokens, subjects int) {
	t.Helper()
	const at = 1000
	for i := 0; i < subjects; i += at {
		named := map[subject]struct{}{}
		for j := i; j < min(i+at, subjects); j++ {
			named[subject{policy.KindUser, fmt.Sprint(j)}] = struct{}{}
		}
		for token := range tokens {
			now := limit.Micros(from+i+at) * limit.Second
			if wait := n.admit(fmt.Sprint(token), named, now); wait != 0 {
				t.Fatalf("token %d waits %d µs for subjects from %d on", token, wait, i)
			}
		}
	}
}

func TestTheMemoryOfSubjectsIsBounded(t *testing.T) {
	n, err := newSubjectLimiter(1000)
	require.NoError(t, err)
	count := func() (all, most int) {
		for _, k := range n.tokens {
			all, most = all+k.size(), max(most, k.size())
		}
		return all, most
	}
	name(t, n, 0, 1, 3*maxSubjectsPerToken)
	if all, most := count(); most > maxSubjectsPerToken || most < maxSubjectsPerToken/2 || all != n.hashes {
		t.Errorf("%d subjects of one token are remembered (%d are counted), want at most %d", most,
			n.hashes, maxSubjectsPerToken)
	}
	if n.tokens["0"].contains(0) {
		t.Error("a subject that was never named is remembered")
	}
	name(t, n, 1_000_000, 24, 60_000)
	if all, _ := count(); all > maxSubjects || all < maxSubjects/2 || all != n.hashes {
		t.Errorf("%d subjects of all tokens are remembered (%d are counted), want at most %d", all, n.hashes, maxSubjects)
	}
	for i := range maxSubjectTokens + 100 {
		named := map[subject]struct{}{{policy.KindUser, "u"}: {}}
		if wait := n.admit(fmt.Sprint("token-", i), named, limit.Micros(2e6+i)*limit.Second); wait != 0 {
			t.Fatalf("token %d waits %d µs for its first subject", i, wait)
		}
	}
	if all, _ := count(); len(n.tokens) > maxSubjectTokens || all != n.hashes {
		t.Errorf("%d tokens are remembered with %d subjects (%d are counted), want at most %d tokens", len(n.tokens), all,
			n.hashes, maxSubjectTokens)
	}
}
