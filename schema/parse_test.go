package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// eachExample checks files with a config and the findings of Parse: the config as JSON, then a line "-- faults --" and
// the faults, then a line "-- warnings --" and the warnings. The last two parts may be absent.
func eachExample(t *testing.T, folder string, check func(t *testing.T, c schema.Config, err error)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			config, _, _ := strings.Cut(string(content), "-- ")
			c, warnings, err := schema.Parse([]byte(config))
			got := config
			if err != nil {
				got += "-- faults --\n" + err.Error() + "\n"
			}
			if len(warnings) > 0 {
				got += "-- warnings --\n" + schema.Faults(warnings).Error() + "\n"
			}
			golden.Check(t, path, got)
			check(t, c, err)
		})
	}
}

func TestInvalidExamplesHaveTheirFaults(t *testing.T) {
	eachExample(t, "invalid", func(t *testing.T, _ schema.Config, err error) { require.Error(t, err) })
}

func TestValidExamplesHaveNoFaults(t *testing.T) {
	eachExample(t, "valid", func(t *testing.T, c schema.Config, err error) {
		require.NoError(t, err)
		requireSameAfterEncoding(t, c)
	})
}

func requireSameAfterEncoding(t *testing.T, c schema.Config) {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatalf("Validate returns faults of a config that Parse accepts: %v", err)
	}
	encoded, err := json.Marshal(c)
	require.NoError(t, err)
	again, _, err := schema.Parse(encoded)
	if err != nil {
		t.Fatalf("faults after encoding: %v\n%s", err, encoded)
	}
	if !reflect.DeepEqual(c, again) {
		t.Errorf("changed by encoding:\n%+v\n%+v", c, again)
	}
}

