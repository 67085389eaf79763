package webhook

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var instant = time.Unix(1_614_265_330, 0)

// The example of docs/webhooks.md.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func parse(t *testing.T, text string) Secret {
	t.Helper()
	s, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, secretPrefix))
	require.NoError(t, err)
	return s
}

func headers(id, signature string, at time.Time) http.Header {
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", fmt.Sprint(at.Unix()))
	h.Set("webhook-signature", signature)
	return h
}

func TestASignatureIsThatOfTheSpecification(t *testing.T) {
	s := parse(t, exampleSecret)
	assert.Equal(t, exampleSignature, Sign(exampleID, instant, []byte(exampleBody), s), "the signature")
}

func TestOnlyARecentUnchangedDeliveryIsVerified(t *testing.T) {
	s, old := NewSecret(), NewSecret()
	signature := Sign("msg_1", instant, []byte("body"), s, old)
	good, body, later := headers("msg_1", signature, instant), []byte("body"), instant.Add(5*time.Minute)
	for what, err := range map[string]error{
		"by the new secret":         Verify(good, body, instant, s),
		"by the old secret":         Verify(good, body, instant, old),
		"five minutes later":        Verify(good, body, later, s),
		"with another one before":   Verify(headers("msg_1", "v2,x v1,eA== "+signature, instant), body, instant, s),
		"!by a third secret":        Verify(good, body, instant, NewSecret()),
		"!with another body":        Verify(good, []byte("Body"), instant, s),
		"!with another id":          Verify(headers("msg_2", signature, instant), body, instant, s),
		"!with another timestamp":   Verify(headers("msg_1", signature, later), body, later, s),
		"!replayed later":           Verify(good, body, later.Add(time.Minute), s),
		"!without a signature":      Verify(headers("msg_1", "", instant), body, instant, s),
		"!without an id":            Verify(headers("", signature, instant), body, instant, s),
		"!with a part of signature": Verify(headers("msg_1", signature[:20], instant), body, instant, s),
	} {
		assert.Equal(t, strings.HasPrefix(what, "!"), (err != nil), "%s: %v", what, err)
	}
}

func TestASecretShowsInNoLog(t *testing.T) {
	s := NewSecret()
	var log strings.Builder
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("a secret", "secret", s, "in", struct{ S Secret }{s})
	}
	text, err := json.Marshal(map[string]any{"secret": s})
	require.NoError(t, err)
	all := fmt.Sprintf("%s %v %q %x %#v %+v %d %s", s, s, s, s, s, struct{ S Secret }{s}, s, text) + log.String()
	for _, form := range []string{s.Text(), s.Text()[6:], fmt.Sprintf("%x", []byte(s)), fmt.Sprint([]byte(s))} {
		assert.NotContains(t, all, form, "is in")
	}
	assert.Equal(t, string(s), string(parse(t, s.Text())), "the text of a secret is another secret")
}

func TestAddressesThatAreNotPublicAreDeniedInAllTheirForms(t *testing.T) {
	none := &Targets{}
	for _, text := range []string{
		"127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
		"169.254.169.254", "169.254.170.2", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
		"224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.88.99.1",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd00::1", "ff02::1", "2001:db8::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1",
		"64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::a00:1",
		"2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:a00:1::", "2002:808:808::1", "2001::1", "2001:0:7f00:1::", "100::1",
		"5f00::1", "3fff::1",
	} {
		assert.False(t, none.Allows(netip.MustParseAddr(text)), "%s is allowed", text)
	}
	for _, text := range []string{
		"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "169.253.0.1", "2606:4700::1111", "2a00:1450::1",
		"::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
	} {
		assert.True(t, none.Allows(netip.MustParseAddr(text)), "%s is denied", text)
	}
	assert.False(t, none.Allows(netip.Addr{}), "no address is allowed")
	private, err := ParseNetworks("10.1.0.0/16, 127.0.0.1,fd00::/8")
	require.NoError(t, err)
	some := &Targets{Private: private}
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "64:ff9b::10.1.2.3": true, "127.0.0.1": true, "fd00::1": true,
		"10.2.0.1": false, "127.0.0.2": false, "169.254.169.254": false, "8.8.8.8": true,
	} {
		assert.Equal(t, want, some.Allows(netip.MustParseAddr(text)), "%s with networks", text)
	}
	mapped, err := ParseNetworks("::ffff:10.1.0.0/112, ::ffff:127.0.0.1, 64:ff9b::a02:0/112")
	require.NoError(t, err)
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "127.0.0.1": true, "10.2.0.1": true, "10.3.0.1": false, "127.0.0.2": false,
	} {
		assert.Equal(t, want, (&Targets{Private: mapped}).Allows(netip.MustParseAddr(text)),
			"%s with networks of embedded addresses", text)
	}
	for _, text := range []string{"", "10.0.0.0", "10.0.0.1/8", "x", "10.0.0.0/33"} {
		if list, err := ParseNetworks(text); text != "10.0.0.0" && err == nil {
			t.Errorf("%q is read as %v", text, list)
		}
	}
}

