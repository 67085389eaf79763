package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// requestFlags describe a request by what the plugin would find out about it.
type requestFlags struct {
	tenant, user, tier, credential, ip string
	method, path, endpoint             string
	tags                               []string
	preflight                          bool

	tiers *api.Tiers // the tiers of tenants for which tier is empty; nil: none is known
}

// subjectFlags defines whom requests are from.
func (c *call) subjectFlags() *requestFlags {
	r := &requestFlags{method: "GET", path: "/"}
	c.flags.StringVar(&r.tenant, "tenant", "", "the `tenant` of the request (default: none)")
	c.flags.StringVar(&r.user, "user", "", "the `user` within the tenant")
	c.flags.StringVar(&r.tier, "tier", "", "the `tier` that the request carries, as found by the config's tier_from; "+
		"a tier set for the tenant takes precedence")
	c.flags.StringVar(&r.credential, "credential", "", "the `id` of the request's credential")
	c.flags.StringVar(&r.ip, "ip", "", "the client's IP `address`")
	return r
}

// requestFlag defines one request: whom it is from, and its method and path.
func (c *call) requestFlag() *requestFlags {
	r := c.subjectFlags()
	c.flags.StringArrayVar(&r.tags, "tag", nil, "a `tag` of the request's consumer in Kong; repeat it for more")
	c.flags.BoolVar(&r.preflight, "preflight", false,
		"a CORS preflight: use it with --method OPTIONS, or an endpoint of that method")
	c.flags.StringVar(&r.method, "method", r.method, "the request's `method` (default GET)")
	c.flags.StringVar(&r.path, "path", r.path, "the request's `path` (default /)")
	c.flags.StringVar(&r.endpoint, "endpoint", "",
		"the method and path, such as \"GET /records/7\", or a `pattern` such as \"GET /records/{id}\"")
	c.check(func() error { return r.target(c) })
	return r
}

// target finds method and path.
func (r *requestFlags) target(c *call) error {
	if r.endpoint != "" {
		if c.given("method") || c.given("path") {
			return wrong("use either --endpoint, or --method and --path")
		}
		method, path, both := strings.Cut(r.endpoint, " ")
		if !both || method == "" || !strings.HasPrefix(path, "/") {
			return wrong("--endpoint: %q: must be METHOD /path, such as \"GET /records/{id}\"", r.endpoint)
		}
		r.method, r.path = method, path
	}
	if r.preflight && !strings.EqualFold(r.method, "OPTIONS") {
		return wrong("--preflight: a preflight has method OPTIONS, got %q", r.method)
	}
	if !strings.HasPrefix(r.path, "/") {
		return wrong("--path: %q: must begin with /", r.path)
	}
	if _, err := netip.ParseAddr(r.ip); r.ip != "" && err != nil {
		return wrong("--ip: %q: must be an IP address, such as 192.0.2.1 or 2001:db8::1", r.ip)
	}
	return nil
}

// identify returns who the request is from under the rules of a config. The flags state tenant, user and tier, so they
// take the place of the config's sources. All else follows the rules: who stands in for a missing user, how an address
// is counted.
func (r *requestFlags) identify(rules identity.Rules, route string) (identity.Identity, error) {
	rules.Tenant = []identity.Source{identity.CallerTenant}
	rules.User = []identity.Source{identity.CallerUser}
	rules.Tier = []identity.Source{identity.CallerTier}
	rules.NeedTenant, rules.NeedUser, rules.CostHeader = true, true, -1
	rules.Compile(everything)
	request := identity.Request{
		Known:        everything,
		Caller:       identity.Caller{Tenant: r.tenant, User: r.user, Tier: r.tier},
		Consumer:     identity.Consumer{Tags: r.tags},
		CredentialID: r.credential,
		IP:           r.ip,
		Method:       strings.ToUpper(r.method),
		Path:         identity.NormalizePath(r.path),
		Route:        route,
	}
	if r.preflight {
		request.Origin, request.RequestedMethod = "https://origin.example", "GET"
	}
	var id identity.Identity
	if missing := rules.Identify(&request, &id); missing != 0 {
		return id, fmt.Errorf("identify the request: facts %b are missing", missing)
	}
	return r.tiers.Identities(id)[0], nil
}

// everything is all facts: the flags leave none to read.
const everything = identity.ConsumerFact | identity.CredentialFact | identity.IPFact | identity.TargetFact |
	identity.RouteFact | identity.TokenFact | identity.HeaderFacts | identity.ContentTypeFact | identity.RequestIDFact |
	identity.CallerFacts | identity.PreflightFacts

// rowsFlags say where rows are read from.
type rowsFlags struct {
	snapshot string
	none     bool
}

