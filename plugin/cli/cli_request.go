package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// requestFlags describe a request by what the plugin would find out about it.
type requestFlags struct {
	tenant, user, tier, credential, ip string
	method, path, endpoint             string
}

func (c *call) requestFlag() *requestFlags {
	r := new(requestFlags)
	c.flags.StringVar(&r.tenant, "tenant", "", "the `tenant` of the request; default: not identified")
	c.flags.StringVar(&r.user, "user", "", "the `user` of the tenant")
	c.flags.StringVar(&r.tier, "tier", "",
		"the `tier` that the request itself claims, as found by tier_from of the config")
	c.flags.StringVar(&r.credential, "credential", "", "the `id` of the credential")
	c.flags.StringVar(&r.ip, "ip", "", "the client's `address`")
	c.flags.StringVar(&r.method, "method", "GET", "the `method`")
	c.flags.StringVar(&r.path, "path", "/", "the `path`")
	c.flags.StringVar(&r.endpoint, "endpoint", "",
		"method and path in one, METHOD /path; a `pattern` stands for the requests that it covers")
	c.check(func() error { return r.target(c) })
	return r
}

// target finds method and path.
func (r *requestFlags) target(c *call) error {
	if r.endpoint != "" {
		if c.given("method") || c.given("path") {
			return wrong("give --endpoint, or --method and --path")
		}
		method, path, both := strings.Cut(r.endpoint, " ")
		if !both || method == "" || !strings.HasPrefix(path, "/") {
			return wrong("--endpoint: must be METHOD /path, such as \"GET /records/{id}\", and not %q", r.endpoint)
		}
		r.method, r.path = method, path
	}
	if !strings.HasPrefix(r.path, "/") {
		return wrong("--path: must begin with /, and not be %q", r.path)
	}
	if _, err := netip.ParseAddr(r.ip); r.ip != "" && err != nil {
		return wrong("--ip: must be an address, and not %q", r.ip)
	}
	return nil
}

// identify returns who the request is from under the rules of a config. The flags say what the config's sources would
// find, so they take the sources' place; all else (who stands in for a missing user, how an address is counted) is the
// rules' to say.
func (r *requestFlags) identify(rules identity.Rules, route string) (identity.Identity, error) {
	rules.Headers = nil
	for _, part := range [...]struct {
		sources *[]identity.Source
		text    string
	}{{&rules.Tenant, "consumer.custom_id"}, {&rules.User, "header.User"}, {&rules.Tier, "header.Tier"}} {
		var err error
		if *part.sources, err = identity.ParseSources([]string{part.text}, &rules.Headers); err != nil {
			return identity.Identity{}, err
		}
	}
	rules.NeedTenant, rules.NeedUser, rules.CostHeader = true, true, -1
	rules.Compile(everything)
	request := identity.Request{
		Known:        everything,
		Consumer:     identity.Consumer{CustomID: r.tenant},
		CredentialID: r.credential,
		IP:           r.ip,
		Method: strings.ToUpper(
			r.method,
		),
		Path:    identity.NormalizePath(r.path),
		Route:   route,
		Headers: []string{r.user, r.tier},
	}
	var id identity.Identity
	if missing := rules.Identify(&request, &id); missing != 0 {
		return id, fmt.Errorf("identify the request: facts %b are missing", missing)
	}
	return id, nil
}

// everything is all facts: a request of flags has nothing left to ask for.
const everything = identity.ConsumerFact | identity.CredentialFact | identity.IPFact | identity.TargetFact |
	identity.RouteFact | identity.TokenFact | identity.HeaderFacts | identity.ContentTypeFact | identity.RequestIDFact

// rowsFlags say where rows are read from.
type rowsFlags struct {
	snapshot string
	none     bool
}

func (c *call) rowsFlag() *rowsFlags {
	r := new(rowsFlags)
	c.flags.StringVar(&r.snapshot, "snapshot", "",
		"read the rows from this `file`, a snapshot saved by a node, instead of the database")
	c.flags.BoolVar(&r.none, "config-only", false, "use the config only, without any rows")
	c.databaseFlag()
	c.check(func() error {
		if r.none && r.snapshot != "" {
			return wrong("give either --config-only or --snapshot")
		}
		return nil
	})
	return r
}

// withRows puts the rows for a request beside a config. The faults are those of rows that do not compile.
func (c *call) withRows(
	ctx context.Context,
	config *policy.Plan,
	r *requestFlags,
	from *rowsFlags,
) (*policy.Plan, []policy.Fault, error) {
	var (
		rows policy.Rows
		err  error
	)
	switch {
	case from.none:
		return config, nil, nil
	case from.snapshot != "":
		rows, err = savedRows(from.snapshot)
	default:
		rows, err = c.storedRows(ctx, r, config)
	}
	if err != nil {
		return nil, nil, err
	}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	return config.With(snapshot), faults, nil
}

// storedRows reads the rows by the names that the request is counted by, which are hashes of very long ones.
func (c *call) storedRows(ctx context.Context, r *requestFlags, config *policy.Plan) (policy.Rows, error) {
	id, err := r.identify(config.Rules, "")
	if err != nil {
		return policy.Rows{}, err
	}
	of := rowSubject{credential: id.Credential, ip: r.ip, tiers: []string{id.Tier, config.Tier("")}}
	if id.Tenant.Kind == identity.Tenant {
		of.tenant = id.Tenant.ID
	}
	store, closeStore, err := c.open(ctx)
	if err != nil {
		return policy.Rows{}, err
	}
	defer closeStore()
	return rowsFor(ctx, store, of)
}
