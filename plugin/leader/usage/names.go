package usage

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
)

const (
	// maxCachedNames bounds the names that a session remembers.
	maxCachedNames = 200_000
	// maxNames bounds the names in the database, which are never deleted. Further ones count as otherName.
	maxNames  = 2_000_000
	otherName = "(other)"
)

// findNames finds the numbers of all names of the sums and of the tenants with tiers, and makes those that are missing.
func (u *unpacking) findNames(ctx context.Context) error {
	u.names = map[string]int32{}
	missing := map[string]bool{}
	find := func(name string) {
		if id, ok := u.session.names[name]; ok {
			u.names[name] = id
		} else {
			missing[name] = true
		}
	}
	for k := range u.sums {
		find(k.Tenant)
		find(k.Endpoint)
		find(k.Policy)
	}
	for t := range u.tiers {
		find(t.Tenant)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := u.queryNames(ctx, missing, selectNames); err != nil || len(missing) == 0 {
		return err
	}
	var highest int
	err := u.tx.QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM rate_limiter.usage_names`).Scan(&highest)
	if err != nil {
		return fmt.Errorf("count the names: %w", err)
	}
	if highest+len(missing) > maxNames {
		return u.useOtherName(ctx, missing)
	}
	if err := u.queryNames(ctx, missing, insertNames); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d names were made at the same time: try again", len(missing))
	}
	return nil
}

// queryNames runs a statement that returns names with their numbers, and removes these from the missing ones.
func (u *unpacking) queryNames(ctx context.Context, missing map[string]bool, sql string) error {
	list := make([]string, 0, len(missing))
	for name := range missing {
		list = append(list, name)
	}
	rows, _ := u.tx.Query(ctx, sql, list)
	var id int32
	var name string
	_, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		u.names[name] = id
		delete(missing, name)
		return nil
	})
	if err != nil {
		return fmt.Errorf("find the numbers of names: %w", err)
	}
	return nil
}

// useOtherName counts the rows of missing names under otherName.
func (u *unpacking) useOtherName(ctx context.Context, missing map[string]bool) error {
	other := map[string]bool{otherName: true}
	err := u.queryNames(ctx, other, selectNames)
	if err == nil && len(other) > 0 {
		err = u.queryNames(ctx, other, insertNames)
	}
	if err != nil {
		return err
	}
	renamed := sums{}
	for k, c := range u.sums {
		for _, name := range [...]*string{&k.Tenant, &k.Endpoint, &k.Policy} {
			if missing[*name] {
				*name = otherName
			}
		}
		if have := renamed[k]; have != nil {
			have.Add(*c)
		} else {
			renamed[k] = c
		}
	}
	u.sums = renamed
	return nil
}

// commitNames remembers names after the commit of the transaction that found or made them.
func (s *session) commitNames(names map[string]int32) {
	if len(s.names)+len(names) > maxCachedNames {
		clear(s.names)
	}
	maps.Copy(s.names, names)
}