func (c *call) rowsFlag() *rowsFlags {
	r := new(rowsFlags)
	c.flags.StringVar(&r.snapshot, "snapshot", "",
		"read policies and overrides from this `file`, a node's snapshot, instead of the database")
	c.flags.BoolVar(&r.none, "config-only", false,
		"use the config alone, without policies and overrides from the database")
	c.databaseFlag()
	c.wrongIf(func() bool { return r.none && r.snapshot != "" }, "use either --config-only or --snapshot, not both")
	return r
}

// withRows puts the rows for a request beside a config. The faults are those of rows that do not compile.
func (c *call) withRows(
	ctx context.Context,
	config *resolve.Plan,
	r *requestFlags,
	from *rowsFlags,
) (*resolve.Plan, []policy.Fault, error) {
	var (
		saved policysync.Saved
		err   error
	)
	switch {
	case from.none:
		return config, nil, nil
	case from.snapshot != "":
		saved, err = readSaved(from.snapshot)
	default:
		saved, err = c.storedRows(ctx, r, config)
	}
	if err != nil {
		return nil, nil, err
	}
	snapshot, faults := policy.NewSnapshot(saved.Rows, nil)
	snapshot, more := snapshot.WithCandidate(saved.Candidate)
	return config.With(snapshot), append(faults, more...), nil
}

// storedRows reads all rows, and the tiers of the tenant by whose name the request is counted.
func (c *call) storedRows(
	ctx context.Context, r *requestFlags, config *resolve.Plan,
) (found policysync.Saved, err error) {
	store, closeStore, err := c.open(ctx)
	if err != nil {
		return found, err
	}
	defer closeStore()
	id, err := r.identify(config.Rules, "")
	if err == nil {
		err = r.tiers.ReadFrom(ctx, store, id.Tenant.ID)
	}
	if err != nil {
		return found, err
	}
	return policysync.Load(ctx, c.pool)
}

// configFlags name the decK file and the config in it.
type configFlags struct{ file, route string }

func (c *call) configFlag() *configFlags {
	f := new(configFlags)
	c.flags.StringVar(&f.file, "config", "", "the decK `file` with the plugin's config (- reads standard input)")
	c.flags.StringVar(&f.route, "plugin-route", "",
		"the name of the request's `route`: selects the config, and is the endpoint for limits per endpoint; "+
			"required if the file has several configs")
	return f
}

// routeUsage is the help of --plugin-route where it only selects a config.
const routeUsage = "the name of the `route` whose config to use; required if the file has several configs"

// load returns the config that applies, and its compiled plan.
func (c *call) load(f *configFlags) (*routeconfig.Config, *resolve.Plan, error) {
	if f.file == "" {
		return nil, nil, wrong("--config is required: the decK file with the plugin's config, such as --config kong.yml")
	}
	text, _, err := c.readAll(f.file)
	if err != nil {
		return nil, nil, wrong("--config: %v", err)
	}
	config, plan, err := routeconfig.Load(text, f.file, f.route)
	if errors.As(err, new(*routeconfig.ChoiceError)) {
		err = wrong("%s", err)
	}
	if err != nil {
		return nil, nil, err
	}
	if info, err := os.Stat(f.file); err == nil {
		config.Changed = info.ModTime()
	} else { // standard input
		config.Changed = c.now()
	}
	return config, plan, nil
}

// knownConfigFlag defines --config and --plugin-route of a command that goes without them, and has the file read before
// the database is opened.
func (c *call) knownConfigFlag() {
	f := c.configFlag()
	c.flags.Lookup("config").Usage = "a decK `file` with the plugin's config (- reads standard input): " +
		"also check against its tiers, limits and namespace (default: check against the database only)"
	c.flags.Lookup("plugin-route").Usage = routeUsage
	c.check(func() error {
		document := c.flags.Lookup("file")
		switch {
		case f.file == "":
		case f.file == "-" && document != nil && document.Value.String() == "-":
			return wrong("only one of --file and --config can read standard input")
		default:
			loaded, plan, err := c.load(f)
			if err != nil {
				return err
			}
			c.configure = func(_ context.Context, o *api.Options) error {
				o.Decider = new(admit.Decider)
				o.IsConsumer = func(name string) bool { return loaded.ConsumerNames[name] }
				o.Decider.Policies.Store(plan)
				return nil
			}
		}
		return nil
	})
}

// reviewFlags defines --force, which it adds to the query, and --config of a command that writes policies.
func (c *call) reviewFlags(query url.Values) {
	c.flags.BoolFunc("force", forceUsage, sets(query, "force"))
	c.knownConfigFlag()
}

// readSaved returns what a node has saved, however many rows.
func readSaved(file string) (policysync.Saved, error) {
	saved, err := policysync.ReadFile(file, math.MaxInt)
	if err != nil {
		return saved, fmt.Errorf("--snapshot: %w", err)
	}
	return saved, nil
}
