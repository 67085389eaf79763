package response_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// item is a member of an RFC 9651 list as the RateLimit fields have them: a string with integer parameters, and a unit,
// which is a string.
type item struct {
	name       string
	unit       string
	parameters map[string]int64
}

// units are those of the draft's registry, and one of ours: the registry has none of money.
var units = map[string]bool{
	"requests": true, "content-bytes": true, "concurrent-requests": true, "micro-usd": true,
}

// parseList reads a list of items by the letter of RFC 9651 section 4.2, and rejects what the RateLimit fields do
// not need.
func parseList(text string) ([]item, error) {
	var list []item
	for left := text; ; {
		var it item
		var err error
		if it, left, err = parseItem(left); err != nil {
			return nil, fmt.Errorf("%w at %q of %q", err, left, text)
		}
		list = append(list, it)
		left = strings.TrimLeft(left, " \t")
		if left == "" {
			return list, nil
		}
		if left[0] != ',' {
			return nil, fmt.Errorf("no comma at %q of %q", left, text)
		}
		left = strings.TrimLeft(left[1:], " \t")
	}
}

func parseItem(left string) (item, string, error) {
	it := item{parameters: map[string]int64{}}
	if left == "" || left[0] != '"' {
		return it, left, fmt.Errorf("no string")
	}
	end := strings.IndexByte(left[1:], '"') + 1
	if end == 0 {
		return it, left, fmt.Errorf("no end of the string")
	}
	it.name, left = left[1:end], left[end+1:]
	if strings.Trim(it.name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != "" || it.name == "" {
		return it, left, fmt.Errorf("%q is no policy's name", it.name)
	}
	for strings.HasPrefix(left, ";") {
		key, value, found := strings.Cut(strings.TrimLeft(left[1:], " "), "=")
		if key == "qu" && it.unit == "" {
			if it.unit, left, found = strings.Cut(strings.TrimPrefix(value, `"`), `"`); !found || !units[it.unit] {
				return it, left, fmt.Errorf("%q is no registered unit", value)
			}
			continue
		}
		digits := len(value) - len(strings.TrimLeft(value, "0123456789"))
		if !found || len(key) != 1 || key[0] < 'a' || key[0] > 'z' || digits == 0 || digits > 15 {
			return it, left, fmt.Errorf("no key with an integer")
		}
		n, err := strconv.ParseInt(value[:digits], 10, 64)
		if err != nil {
			return it, left, err
		}
		if _, twice := it.parameters[key]; twice {
			return it, left, fmt.Errorf("%s twice", key)
		}
		it.parameters[key], left = n, value[digits:]
	}
	return it, left, nil
}

func TestTheCheckerOfFieldsIsStrict(t *testing.T) {
	for _, text := range []string{
		`"a";r=1;t=2`, `"a";q=1;w=2,"b";q=1;w=2`, `"a";q=1 , "b"`, `"a";q=1;qu="content-bytes";w=2`,
	} {
		if _, err := parseList(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		``, `a`, `"a`, `"a";`, `"a";r`, `"a";r=`, `"a";r=x`, `"a";r=-1`, `"a";r=1;r=2`, `"a",`, `"a" "b"`, `"a";r=1x`,
		`"a";r=1234567890123456`, `"\x00"`, `"a\"b"`, `"a";q=1;qu=requests`, `"a";q=1;qu="tokens"`,
		`"a";q=1;qu="requests";qu="requests"`,
	} {
		if list, err := parseList(text); err == nil {
			t.Errorf("%s was taken for %v", text, list)
		}
	}
}

// parseField reads a field, which may be absent.
func parseField(t *testing.T, text string) []item {
	t.Helper()
	if text == "" {
		return nil
	}
	list, err := parseList(text)
	require.NoError(t, err)
	return list
}

// hasNoUnit reports whether a bound counts what the fields cannot name: it settles, and not to bytes or money.
func hasNoUnit(d *decision.Decision, bound int) bool {
	p := d.Resolution.Bounds[bound].Policy
	return p.Settle != nil && p.Name != "egress" && p.Unit == ""
}

// remainders returns the names of the limits that RateLimit is to list.
func remainders(config schema.Config, d *decision.Decision, binding int) (names []string) {
	listed := func(i int) bool {
		b := &d.Resolution.Bounds[i]
		return b.Enforced() && (config.ShowSharedLimits || !b.Key.Shared()) && !hasNoUnit(d, i)
	}
	own := 0
	for i := range d.Statuses {
		if listed(i) {
			own++
		}
	}
	for i := range d.Statuses {
		name, s := d.Resolution.Bounds[i].Policy.Name, &d.Statuses[i]
		all := config.RateLimitHeader == "all" || config.RateLimitHeader == "" && own <= 4
		switch {
		case !listed(i):
		case i == binding:
			names = slices.Insert(names, 0, name)
		case all && s.Source != decision.Unanswered && (!d.Denied() || !s.Admits()):
			names = append(names, name)
		}
	}
	return names[:min(len(names), 16)]
}

func namesOf(list []item) (names []string) {
	for _, it := range list {
		names = append(names, it.name)
	}
	return names
}

func TestTheRateLimitFieldsFollowTheDraft(t *testing.T) {
	seen := 0
	for _, test := range published(t) {
		t.Run(test.name, func(t *testing.T) {
			r := render(test.config, test.decision, test.grpc)
			policyField, field := r.Get("RateLimit-Policy"), r.Get("RateLimit")
			binding := renderer(test.config).Binding(test.decision)
			policies, current := parseField(t, policyField), parseField(t, field)
			want := remainders(test.config, test.decision, binding)
			if test.config.HideClientHeaders || binding < 0 {
				want = nil
			}
			assert.Equal(t, want, namesOf(current), "RateLimit lists")
			if len(policies) > 0 {
				seen++
			}
			names := map[string]bool{}
			for _, p := range policies {
				if names[p.name] || len(p.parameters) != 2 || p.parameters["q"] < 1 || p.parameters["w"] < 1 {
					t.Errorf("RateLimit-Policy has %+v", p)
				}
				names[p.name] = true
			}
			for i := range test.decision.Resolution.Bounds {
				bound := &test.decision.Resolution.Bounds[i]
				shown := len(policies) > 0 && bound.Enforced() && (test.config.ShowSharedLimits || !bound.Key.Shared()) &&
					!hasNoUnit(test.decision, i)
				if names[bound.Policy.Name] != shown {
					t.Errorf("RateLimit-Policy names %v, want the enforced ones that are shown", names)
				}
			}
			for _, c := range current {
				_, hasR := c.parameters["r"]
				_, hasT := c.parameters["t"]
				assert.True(t, names[c.name] && len(c.parameters) == 2 && hasR && hasT, "RateLimit has %+v", c)
			}
		})
	}
	assert.True(t, seen >= 10, "only %d answers had the fields", seen)
}

// manyLong returns a decision about limits whose items are as long as can be. The last one binds.
func manyLong(t *testing.T, n int) *decision.Decision {
	t.Helper()
	given, more := append(answers{}, roomy...), []schema.Limit{}
	for i := range n {
		l := settling(fmt.Sprintf("%064d", i), "log.response.size")
		l.Limit, l.WindowSize = 1e12, 366*86400
		more = append(more, l)
		given = append(given, status(1e12-int64(i), 366*86400*second, 0))
	}
	return decide(t, given, more...)
}

func TestTheHeaderOfAnOutageHasTheFirstLimitsThatFit(t *testing.T) {
	away := func(n int) string {
		d := manyLong(t, n)
		for i := range d.Statuses {
			d.Statuses[i] = shared(d.Statuses[i])
		}
		d.Degraded = true
		return render(schema.Config{DegradedHeader: true}, d, false).Get("X-RateLimit-Degraded")
	}
	few, many := away(3), away(3000)
	want := fmt.Sprintf("%064d=local", 2)
	assert.True(t, strings.HasSuffix(few, want), "with few limits it is %s, want %s at its end", few, want)
	if !strings.HasPrefix(many, few+",") || !strings.HasSuffix(many, "=local") || len(many) > 2048 || len(many) < 1900 {
		t.Errorf("with many limits it has %d bytes: %s", len(many), many)
	}
}

func TestManyLimitsKeepTheFieldsShortAndTheBindingOnesInThem(t *testing.T) {
	for name, test := range map[string]struct {
		header string
		n      int
	}{
		"few":                   {"all", 13},
		"more than fit":         {"", 40},
		"more than fit, listed": {"all", 40},
		"thousands":             {"all", 3000},
	} {
		d := manyLong(t, test.n)
		d.Binding, d.OwnBinding = len(d.Statuses)-1, len(d.Statuses)-1
		config := schema.Config{RateLimitHeader: test.header}
		first := render(config, d, false)
		field, current := first.Get("RateLimit-Policy"), first.Get("RateLimit")
		names, left := namesOf(parseField(t, field)), namesOf(parseField(t, current))
		assert.True(t, len(field) <= 2048 && len(field)+len(current) <= 4096 && slices.IsSorted(names[2:]),
			"%s: RateLimit-Policy has %d bytes, and RateLimit %d; the limits are %q", name, len(field), len(current), names)
		got := render(config, d, false).Get("RateLimit-Policy")
		assert.True(t, got == field, "%s: %s the second time, not %s", name, got, field)
		if want := fmt.Sprintf("%064d", test.n-1); left[0] != want || names[0] != d.Resolution.Bounds[0].Policy.Name {
			t.Errorf("%s: RateLimit begins with %s, RateLimit-Policy with %s", name, left[0], names[0])
		}
		for _, one := range left {
			if !slices.Contains(names, one) {
				t.Errorf("%s: RateLimit has %s, and RateLimit-Policy does not: %q", name, one, names)
			}
		}
		if all := test.n + 2; len(names) != all && test.n == 13 || len(names) < min(all, 16) {
			t.Errorf("%s: RateLimit-Policy has %d of %d limits", name, len(names), all)
		}
	}
}

func TestALimitThatTheRequestDoesNotMatchNeitherWarnsNorIsDegraded(t *testing.T) {
	for unmatched, want := range map[bool]string{false: "true daily=local", true: " "} {
		d := decide(t, answers{status(5, second, 0), shared(soft(second))})
		d.Resolution.Bounds[1].Unmatched = unmatched
		name := d.Resolution.Bounds[1].Policy.Name
		r := render(schema.Config{DegradedHeader: true}, d, false)
		got := r.Get("X-RateLimit-Warning") + " " + strings.Replace(r.Get("X-RateLimit-Degraded"), name, "daily", 1)
		assert.Equal(t, want, got, "unmatched: %t", unmatched)
	}
}
