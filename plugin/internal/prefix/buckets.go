package prefix

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Beside returns bounds, and after each one of an address the one of its prefix, which counts the address at a
// node above its budget. It is for those who read or empty buckets: see [InUse].
func Beside(bounds []policy.Bound) []policy.Bound {
	all := make([]policy.Bound, 0, len(bounds))
	for _, b := range bounds {
		all = append(all, b)
		if Address(&b.Key) != nil {
			b.Key = prefixKey(b.Key)
			all = append(all, b)
		}
	}
	return all
}

// InUse returns the bounds of Beside, and their statuses, without the prefixes that count nothing now: no node
// counts the address so, or what it counted means nothing any more.
func InUse(bounds []policy.Bound, statuses []decision.Status) ([]policy.Bound, []decision.Status) {
	used, told := make([]policy.Bound, 0, len(bounds)), make([]decision.Status, 0, len(bounds))
	for i := range bounds {
		if statuses[i].Used > 0 || i == 0 || !isPrefixOf(&bounds[i], &bounds[i-1]) {
			used, told = append(used, bounds[i]), append(told, statuses[i])
		}
	}
	return used, told
}

func isPrefixOf(b, of *policy.Bound) bool {
	return Address(&of.Key) != nil && b.Policy == of.Policy && b.Key == prefixKey(of.Key)
}

func prefixKey(of policy.Key) policy.Key { return WithAddress(of, Wider(*Address(&of))) }