func TestAddressesAreCheckedWithTheirPorts(t *testing.T) {
	none := &Targets{}
	for text, want := range map[string]bool{
		"8.8.8.8:443": true, "8.8.8.8:80": true, "8.8.8.8:8443": true, "[2606:4700::1]:443": true,
		"8.8.8.8:22": false, "8.8.8.8:25": false, "8.8.8.8:0": false, "127.0.0.1:443": false, "x:443": false,
		"[::ffff:127.0.0.1]:443": false, "[fe80::1%eth0]:443": false,
	} {
		err := none.CheckAddress(text)
		assert.Equal(t, want, err == nil, "%s: %v", text, err)
	}
}

func TestURLsThatWebhooksMayNotCallAreNamedByTheirFault(t *testing.T) {
	none, http := &Targets{}, &Targets{HTTP: true}
	for text, fault := range map[string]string{
		"https://example.com/a?b=c": "", "https://example.com:8443": "", "https://8.8.8.8/": "",
		"https://[2606:4700::1]/": "",
		"":                        "must be a URL", "example.com": "must be a URL", "https://": "must be a URL",
		"https:///x":   "must be a URL",
		"https://a b/": "must be a URL", "https://example.com/\n": "must be a URL", "https://%zz/": "must be a URL",
		"ftp://example.com/": "https://", "http://example.com/": "https://", "file:///etc/passwd": "must be a URL",
		"gopher://example.com/": "https://", "https://a@example.com/": "a user", "https://example.com/#x": "fragment",
		"https://127.0.0.1/": "not public", "https://[::ffff:169.254.169.254]/": "not public",
		"https://example.com:25/": "the port", "https://example.com:0/": "the port", "https://example.com:99999/": "the port",
		"https://example.com/" + strings.Repeat("x", MaxURL): "at most",
	} {
		err := none.CheckURL(text)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%.60q: %v, want %q", text, err, fault)
		}
	}
	assert.NoError(t, http.CheckURL("http://example.com/"))
	assert.Error(t, http.CheckURL("gopher://example.com/"), "HTTP allows another scheme")
}

func TestDelaysGrowFourfoldUpToFourHours(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		0: 5 * time.Second, 1: 5 * time.Second, 2: 20 * time.Second, 3: 80 * time.Second, 4: 320 * time.Second,
		7: 4 * time.Hour, 8: 4 * time.Hour, 1 << 30: 4 * time.Hour,
	} {
		assert.Equal(t, want, Backoff(failures, 1), "after %d failures the delay", failures)
		assert.EqualValues(t, want/4, Backoff(failures, 0.25), "after %d failures a quarter of the delay", failures)
	}
}

func TestRetryAfterIsReadFromAnswersThatMeanIt(t *testing.T) {
	for _, c := range []struct {
		status int
		text   string
		want   time.Duration
	}{
		{429, "7", 7 * time.Second},
		{503, "7", 7 * time.Second},
		{500, "7", 0},
		{200, "7", 0},
		{429, "", 0},
		{429, "-7", 0},
		{429, "7.5", 0},
		{429, "31536000", maxDelay},
		{429, instant.Add(time.Minute).UTC().Format(http.TimeFormat), time.Minute},
		{429, instant.Add(-time.Minute).UTC().Format(http.TimeFormat), 0},
		{429, instant.Add(9000 * time.Hour).UTC().Format(http.TimeFormat), maxDelay},
	} {
		assert.Equal(t, c.want, RetryAfter(c.status, http.Header{"Retry-After": {c.text}}, instant),
			"%d with %q", c.status, c.text)
	}
}

func event(kind events.Type, tenant, data string) *events.Event {
	return &events.Event{ID: "e", Source: events.Control, Type: kind, Time: instant, Tenant: tenant, Data: []byte(data)}
}

func TestASubscriptionGetsItsTypesAndAnOrgItsOwnEvents(t *testing.T) {
	notice, step := event(events.QuotaThreshold, "acme", `{}`), event(events.AbuseStep, "acme", `{}`)
	for what, got := range map[string]bool{
		"all":                   Wants("", nil, notice) && Wants("", nil, step),
		"an org's own":          Wants("acme", nil, notice),
		"a type":                Wants("", []string{string(events.QuotaThreshold)}, notice),
		"not of another org":    !Wants("globex", nil, notice),
		"not of another type":   !Wants("", []string{string(events.Denial)}, notice),
		"not what operators do": !Wants("acme", nil, step),
		"not of no org":         !Wants("acme", nil, event(events.PolicyUpdated, "", `{}`)),
	} {
		assert.True(t, got, "it is not so: %s", what)
	}
}

