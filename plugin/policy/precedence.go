package policy

import "cmp"

// order is how two overrides of one request relate.
type order int8

const (
	firstWins       order = iota // the first holds, and the second does nothing
	secondWins                   // the reverse
	firstThenSecond              // both hold: the second changes what the first has made
	secondThenFirst
)

// precede is the precedence of overrides, all of it: which of two holds where both cover one request (bans and
// exemptions) or one of its bounds (custom limits and multipliers).
//
//   - A ban beats all; of two the one that lasts longer tells when to come back.
//   - An exemption beats all but a ban.
//   - A detector's penalty applies to what a commercial override has made, whatever the targets, so nothing masks it;
//     of two penalties the stricter one holds.
//   - Of two commercial overrides the more specific one holds: user+endpoint, user, credential, ip, endpoint, tenant,
//     and of two endpoints or networks the narrower. For one target a custom limit goes before a multiplier, one that names its
//     policy before one that does not, and the younger before the older.
//
// place is where an override's endpoint or network stands among those that the request is in, the narrowest first.
func precede(a, b *override, placeA, placeB int) order {
	if a.kind == ban || b.kind == ban || a.kind == exempt || b.kind == exempt {
		if a.kind != b.kind {
			return pick(cmp.Compare(a.kind, b.kind))
		}
		if a.kind == ban && a.expires != b.expires {
			// 0 is for good: as the largest of unsigned numbers it lasts longest.
			return pick(cmp.Compare(uint64(b.expires)-1, uint64(a.expires)-1))
		}
		return pick(specific(a, b, placeA, placeB))
	}
	switch {
	case !a.detector && b.detector:
		return firstThenSecond
	case a.detector && !b.detector:
		return secondThenFirst
	case a.detector && a.quantity != b.quantity:
		return pick(cmp.Compare(a.quantity, b.quantity))
	}
	return pick(specific(a, b, placeA, placeB))
}

// specific compares how specific two overrides are: negative when the first is more so.
func specific(a, b *override, placeA, placeB int) int {
	return cmp.Or(
		cmp.Compare(a.target, b.target),
		cmp.Compare(placeA, placeB),
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(min(len(b.policy), 1), min(len(a.policy), 1)),
		cmp.Compare(b.id, a.id),
	)
}

func pick(comparison int) order {
	if comparison <= 0 {
		return firstWins
	}
	return secondWins
}
