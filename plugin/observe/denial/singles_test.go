package denial

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestTheFirstDenialsOfASecondHaveALineEachAndOneLineCountsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{Singles: 3, ShowUsers: true})
		for i := range 10 {
			d := decided("acme", answered{named("minute", policy.Tenant), denies})
			d.Identity.User.ID, d.Identity.IP = fmt.Sprint("u_", i), fmt.Sprint("192.0.2.", i)
			r.Observe(d)
			wait(20 * time.Millisecond)
		}
		r.Observe(decided("globex", answered{named("minute", policy.Tenant), denies}))
		wait(time.Second)
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies})) // a new second
		end()
		var got []string
		for _, e := range to.events(t) {
			got = append(got, fmt.Sprint(e.Org, " ", e.Count, " ", e.User, " ", e.IP, " ", e.First == e.Last, " ", e.Mixed))
		}
		want := []string{
			"acme 1 u_0 192.0.2.0 true []", "acme 1 u_1 192.0.2.1 true []", "acme 1 u_2 192.0.2.2 true []",
			"acme 7 u_3 192.0.2.3 false [user ip]", "globex 1 u_42  true []", "acme 1 u_42  true []",
		}
		assert.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
	})
}

func TestAnAddressIsHashedAsAUserIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{Singles: 1, Salt: []byte("0123456789abcdef")})
		d := decided("acme", answered{named("minute", policy.Tenant), denies})
		d.Identity.IP = "192.0.2.7"
		d.Identity.User = identity.Name{Kind: identity.IP, ID: "192.0.2.7"}
		r.Observe(d)
		end()
		e := to.events(t)[0]
		if !strings.HasPrefix(e.IP, hashPrefix) || e.IP != e.User || strings.Contains(e.IP, "192") {
			t.Errorf("the address is %q, the user %q; want one hash for both", e.IP, e.User)
		}
	})
}

// The bound of a second: MaxSingles + MaxGroups + maxOthers + 1 lines of MaxLine bytes, whatever names clients send.
func TestLinesOfASecondAreBoundedWithTheirBytes(t *testing.T) {
	const singles, groups, tenants = 20, 30, 200
	synctest.Test(t, func(t *testing.T) {
		longest := strings.Repeat("\x01", maxText)
		r, to, end := running(t, Options{
			Singles: 2, MaxSingles: singles, MaxGroups: groups, ShowUsers: true, Node: longest,
		})
		limit := named(longest, policy.Tenant)
		for i := range tenants {
			for range 4 {
				d := decided(fmt.Sprint(i, longest)[:maxText], answered{limit, denies})
				d.Identity.User.ID, d.Identity.IP = longest, longest
				d.Resolution.Tier, d.Resolution.Endpoint, d.RequestID = longest, longest, longest
				for range maxRequestIDs {
					r.Observe(d)
				}
			}
		}
		wait(2 * time.Second)
		end()
		lines, most := 0, 0
		for _, line := range to.lines {
			lines++
			most = max(most, len(line.Text))
		}
		if lines > singles+groups+maxOthers+1 || lines < singles+groups || most > MaxLine || most < MaxLine/2 {
			t.Errorf("%d lines, the longest of %d bytes; want at most %d of %d",
				lines, most, singles+groups+maxOthers+1, MaxLine)
		}
		count, _ := sums(to.events(t))
		assert.EqualValues(t, tenants*4*maxRequestIDs, count, "lines count denials")
	})
}

func TestManyTenantsUseUpTheSinglesAndNoneOfTheGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{Singles: 5, MaxSingles: 100, MaxGroups: 900})
		for i := range 1000 {
			r.Observe(decided(fmt.Sprint("org-", i), answered{named("minute", policy.Tenant), denies}))
		}
		end()
		tenants := map[string]bool{}
		for _, e := range to.events(t) {
			tenants[e.Org] = true
		}
		if stats := r.Stats(); len(tenants) != 1000 || stats[0].Dropped[Groups] != 0 {
			t.Errorf("%d tenants have lines of their own, %+v; want all 1000", len(tenants), stats)
		}
	})
}
