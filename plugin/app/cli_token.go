package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

var tokenCommands = []*command{
	{
		words: "token create", args: "NAME", brief: "make a token for the REST API, and tell its secret once", least: 1, most: 1,
		about: `The name is the actor of what the token does, in the audit as token:NAME, so it is not given to a token of another
role later. A role is

  admin         everything
  viewer        reads everything, and decides without spending
  tenant:{org}  reads what concerns this tenant, and decides for it

The secret is all that is written to standard output, so that it can be kept in a variable or piped into a vault; the
database has a hash of it alone.

  ratelimit token create ci --role admin --expires-in 90d --reason "deployments"`,
		define: func(c *call) action {
			n := c.tokenFlags()
			return c.changes(func(ctx context.Context, s *pgstore.Store, by pgstore.Change) error {
				n.Name = c.arg()
				return c.createToken(ctx, s, by, *n)
			})
		},
	},
	{
		words: "token list", brief: "list the tokens, those that have expired or were revoked included",
		define: func(c *call) action {
			var f pgstore.TokenFilter
			c.flags.Func("state", "only tokens in this `state`: live, expired or revoked", func(text string) error {
				switch text {
				case pgstore.TokenLive, pgstore.TokenExpired, pgstore.TokenRevoked:
					f.State = text
					return nil
				}
				return errors.New("must be live, expired or revoked")
			})
			c.afterFlag(&f.After)
			c.pageFlag(&f.Max)
			return c.reads(func(ctx context.Context, s *pgstore.Store) error {
				list, err := s.Tokens(ctx, f)
				if err != nil {
					return err
				}
				return c.print(listed(list), func(out *page) { tokenTable(out, list) })
			})
		},
	},
	{
		words: "token revoke", args: "NAME", brief: "end a token; within 5 seconds it lets nobody in", least: 1, most: 1,
		define: func(c *call) action {
			return c.changes(func(ctx context.Context, s *pgstore.Store, by pgstore.Change) error {
				t, err := s.RevokeToken(ctx, by, c.arg())
				if err != nil {
					return err
				}
				return c.print(t, func(out *page) { out.line("revoked token %s", t.Name) })
			})
		},
	},
}

// tokenFlags define a token but its name.
func (c *call) tokenFlags() *pgstore.NewToken {
	var (
		n  pgstore.NewToken
		in spanFlag
		at instantFlag
	)
	role := c.flags.String("role", "", "the `role`: admin, viewer or tenant:{org}; it must be given")
	c.flags.Var(&in, "expires-in", "it expires after this `duration`, such as 2h or 90d, by this machine's clock; default: never")
	c.flags.Var(&at, "expires-at", "it expires at this `time`, such as 2026-01-31T12:00:00Z; default: never")
	c.check(func() (err error) {
		n.Role, n.Org, err = pgstore.ParseRole(*role)
		if refused := new(pgstore.InvalidError); errors.As(err, &refused) {
			return wrong("--role: it %s", refused.Problem)
		}
		return err
	})
	c.check(func() error {
		if c.given("expires-in") && c.given("expires-at") {
			return wrong("give --expires-in or --expires-at, not both")
		}
		if n.ExpiresAt = at.at; in.length > 0 {
			n.ExpiresAt = c.now().Add(in.length)
		}
		return nil
	})
	return &n
}

// createToken makes a token. As text, the secret stands alone on standard output.
func (c *call) createToken(ctx context.Context, s *pgstore.Store, by pgstore.Change, n pgstore.NewToken) error {
	secret, t, err := s.CreateToken(ctx, by, n)
	if err != nil {
		return err
	}
	if !c.json {
		c.warn("made token %s, %s, which expires %s; its secret, told this once:", t.Name, t.RoleText(), orDefault(timeText(t.ExpiresAt), "never"))
	}
	made := struct {
		Secret string        `json:"secret"`
		Token  pgstore.Token `json:"token"`
	}{secret, t}
	if err := c.print(made, func(out *page) { out.line("%s", secret) }); err != nil {
		return fmt.Errorf("token %s was made and is live, but its secret is lost: end it by ratelimit token revoke %s: %w", t.Name, t.Name, err)
	}
	return nil
}

func tokenTable(out *page, list []pgstore.Token) {
	columns(out, "ID|NAME|ROLE|STATE|CREATED|BY|LAST USED|EXPIRES|REVOKED BY", list, func(t pgstore.Token) []any {
		return []any{
			t.ID, t.Name, t.RoleText(), t.State, t.CreatedAt, t.CreatedBy, orDefault(timeText(t.LastUsedAt), "never"),
			orDefault(timeText(t.ExpiresAt), "never"), t.RevokedBy,
		}
	})
}
