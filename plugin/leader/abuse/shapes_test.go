package abuse

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// before is the time of normal requests before a shape begins, in minutes.
const before = 180

// shape generates the requests of a tenant, minute by minute. All of them have normal requests first: about 100 a
// minute, under a limit of 400. Generators are deterministic.
type shape struct {
	name, about string
	abusive     bool
	length      int // minutes, after those before
	// at returns what a minute of the shape has. n counts from 0. A penalty's factor scales what limits admit.
	at func(n int, factor int64, normal Counts) Observation
}

// limited returns what a limit of a tenant admits of a demand.
func limited(demand, limit, factor int64) Counts {
	admitted := min(demand, limit*factor/1000)
	c := Counts{Admitted: admitted, Denied: demand - admitted}
	if factor < 1000 {
		c.Penalized = c.Denied
	}
	return c
}

const tenantLimit = 400

var shapes = []shape{
	{
		"scraper", "One credential sends 2,000 requests a minute, against a limit of 400.", true, 90,
		func(_ int, factor int64, _ Counts) Observation {
			return Observation{Minute: limited(2000, tenantLimit, factor), Users: 1, Addresses: 4, Credentials: 1}
		},
	},
	{
		"credential stuffing", "2,000 addresses try 8 logins a minute each, against a limit of 5 for each address, which " +
			"admits most of them.", true, 90,
		func(_ int, _ int64, normal Counts) Observation { // a penalty does not lower limits per address
			return Observation{
				Minute:    Counts{Admitted: normal.Admitted + 2000*5, Denied: 2000 * 3},
				Addresses: 2000, Credentials: 20,
			}
		},
	},
	{
		"slow roll", "The requests grow by 2 % a minute, so that no minute differs much from the one before.", true, 300,
		func(n int, factor int64, _ Counts) Observation {
			demand := int64(100 * math.Pow(1.02, float64(n)))
			return Observation{Minute: limited(min(demand, 20_000), tenantLimit, factor), Users: 3, Addresses: 3}
		},
	},
	{
		"retry storm after an outage", "Redis does not answer for 10 minutes, and fail mode closed denies. Clients retry " +
			"at thirty times the requests, which falls by half every 3 minutes.", false, 90,
		func(n int, factor int64, normal Counts) Observation {
			const outage = 10
			if n < outage {
				return Observation{Unavailable: normal.Admitted * int64(1+n)}
			}
			storm := float64(30*normal.Admitted) * math.Exp2(-float64(n-outage)/3)
			return Observation{Minute: limited(normal.Admitted+int64(storm), tenantLimit, factor), Users: 50, Addresses: 60}
		},
	},
	{
		"product launch", "The requests grow to 30 times within 3 minutes and stay. The limit was raised before, and " +
			"denies 15 % at the peak.", false, 300,
		func(n int, factor int64, normal Counts) Observation {
			demand := normal.Admitted * int64(min(1+10*n, 30))
			o := Observation{Minute: limited(demand, 2600, factor)}
			if o.Minute.Denied > 0 {
				o.Users, o.Addresses = 900, 1100
			}
			return o
		},
	},
	{
		"outgrown limit", "The requests grow to twice the limit within a day, and clients wait as Retry-After says.",
		false, 1440,
		func(n int, factor int64, normal Counts) Observation {
			demand := normal.Admitted * int64(100+n/2) / 100
			return Observation{Minute: limited(demand, tenantLimit, factor), Users: 80, Addresses: 60}
		},
	},
}

// result holds what the ladder did about a shape, in minutes of the shape; -1: never.
type result struct {
	flagged, penalized, banned, falsely int
	worst                               Step
}

// play plays normal requests and then a shape. Penalties have their effect.
func play(s *shape) result {
	random := rand.New(rand.NewPCG(20, 26))
	p, r := newPlayer(), result{flagged: -1, penalized: -1, banned: -1}
	for n := -before; n < s.length; n++ {
		factor := p.state.Step.Factor()
		demand := 80 + random.Int64N(41)
		o := Observation{Minute: limited(demand, tenantLimit, factor), Users: random.Int64N(3)}
		if n >= 0 {
			o = s.at(n, factor, Counts{Admitted: demand})
		}
		if factor == 0 {
			o.Minute = Counts{} // bans are no evidence
		}
		o.Factor = factor
		v := p.minute(o)
		if v.Flagged() && (n < 0 || !s.abusive) {
			r.falsely++
		}
		r.worst = max(r.worst, v.To)
		for _, first := range []struct {
			at    *int
			found bool
		}{{&r.flagged, v.Flagged()}, {&r.penalized, v.To >= Half}, {&r.banned, v.To >= ShortBan}} {
			if *first.at < 0 && first.found && n >= 0 {
				*first.at = n + 1
			}
		}
	}
	return r
}

