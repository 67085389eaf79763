package controlserver

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/usagestore"
)

// newLeader returns the leader of this process. It unpacks usage, and tidies as ratelimit tidy does.
func (d *Database) newLeader(log *slog.Logger) *usagestore.Leader {
	return usagestore.NewLeader(usagestore.Options{
		Connect: d.connect,
		Lock:    pgstore.TidyLock,
		Chores: func(ctx context.Context, session *pgx.Conn) (more bool, err error) {
			moreRows, err := pgstore.TidyOnce(ctx, session, pgstore.DefaultRetention)
			if err != nil {
				return false, err
			}
			moreEvents, err := outbox.Tidy(ctx, session)
			return moreRows || moreEvents, err
		},
		Log:    log,
		Advice: leaderAdvice,
	})
}

// leaderAdvice returns what an operator has to do about an error of the leader.
func leaderAdvice(err error) string {
	if errors.As(err, new(*usagestore.RightsError)) {
		return "give a login of the role keeper by --keeper-database-file, or off and run ratelimit tidy from cron; " +
			"the grants are in migrations/README.md"
	}
	return migrations.Advice(err)
}

// connect opens a connection. Its errors name the setting of this database.
func (d *Database) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := d.Connect()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if fault := migrations.ConnectFault(err, d.Name); fault != "" {
		return nil, errors.New(fault)
	}
	return conn, err
}
