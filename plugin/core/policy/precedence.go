package policy

import (
	"cmp"
)

// order describes how two overrides of one request relate.
type order int8

const (
	firstWins       order = iota // only the first applies
	secondWins                   // only the second applies
	firstThenSecond              // both apply: the second changes the result of the first
	secondThenFirst
)

// precede returns which of two overrides applies where both cover one request (bans and exemptions) or one of its
// bounds (custom limits and multipliers). It is the only place that defines their precedence:
//
//   - A ban beats all; of two bans the one that lasts longer sets the time to retry.
//   - An exemption beats all but a ban.
//   - A detector's penalty applies to the result of a commercial override, whatever the targets, so nothing masks it;
//     of two penalties the stricter one applies.
//   - Of two commercial overrides the more specific one applies: user+endpoint, user, credential, ip, endpoint, tenant,
//     and of two endpoints or networks the narrower. For one target a custom limit goes before a multiplier, one that
//     names its policy before one that does not, the one that starts later, and the younger before the older. One
//     without a start started before all others.
//
// A rank orders the endpoints or networks of overrides that match the request, the narrowest first.
func precede(a, b *CompiledOverride, rankA, rankB int) order {
	o, _ := decidePrecedence(a, b, rankA, rankB)
	return o
}

// criterion names what decides which of two overrides applies.
type criterion uint8

const (
	byKind           criterion = iota // a ban goes before an exemption, and both go before changes of limits
	byEnd                             // of two bans the longer
	byStrictness                      // of two penalties the stricter
	byTarget                          // the more specific target
	byNarrowness                      // the narrower endpoint or network
	byLimitKind                       // a custom limit before a multiplier
	byPolicy                          // one that names its policy before one that does not
	byStart                           // the one that starts later
	byAge                             // the younger
	bySource                          // both apply: a penalty changes the result of a commercial override
	numberOfCriteria = iota
)

// decidePrecedence returns what precede does, and what decided it.
func decidePrecedence(a, b *CompiledOverride, rankA, rankB int) (order, criterion) {
	if a.kind == ban || b.kind == ban || a.kind == exempt || b.kind == exempt {
		if a.kind != b.kind {
			return orderOf(cmp.Compare(a.kind, b.kind)), byKind
		}
		if a.kind == ban && a.Expires != b.Expires {
			// 0 is permanent: less 1 it is the largest of unsigned numbers.
			return orderOf(cmp.Compare(uint64(b.Expires)-1, uint64(a.Expires)-1)), byEnd
		}
		return compareSpecificity(a, b, rankA, rankB)
	}
	switch {
	case !a.Detector && b.Detector:
		return firstThenSecond, bySource
	case a.Detector && !b.Detector:
		return secondThenFirst, bySource
	case a.Detector && a.quantity != b.quantity:
		return orderOf(cmp.Compare(a.quantity, b.quantity)), byStrictness
	}
	return compareSpecificity(a, b, rankA, rankB)
}

// compareSpecificity returns which of two overrides is more specific, and by what.
func compareSpecificity(a, b *CompiledOverride, rankA, rankB int) (order, criterion) {
	switch {
	case a.target != b.target:
		return orderOf(cmp.Compare(a.target, b.target)), byTarget
	case rankA != rankB:
		return orderOf(cmp.Compare(rankA, rankB)), byNarrowness
	case a.kind != b.kind:
		return orderOf(cmp.Compare(a.kind, b.kind)), byLimitKind
	case (a.policy == "") != (b.policy == ""):
		return orderOf(cmp.Compare(min(len(b.policy), 1), min(len(a.policy), 1))), byPolicy
	case a.Starts != b.Starts:
		return orderOf(cmp.Compare(b.Starts, a.Starts)), byStart
	}
	return orderOf(cmp.Compare(b.ID, a.ID)), byAge
}

func orderOf(comparison int) order {
	if comparison <= 0 {
		return firstWins
	}
	return secondWins
}
