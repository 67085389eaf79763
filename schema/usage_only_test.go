package schema_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAConfigThatShowsUsageHasNoWarningsAboutDecisions(t *testing.T) {
	config := schema.Config{Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{
		{Name: "daily", Scope: "tenant", Limit: 9, WindowSize: 86400},
	}}}}.WithDefaults()
	deciding := len(config.Warnings())
	config.UsageOnly = true
	config.Redis.ServerName = "redis.internal"
	if showing := config.Warnings(); deciding == 0 || len(showing) != 1 || showing[0].Path != "redis.server_name" {
		t.Errorf("%d warnings where it decides; where it shows usage %v, want that of Redis", deciding, showing)
	}
}
