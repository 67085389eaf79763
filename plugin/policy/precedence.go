package policy

import "cmp"

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
//     names its policy before one that does not, and the younger before the older.
//
// A rank orders the endpoints or networks of overrides that match the request, the narrowest first.
func precede(a, b *override, rankA, rankB int) order {
	if a.kind == ban || b.kind == ban || a.kind == exempt || b.kind == exempt {
		if a.kind != b.kind {
			return orderOf(cmp.Compare(a.kind, b.kind))
		}
		if a.kind == ban && a.expires != b.expires {
			// 0 is permanent: less 1 it is the largest of unsigned numbers.
			return orderOf(cmp.Compare(uint64(b.expires)-1, uint64(a.expires)-1))
		}
		return orderOf(compareSpecificity(a, b, rankA, rankB))
	}
	switch {
	case !a.detector && b.detector:
		return firstThenSecond
	case a.detector && !b.detector:
		return secondThenFirst
	case a.detector && a.quantity != b.quantity:
		return orderOf(cmp.Compare(a.quantity, b.quantity))
	}
	return orderOf(compareSpecificity(a, b, rankA, rankB))
}

// compareSpecificity returns a negative number if the first of two overrides is more specific, a positive one if the
// second is.
func compareSpecificity(a, b *override, rankA, rankB int) int {
	return cmp.Or(
		cmp.Compare(a.target, b.target),
		cmp.Compare(rankA, rankB),
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(min(len(b.policy), 1), min(len(a.policy), 1)),
		cmp.Compare(b.id, a.id),
	)
}

func orderOf(comparison int) order {
	if comparison <= 0 {
		return firstWins
	}
	return secondWins
}
