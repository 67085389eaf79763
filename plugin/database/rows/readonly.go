package rows

import "context"

// ReadOnly returns why the database takes no writes, in words that follow "it is", or "" if it takes them.
func (s *Store) ReadOnly(ctx context.Context) (why string, err error) {
	var readOnly, standby bool
	err = s.pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean, pg_is_in_recovery()
		FROM rate_limiter.version`).
		Scan(&readOnly, &standby)
	switch {
	case err != nil:
		return "", fail("check whether the database takes writes", err)
	case standby:
		return "a standby", nil
	case readOnly:
		return "set to default_transaction_read_only", nil
	}
	return "", nil
}
