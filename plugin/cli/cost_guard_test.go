package cli

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestEveryWayToWriteACostWarnsOfLimitsThatCannotHoldIt(t *testing.T) {
	t.Parallel()
	const always = "cost of POST /exports: costs 101 tokens, more than some limits can ever hold, so they always deny it: "
	free := int64(0)
	dsn := pgtest.Shared(t).Database(t)
	for name, c := range map[string]struct {
		guardCase
		cost int64
	}{
		"a limit of all endpoints": {guardCase{
			rows: []rows.Policy{perDay("daily", "gold", "tenant", 100)}, warning: always + "daily of tier gold (100)",
		}, 101},
		"a limit of this endpoint": {guardCase{
			rows:    []rows.Policy{edited(perDay("daily", "", "tenant", 100), ofTenant), endpointOf("POST /exports")},
			warning: always + "daily of tenant acme (100), exports of tier gold (10)",
		}, 101},
		"a limit that holds it":       {guardCase{rows: []rows.Policy{perDay("daily", "gold", "tenant", 101)}}, 101},
		"a limit of another endpoint": {guardCase{rows: []rows.Policy{endpointOf("GET /records")}}, 101},
		"a limit with a cost of its own": {guardCase{rows: []rows.Policy{
			edited(perDay("daily", "gold", "tenant", 100), func(p *rows.Policy) { p.Cost = &free }),
		}}, 101},
		"a limit of the config": {guardCase{
			config:  true,
			warning: "more than some limits can ever hold, so they always deny it: per-user of tier essentials (500)",
		}, 600},
		"a limit of the config that a row replaces": {guardCase{
			config: true, rows: []rows.Policy{perDay("per-user", "essentials", "user", 1000)},
		}, 600},
	} {
		for door, write := range map[string]func(*terminal) (string, bool){
			"CLI": func(x *terminal) (string, bool) {
				return x.writes(c.guardCase, false, "cost", "put", "POST /exports", "--cost", strconv.FormatInt(c.cost, 10))
			},
			"a file": func(x *terminal) (string, bool) {
				x.stdin = fmt.Sprintf(`{"costs":[{"endpoint":"POST /exports","cost":%d}]}`, c.cost)
				return x.writes(c.guardCase, false, "apply", "-f", "-")
			},
		} {
			t.Run(door+"/"+name, func(t *testing.T) {
				text, written := write(c.open(t, dsn))
				c.wantsWarning(t, text, written)
			})
		}
	}
}

// endpointOf is a small limit of one endpoint.
func endpointOf(endpoint string) rows.Policy {
	return edited(perDay("exports", "gold", "tenant", 10), at(endpoint))
}