func TestShapesOfAttacksAreCaughtAndOthersAreNot(t *testing.T) {
	for i := range shapes {
		s := &shapes[i]
		t.Run(s.name, func(t *testing.T) {
			r := play(s)
			switch {
			case r.falsely > 0:
				t.Errorf("%d minutes are flagged falsely, worst %v", r.falsely, r.worst)
			case s.abusive && (r.flagged < 0 || r.penalized < 0):
				t.Errorf("it is not caught: %+v", r)
			case !s.abusive && r.worst > None:
				t.Errorf("it comes to %v", r.worst)
			}
		})
	}
}

// ordinary plays three days of an ordinary tenant, and returns how many minutes were flagged, and the worst step.
func ordinary(seed uint64) (flagged int, worst Step) {
	random := rand.New(rand.NewPCG(seed, 20))
	p := newPlayer()
	size := math.Exp(random.Float64() * 7) // requests a minute
	limit := int64(size*(1.2+3*random.Float64())) + 10
	bursts, cron, office := random.IntN(4) == 0, random.IntN(4) == 0, random.IntN(2) == 0
	for n := range 3 * 24 * 60 {
		demand := size * (0.7 + 0.6*random.Float64())
		if office {
			demand *= 1 - 0.9*math.Pow(math.Cos(math.Pi*float64(n%1440)/1440), 2)
		}
		if bursts && random.IntN(200) == 0 {
			demand *= 2 + 6*random.Float64()
		}
		if cron && n%60 == 0 {
			demand *= 8
		}
		o := Observation{Minute: limited(int64(demand), limit, p.state.Step.Factor()), Factor: p.state.Step.Factor()}
		if o.Minute.Denied > 0 {
			o.Users = random.Int64N(o.Minute.Denied + 1)
		}
		if p.minute(o).Flagged() {
			flagged++
		}
		worst = max(worst, p.state.Step)
	}
	return flagged, worst
}

const ordinaryTenants = 200

// flaggedOrdinary returns how many minutes of ordinary tenants are flagged, of how many tenants, and how many of these
// get a penalty.
func flaggedOrdinary() (minutes, tenants, penalized int) {
	for seed := range uint64(ordinaryTenants) {
		n, worst := ordinary(seed)
		minutes += n
		tenants += min(n, 1)
		if worst >= Half {
			penalized++
		}
	}
	return minutes, tenants, penalized
}

const (
	page       = "../../../docs/abuse.md"
	tableStart = "<!-- shapes:start: written by go test ./plugin/leader/abuse -update; do not edit -->\n"
	tableEnd   = "<!-- shapes:end -->"
)

func TestTheDocsHaveWhatTheShapesGive(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| shape | what happens | first flag | penalty | ban | flagged falsely |\n|---|---|---|---|---|---|\n")
	for i := range shapes {
		s, r := &shapes[i], play(&shapes[i])
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d minutes of %d |\n", s.name, s.about, minuteText(r.flagged),
			minuteText(r.penalized), minuteText(r.banned), r.falsely, falseBase(s))
	}
	minutes, tenants, penalized := flaggedOrdinary()
	fmt.Fprintf(&b, "| ordinary tenants | %d of them for 3 days: office hours, bursts, hourly jobs. | | %d tenants | |"+
		" %d minutes of %d, of %d tenants |\n\n", ordinaryTenants, penalized, minutes, ordinaryTenants*3*24*60, tenants)
	golden.CheckSection(t, page, tableStart, tableEnd, b.String())
}

func minuteText(n int) string {
	if n < 0 {
		return "never"
	}
	return (time.Duration(n) * time.Minute).Round(time.Minute).String()[:len((time.Duration(n)*time.Minute).String())-2]
}

// falseBase returns how many minutes of a shape should not be flagged.
func falseBase(s *shape) int {
	if s.abusive {
		return before
	}
	return before + s.length
}
