package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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
			query := c.revisionFlag(url.Values{})
			revoke := func() change {
				return change{method: http.MethodDelete, path: c.path(tokensPath + "/{}"), query: query}
			}
			return sends(c, revoke, func(t rows.Token) string { return "revoked token " + t.Name })
		},
	},
}

// tokenFlags defines a token but its name.
func (c *call) tokenFlags() object {
	var (
		n  = object{}
		in time.Duration
		at time.Time
	)
	role := c.flags.String("role", "", "the `role`: admin, viewer or tenant:{org} (required)")
	c.flags.Func("expires-in",
		"expire after this `duration`, such as 2h or 90d (uses this machine's clock; default: never)",
		reads(parseSpan, &in))
	c.flags.Func("expires-at", "expire at this `time`, such as 2026-01-31T12:00:00Z (default: never)",
		reads(parseInstant, &at))
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
		if in > 0 {
			at = c.now().Add(in)
		}
		if n["role"] = *role; !at.IsZero() {
			n["expires_at"] = at
		}
		return nil
	})
	return n
}

func (c *call) createToken(ctx context.Context, rest *answers.Client, n object) error {
	var made answers.NewToken
	if _, err := c.send(ctx, rest, post(tokensPath, n), &made); err != nil {
		return err
	}
	t, expires := made.Token, "never expires"
	if !t.ExpiresAt.IsZero() {
		expires = "expires at " + timeText(t.ExpiresAt)
	}
	return c.showSecret(made, made.Secret, fmt.Sprintf("created token %s (%s, %s)", t.Name, t.RoleText(), expires),
		"token revoke "+t.Name)
}
