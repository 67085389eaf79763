package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const tokensPath = "/v1/ratelimit/tokens"

var tokenCommands = []*command{
	{
		words: "token create", args: "NAME", brief: "create a token for the REST API and print its secret once",
		about: `Roles:

  admin         full access
  viewer        read everything; check requests without spending
  tenant:{org}  read this tenant's limits and usage; check requests for it

Changes made with the token appear in the audit log as token:NAME, so a name cannot be reused with another role. Only
the secret is written to standard output, so that it can be assigned to a variable or piped into a vault. The database
stores a hash of it.

  ratelimit token create ci --role admin --expires-in 90d --reason "deployments"`,
		define: func(c *call) action {
			n := c.tokenFlags()
			return c.changes(func(ctx context.Context, rest *answers.Client) error {
				n["name"] = c.arg()
				return c.createToken(ctx, rest, n)
			})
		},
	},
	{
		words: "token list", brief: "list tokens, including expired and revoked ones",
		define: lists[rows.Token](tokensPath, rows.TokenFilter{}),
	},
	{
		words: "token revoke", args: "NAME", brief: "revoke a token (takes effect within 2 seconds)",
		define: func(c *call) action {
			revoke := func() change { return change{method: http.MethodDelete, path: c.path(tokensPath + "/{}")} }
			return sends(c, revoke, func(t rows.Token) string { return "revoked token " + t.Name })
		},
	},
}

// tokenFlags defines a token but its name.
func (c *call) tokenFlags() object {
	var (
		n  = object{}
		in spanFlag
		at instantFlag
	)
	role := c.flags.String("role", "", "the `role`: admin, viewer or tenant:{org} (required)")
	c.flags.Var(&in, "expires-in",
		"expire after this `duration`, such as 2h or 90d (uses this machine's clock; default: never)")
	c.flags.Var(&at, "expires-at", "expire at this `time`, such as 2026-01-31T12:00:00Z (default: never)")
	c.check(func() error {
		_, _, err := rows.ParseRole(*role)
		if invalid := new(rows.InvalidError); errors.As(err, &invalid) {
			return wrong("--role: %s", invalid.Problem)
		}
		return err
	})
	c.check(func() error {
		if c.given("expires-in") && c.given("expires-at") {
			return wrong("use either --expires-in or --expires-at, not both")
		}
		if in.length > 0 {
			at.at = c.now().Add(in.length)
		}
		if n["role"] = *role; !at.at.IsZero() {
			n["expires_at"] = at.at
		}
		return nil
	})
	return n
}

// expiryText returns when a token expires, in words.
func expiryText(at time.Time) string {
	if at.IsZero() {
		return "never expires"
	}
	return "expires at " + timeText(at)
}

// createToken makes a token. As text, the secret stands alone on standard output.
func (c *call) createToken(ctx context.Context, rest *answers.Client, n object) error {
	var made answers.NewToken
	if _, err := c.send(ctx, rest, post(tokensPath, n), &made); err != nil {
		return err
	}
	t := made.Token
	if c.format == formatTable {
		c.warn("created token %s (%s, %s); the secret is shown only once:", t.Name, t.RoleText(), expiryText(t.ExpiresAt))
	}
	if err := c.print(made, func(out *page) { out.line("%s", made.Secret) }); err != nil {
		return fmt.Errorf("token %[1]s was created, but its secret could not be written; run ratelimit token revoke "+
			"%[1]s: %[2]w", t.Name, err)
	}
	return nil
}