func TestAnOrgReadsNeitherReasonsNorNumbersOfSharedLimits(t *testing.T) {
	for _, c := range []struct {
		kind       events.Type
		data, want string
	}{
		{
			events.PolicyUpdated,
			`{"version":1,"policy_version":7,"kind":"override","operation":"insert","key":"3","org":"acme","actor":"ann",
				"reason":"they cheat","before":null,"after":{"id":3,"kind":"ban","reason":"they cheat","author":"ann",
				"source":"detector","public_note":"see our terms","tenant":"acme"}}`,
			`{"after":{"id":3,"kind":"ban","public_note":"see our terms","tenant":"acme"},"before":null,"key":"3",` +
				`"kind":"override","operation":"insert","org":"acme","policy_version":7,"version":1}`,
		},
		{
			events.PolicyUpdated,
			`{"kind":"policy","before":{"id":3,"name":"all","tenant":"acme","scope":"tenant","limit":5,"window_size":60},
				"after":{"id":3,"name":"all","tenant":"acme","scope":"endpoint","limit":777,"window_size":60,"burst":8,
				"cost":2,"algorithm":"token_bucket","soft_threshold_pct":80,"hard_threshold_pct":110,"public_note":"a launch"}}`,
			`{"after":{"id":3,"name":"all","public_note":"a launch","tenant":"acme"},"before":{"id":3,"limit":5,` +
				`"name":"all","scope":"tenant","tenant":"acme","window_size":60},"kind":"policy"}`,
		},
		{
			events.Denial,
			`{"count":3,"policy":"all","scope":"global","limit":{"quantity":9},"cost":2,"unit":"usd","tier":"gold"}`,
			`{"count":3,"policy":"all"}`,
		},
		{
			events.Denial,
			`{"count":3,"policy":"daily","scope":"tenant","limit":{"quantity":9},"cost":2,"unit":"usd","override":7}`,
			`{"cost":2,"count":3,"limit":{"quantity":9},"policy":"daily","scope":"tenant","unit":"usd"}`,
		},
		{
			events.QuotaThreshold,
			`{"policy":"llm-month","limit":20000000,"used":10000000,"unit":"usd","policy_id":7}`,
			`{"limit":20000000,"policy":"llm-month","unit":"usd","used":10000000}`,
		},
	} {
		got, err := ForOrg(*event(c.kind, "acme", c.data))
		if err != nil || string(got.Data) != c.want {
			t.Errorf("the org reads %s (%v), want %s", got.Data, err, c.want)
		}
	}
	_, err := ForOrg(*event(events.Denial, "acme", `[]`))
	assert.Error(t, err, "data that is no object is read")
}

func TestEveryFieldOfARowIsSentToItsOrgOrHiddenForAReason(t *testing.T) {
	operators := func(names ...string) map[string]string {
		reasons := map[string]string{}
		for _, name := range names {
			reasons[name] = "it is for operators"
		}
		return reasons
	}
	want := func(kind string, sent fields, hidden map[string]string, declared []string) {
		t.Helper()
		for _, name := range declared {
			if _, isSent := sent[name]; isSent == (hidden[name] != "") {
				t.Errorf("%s of %s: list it in view.go, or in this test with the reason why no org reads it", name, kind)
			}
		}
	}
	want("a policy", changed, operators("namespace", "for", "fail_mode", "accuracy", "settle", "fair"),
		namesOf(schema.Fields[schema.Policy]()))
	want("an override", changed, operators("tag", "reason", "author", "source"), namesOf(schema.Fields[schema.Override]()))
	want("a tenant", changed, nil, namesOf(schema.Fields[schema.Tenant]()))
	want("a cost", changed, operators("namespace"), namesOf(schema.Fields[schema.Cost]()))

	hidden := operators("namespace", "for", "fail_mode", "accuracy", "settle", "fair")
	for _, name := range []string{
		"scope", "limit", "unit", "match", "window_size", "period", "time_zone", "anchor", "max_duration", "algorithm",
		"burst", "soft_threshold_pct", "hard_threshold_pct", "soft_only",
		"cost", "user", "credential", "ip",
	} {
		hidden[name] = "it is a number of a limit that orgs share, or leads to one"
	}
	want("a policy whose limit orgs share", changedShared, hidden, namesOf(schema.Fields[schema.Policy]()))
}

func namesOf[T any](declared []schema.Field[T]) (names []string) {
	for _, f := range declared {
		names = append(names, f.Name)
	}
	return names
}