func TestEmptyConfigIsAllDefaults(t *testing.T) {
	got, _, err := schema.Parse([]byte(`{}`))
	require.NoError(t, err)
	want := schema.Config{
		TenantFrom: []string{"consumer.custom_id", "consumer.username"}, UserFrom: []string{},
		TierFrom: []string{"consumer.tag.tier"}, TrustedHeaders: []string{},
		OnMissingTenant: schema.MissingTenantLimitByIP, AnonymousConsumers: []string{"anonymous"},
		OnMissingUser: schema.MissingUserCredential, IPv6PrefixLength: 64, Mode: schema.ModeEnforce,
		CostHeaderMax: 1000, Tiers: []schema.Tier{}, Exempt: []schema.Exemption{}, Namespace: "default",
		Strategy: schema.StrategyLocal, RedisPools: []schema.RedisPool{},
		Redis: schema.Redis{
			Port: 6379, SSLVerify: true, ConnectTimeout: 100, ReadTimeout: 50, SendTimeout: 50,
			KeepalivePoolSize: 64, Pipeline: true,
		},
		FailMode: schema.FailLocal, Accuracy: schema.AccuracyLeased, LocalSharePct: 70, ClosedStatus: 503,
		OnConfigFault: schema.FailOpen, OnInternalError: schema.FailOpen,
		ErrorCode: 429, ErrorMessage: "API rate limit exceeded", DenialRequestID: true, ObserveEndpoint: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if filled := (schema.Config{DenialRequestID: true, ObserveEndpoint: true, Redis: schema.Redis{
		SSLVerify: true, Pipeline: true,
	}}).WithDefaults(); !reflect.DeepEqual(filled, want) {
		t.Errorf("WithDefaults gives\n%+v\nwant\n%+v", filled, want)
	}
}

func TestLimitDefaultsAreFilledIn(t *testing.T) {
	c, _, err := schema.Parse([]byte(`{"tiers":[{"name":"t","limits":[{"name":"a","scope":"tenant","limit":5,` +
		`"window_size":1}]},{"name":"u"}]}`))
	require.NoError(t, err)
	want := []schema.Tier{
		{Name: "t", Limits: []schema.Limit{{
			Name: "a", Scope: schema.ScopeTenant, Limit: 5, WindowSize: 1, Algorithm: schema.AlgorithmTokenBucket,
		}}},
		{Name: "u", Limits: []schema.Limit{}},
	}
	if !reflect.DeepEqual(c.Tiers, want) {
		t.Errorf("got %+v, want %+v", c.Tiers, want)
	}
}

func TestNumbersMayBeWrittenAsLuaWritesThem(t *testing.T) {
	for number, want := range map[string]int64{
		"86400": 86400, "86400.0": 86400, "8.64e4": 86400, "8.64E+04": 86400, "1e+06": 1000000, "864000e-1": 86400,
		"0.00864e7": 86400, "1.00": 1,
	} {
		config := fmt.Appendf(nil, `{"tiers":[{"name":"t","limits":[{"name":"a","scope":"ip","limit":1,"window_size":%s}]}]}`,
			number)
		c, _, err := schema.Parse(config)
		if err != nil {
			t.Errorf("%s: %v", number, err)
			continue
		}
		if got := c.Tiers[0].Limits[0].WindowSize; got != want {
			t.Errorf("%s: read as %d, want %d", number, got, want)
		}
	}
	c, _, err := schema.Parse([]byte(`{"tiers":[{"name":"t","limits":[{"name":"a","scope":"ip","limit":1e+12,` +
		`"window_size":1}]}]}`))
	if err != nil || c.Tiers[0].Limits[0].Limit != 1_000_000_000_000 {
		t.Errorf("1e+12: %+v, %v", c, err)
	}
}

func TestNumbersThatAreNoIntegersAreFaults(t *testing.T) {
	for _, number := range []string{
		"1.5", "1e-1", "9223372036854775808", "1e19", "1e999999999999999999999", "1e-999999999999999999999",
		"1.0000000000000000000000001",
	} {
		_, _, err := schema.Parse(fmt.Appendf(nil, `{"ipv6_prefix_length":%s}`, number))
		if err == nil || !strings.Contains(err.Error(), "ipv6_prefix_length: must be an integer") {
			t.Errorf("%s: %v", number, err)
		}
	}
}

func TestKeysThatKongAddsAreAccepted(t *testing.T) {
	config := `{"__seq__":17,"__plugin_id":"55a0","__key__":"plugins:x","__ws_id":"0dc6","route_id":"288d",
		"service_id":"1",
		"consumer_id":"2","consumer_group_id":"3","plugin_instance_name":"a","$refs":{"x":"y"},
		"redis":{"password":"secret","$refs":{"password":"{vault://env/redis}"}},"tier_from":null,"user_from":{},"costs":{}}`
	c, _, err := schema.Parse([]byte(config))
	require.NoError(t, err)
	if c.Redis.Password != "secret" || len(c.UserFrom) != 0 || !reflect.DeepEqual(c.TierFrom,
		[]string{"consumer.tag.tier"}) {
		t.Errorf("read as %+v", c)
	}
}

func TestKeysThatKongAddsAtTheTopAreUnknownElsewhere(t *testing.T) {
	_, _, err := schema.Parse([]byte(`{"tiers":[{"name":"t","route_id":"x","__seq__":1}]}`))
	if want := "tiers[0].route_id: unknown field\ntiers[0].__seq__: unknown field"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDocumentsOutOfBoundsAreFaults(t *testing.T) {
	for name, config := range map[string]string{
		"nested deeper": strings.Repeat(`{"tiers":[`, 40),
		"values":        `{"tiers":[` + strings.Repeat("0,", 1<<20) + `0]}`,
		"bytes long":    `{"error_message":"` + strings.Repeat("x", 33<<20) + `"}`,
	} {
		_, _, err := schema.Parse([]byte(config))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

func TestASecretOfTheWrongTypeIsNotShown(t *testing.T) {
	_, _, err := schema.Parse([]byte(`{"redis":{"password":4711,"sentinel_password":["hunter2"]}}`))
	if err == nil || strings.Contains(err.Error(), "4711") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func TestLongValuesAreShortenedInMessages(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	_, _, err := schema.Parse(fmt.Appendf(nil, `{"%s":1,"mode":"%s","default_tier":"%s","costs":{"%s":1}}`,
		long, long, long, long))
	if err == nil || len(err.Error()) > 2000 {
		t.Errorf("message of %d bytes", len(fmt.Sprint(err)))
	}
}

func TestManyFaultsAreAllReportedQuickly(t *testing.T) {
	config := []byte(`{"tiers":[` + strings.TrimSuffix(strings.Repeat(`{"name":7},`, 50_000), ",") + `]}`)
	_, _, err := schema.Parse(config)
	faults, ok := err.(schema.Faults)
	if !ok || len(faults) != 50_000 {
		t.Errorf("%d faults", len(faults))
	}
}

func FuzzParse(f *testing.F) {
	for _, folder := range []string{"valid", "invalid"} {
		paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.txt"))
		require.NoError(f, err)
		for _, path := range paths {
			content, err := os.ReadFile(path)
			require.NoError(f, err)
			config, _, _ := bytes.Cut(content, []byte("-- "))
			f.Add(config)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, _, err := schema.Parse(raw)
		if err == nil {
			requireSameAfterEncoding(t, c)
			return
		}
		faults, ok := err.(schema.Faults)
		if !ok || len(faults) == 0 {
			t.Fatalf("an error without faults: %v", err)
		}
	})
}

func TestAnAnchorInWordsSaysWhatItMoves(t *testing.T) {
	for want, a := range map[string]schema.Anchor{
		"per year (UTC)":                      {},
		"per year (UTC, from 7:00)":           {Hour: 7},
		"per year (UTC, from sunday at 6:00)": {Weekday: "sunday", Hour: 6},
		"per year (UTC, from month 2 day 15)": {Month: 2, Day: 15},
		"per year (UTC, from day 29 at 5:00)": {Day: 29, Hour: 5},
	} {
		if got := (schema.Window{Period: "year", Anchor: &a}).Per(); got != want {
			t.Errorf("%+v is %q, want %q", a, got, want)
		}
	}
}
