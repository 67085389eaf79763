package pgstore

import "context"

// unseen returns the warning about a tenant that was never seen: it is no consumer of a config's file, and has neither a
// row nor usage. "" is none.
func (s *Store) unseen(ctx context.Context, tenant string, isConsumer bool) (string, error) {
	if tenant == "" || isConsumer {
		return "", nil
	}
	for t, err := range s.EachTenant(ctx, TenantFilter{Prefix: tenant, Usage: true, Max: 1}) {
		if err != nil || t.ID == tenant { // the name itself comes before those that begin with it
			return "", err
		}
	}
	return "tenant " + tenant + " was never seen: no usage of it is recorded, it has no row, and no known consumer is it; " +
		"check the spelling", nil
}
