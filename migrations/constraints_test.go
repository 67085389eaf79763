package migrations_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// row holds the values of a row by column.
type row map[string]any

// with returns r with other values in some columns.
func (r row) with(others row) row {
	changed := maps.Clone(r)
	maps.Copy(changed, others)
	return changed
}

// good holds a valid row for each table.
var good = map[string]row{
	"tiers":    {"name": "gold"},
	"tenants":  {"id": "acme", "tier": "gold", "time_zone": "Europe/Berlin"},
	"policies": {"name": "daily", "tier": "gold", "scope": "tenant", "limit": 100, "window_size": 60},
	"overrides": {
		"kind": "custom_limit", "tenant": "acme", "policy": "daily", "limit": 100, "window_size": 60, "reason": "launch",
		"author": "ann", "expires_at": "2100-01-01",
	},
	"costs":   {"endpoint": "POST /exports", "cost": 50},
	"prices":  {"model": "gpt-4o*", "prompt": 2_500_000, "completion": 10_000_000, "starts_at": "2026-01-01"},
	"tokens":  {"name": "ci", "hash": strings.Repeat("h", 32), "role": "admin"},
	"answers": {"token": "ci", "key": "k1", "request": strings.Repeat("r", 32), "answer": "{}", "version": 1},
	"nodes":   {"node": "n1", "version": 1, "enforced_at": "2026-01-01", "reported_at": "2026-01-01"},
	"version": {"one": false},

	"usage_names": {"name": "acme"},
	"usage_state": {"one": false, "hours_until": "2026-01-02", "days_until": "2026-01-01"},
	"usage_models": {
		"day": "2026-01-01", "tenant": 1, "model": "gpt-4o", "calls": 1, "prompt_tokens": 1, "completion_tokens": 1,
		"micro_usd": 1,
	},

	"outbox": {
		"event": "e1", "source": "/control", "type": "x", "at": "2026-01-01", "tenant": "acme", "data": "{}",
	},
	"outbox_state": {"one": false},
	"quota_notices": {
		"tenant": "acme", "policy": "daily", "endpoint": "", "window_start": "2026-01-01", "threshold": 80,
		"window_end": "2026-01-02", "limit": 100, "used": 85, "late": false, "noticed_at": "2026-01-01",
	},
	"outbox_cursors": {"consumer": "webhooks", "position": 1, "moved_at": "2026-01-01"},

	"abuse_tenants":   {"tenant": "acme", "state": `{"step": "warn"}`, "mode": "shadow", "scored_at": "2026-01-01"},
	"abuse_state":     {"one": false, "scored_until": "2026-01-01"},
	"webhooks":        {"org": "acme", "url": "https://a.example", "created_by": "ann"},
	"webhook_secrets": {"webhook": 1, "secret": strings.Repeat("s", 32)},
	"webhook_deliveries": {
		"id": "msg_1", "webhook": 1, "events": 1, "body": "[]", "created_at": "2026-01-01", "due_at": "2026-01-01",
	},

	"candidates": {"name": "july"},
	"candidate_policies": {
		"candidate": "july", "name": "daily", "tier": "gold", "endpoint": "GET /a",
		"body": `{"namespace": "default", "name": "daily", "tier": "gold", "endpoint": "GET /a", "limit": 9}`,
	},
	"candidate_tenants": {"candidate": "july", "tenant": "acme"},
}

// settling changes the good policy into one that settles.
var settling = row{"settle": `{"sources": [{"from": "shared.n"}]}`}

// ban, exempt, multiplier and topUp change the good override into other kinds.
var (
	exempt     = row{"kind": "exempt", "policy": "", "limit": nil, "window_size": nil}
	ban        = row{"kind": "ban", "policy": "", "limit": nil, "window_size": nil}
	multiplier = row{"kind": "multiplier", "limit": nil, "window_size": nil, "factor": 1500}
	topUp      = row{"kind": "topup", "limit": nil, "window_size": nil, "amount": 100}
)

// ofUser and ofNetwork make the good policy one for a user, and for a network.
var (
	ofUser    = row{"tier": "", "tenant": "acme", "user": "eve", "scope": "user"}
	ofNetwork = row{"tier": "", "ip": "192.0.2.0/24", "scope": "ip"}
)

// fairly makes the good policy one that is shared fairly.
var fairly = row{"scope": "global", "limit": 600, "window_size": 60, "fair": `{"weights": {"gold": 10}, "default": 2}`}

// monthly and atOnce make the good policy one by the calendar, and one of concurrency.
var (
	monthly = row{"window_size": nil, "period": "month", "algorithm": "fixed_window"}
	atOnce  = row{"window_size": nil, "max_duration": 60, "algorithm": "concurrency"}
)

// deleting makes the good policy of a candidate one that it deletes.
var deleting = row{"body": nil}

// away makes the good report that of a node with a Redis that does not answer since then.
func away(since string) row { return row{"redis": `[{"name": "a", "away_since": ` + since + `}]`} }

func init() {
	addBadTexts("policies", schema.Fields[schema.Policy]())
	addBadTexts("overrides", schema.Fields[schema.Override]())
}

// addBadTexts adds rows with free texts that are too long, and that are no line of text.
func addBadTexts[T any](table string, fields []schema.Field[T]) {
	for _, f := range fields {
		if f.Unit == "text" {
			bad[table+"_"+f.Name] = []row{{f.Name: strings.Repeat("x", f.MaxLength+1)}, {f.Name: "a\x1b[31mred\n"}}
		}
	}
}

// bad holds changes to a good row, by the name of the constraint that they violate. Free texts have theirs by
// addBadTexts.
var bad = map[string][]row{
	"version_one_row": {{}},
	"version_pruned":  {{"one": true, "version": 1, "pruned": 2}},

	"tiers_name":        {{"name": ""}, {"name": strings.Repeat("x", 65)}},
	"tiers_description": {{"description": strings.Repeat("x", 1025)}},
	"tiers_title":       {{"title": strings.Repeat("x", 65)}},
	"tiers_price_text":  {{"price_text": strings.Repeat("x", 257)}},
	"tenants_id":        {{"id": ""}, {"id": strings.Repeat("x", 129)}},
	"tenants_tier":      {{"tier": strings.Repeat("x", 65)}},
	"tenants_time_zone": {{"time_zone": "../etc/passwd"}, {"time_zone": "/UTC"}, {"time_zone": strings.Repeat("x", 65)}},

	"policies_namespace":  {{"namespace": ""}, {"namespace": "a:b"}},
	"policies_name":       {{"name": ""}, {"name": "a b"}, {"name": strings.Repeat("x", 65)}},
	"policies_tier":       {{"tier": strings.Repeat("x", 65)}},
	"policies_tenant":     {{"tier": "", "tenant": strings.Repeat("x", 129)}},
	"policies_user":       {ofUser.with(row{"user": strings.Repeat("x", 129)})},
	"policies_credential": {{"tier": "", "credential": strings.Repeat("x", 129), "scope": "credential"}},
	"policies_ip": {
		ofNetwork.with(row{"ip": "192.0.2"}), ofNetwork.with(row{"ip": "192.0.2.1/24"}), ofNetwork.with(row{"ip": "x"}),
	},
	"policies_ip_all": {ofNetwork.with(row{"ip": "0.0.0.0/0"}), ofNetwork.with(row{"ip": "::/0"})},
	"policies_for":    {{"tier": "", "for": "everyone", "scope": "global"}},
	"policies_target": {
		{"tier": ""},
		{"tenant": "acme"},
		{"for": "all", "scope": "global"},
		ofNetwork.with(row{"for": "all"}),
		ofUser.with(row{"tier": "gold"}), ofUser.with(row{"tenant": ""}),
		ofUser.with(row{"credential": "key"}),
		{"tier": "", "user": "eve", "scope": "user"},
	},
	"policies_target_scope": {
		ofUser.with(row{"scope": "tenant"}), ofNetwork.with(row{"scope": "tenant"}),
		{"tier": "", "credential": "key", "scope": "ip"},
		{"tier": "", "for": "all", "scope": "tenant"},
	},
	"policies_endpoint": {
		{"endpoint": "/records"},
		{"endpoint": "get /records"},
		{"endpoint": "GET /a b"},
		{"endpoint": "GET /" + strings.Repeat("x", 1020)},
	},
	"policies_scope":             {{"scope": ""}, {"scope": "org"}},
	"policies_limit":             {{"limit": 0}, {"limit": -1}, {"limit": 1_000_000_000_001}},
	"policies_limit_sliding_log": {{"algorithm": "sliding_log", "limit": 10_001}},
	"policies_window_size":       {{"window_size": 0}, {"window_size": 31_622_401}},
	"policies_window_size_given": {
		{"window_size": nil}, monthly.with(row{"window_size": 60}), atOnce.with(row{"window_size": 60}),
	},
	"policies_period":           {monthly.with(row{"period": "fortnight"})},
	"policies_period_algorithm": {monthly.with(row{"algorithm": "token_bucket"})},
	"policies_time_zone":        {monthly.with(row{"time_zone": "../etc"})},
	"policies_time_zone_period": {{"time_zone": "UTC"}},
	"policies_anchor": {
		monthly.with(row{"anchor": `[]`}), monthly.with(row{"anchor": `{"day": 0}`}),
		monthly.with(row{"anchor": `{"day": 32}`}),
		monthly.with(row{"anchor": `{"day": 1.5}`}), monthly.with(row{"anchor": `{"hour": 24}`}),
		monthly.with(row{"period": "year", "anchor": `{"month": 13}`}), monthly.with(row{"anchor": `{"day": "1"}`}),
		monthly.with(row{"period": "week", "anchor": `{"weekday": "someday"}`}),
	},
	"policies_anchor_period": {
		{"anchor": `{}`},
		monthly.with(row{"anchor": `{"month": 2}`}), monthly.with(row{"anchor": `{"dey": 2}`}),
		monthly.with(row{"period": "day", "anchor": `{"day": 2}`}),
		monthly.with(row{"period": "quarter", "anchor": `{"weekday": "monday"}`}),
	},
	"policies_max_duration":           {atOnce.with(row{"max_duration": 0}), atOnce.with(row{"max_duration": 86_401})},
	"policies_max_duration_algorithm": {atOnce.with(row{"algorithm": "fixed_window"}), {"algorithm": "concurrency"}},
	"policies_limit_concurrency":      {atOnce.with(row{"limit": 10_001})},
	"policies_soft_concurrency": {
		atOnce.with(row{"soft_threshold_pct": 80}), atOnce.with(row{"hard_threshold_pct": 120}),
		atOnce.with(row{"soft_only": true}),
	},
	"policies_accuracy_concurrency": {atOnce.with(row{"accuracy": "leased"})},
	"policies_cost_concurrency":     {atOnce.with(row{"cost": 2})},
	"policies_algorithm":            {{"algorithm": ""}, {"algorithm": "gcra"}},
	"policies_burst":                {{"burst": 0}, {"burst": 1_000_000_000_001}},
	"policies_burst_algorithm":      {{"burst": 5, "algorithm": "fixed_window"}},
	"policies_soft_threshold_pct":   {{"soft_threshold_pct": 0}, {"soft_threshold_pct": 1001, "soft_only": true}},
	"policies_soft_above_hard":      {{"soft_threshold_pct": 101}, {"soft_threshold_pct": 130, "hard_threshold_pct": 120}},
	"policies_hard_threshold_pct":   {{"hard_threshold_pct": 99}, {"hard_threshold_pct": 1001}},
	"policies_hard_soft_only":       {{"hard_threshold_pct": 120, "soft_only": true}},
	"policies_mode":                 {{"mode": "off"}},
	"policies_cost":                 {{"cost": -1}, {"cost": 1_000_000_001, "limit": 1_000_000_000_000}},
	"policies_cost_capacity": {
		{"cost": 101},
		{"cost": 2, "algorithm": "leaky_bucket"},
		{"cost": 11, "burst": 10, "hard_threshold_pct": 200},
	},
	"policies_fail_mode": {{"fail_mode": "shut"}},
	"policies_accuracy":  {{"accuracy": "excat"}},
	"policies_settle": {
		{"settle": `{}`},
		{"settle": `[]`},
		{"settle": `7`},
		{"settle": `null`},
		{"settle": `{"sources": []}`},
		{"settle": `{"sources": {"from": "shared.n"}}`},
		{"settle": `{"sources": ["shared.n"]}`},
		{"settle": `{"sources": [{}]}`},
		{"settle": `{"sources": [[{"from": "shared.n"}]]}`},
		{"settle": `{"sources": [{"from": 7}]}`},
		{"settle": `{"sources": [{"from": "body.n"}]}`},
		{"settle": `{"sources": [{"from": "shared.n"}, {"from": ["shared.m"]}]}`},
		{"settle": `{"sources": [` + strings.Repeat(`{"from": "shared.n"},`, 8) + `{"from": "shared.n"}]}`},
		{"settle": `{"sources": [{"from": "log.` + strings.Repeat("x", 9000) + `"}]}`},
		{"settle": `{"sources": [{"from": "shared.n", "weight": 0}]}`},
		{"settle": `{"sources": [{"from": "shared.n", "weight": 1000001}]}`},
		{"settle": `{"sources": [{"from": "shared.n", "weight": 1.5}]}`},
		{"settle": `{"sources": [{"from": "shared.n", "weight": "1"}]}`},
		{"settle": `{"sources": [{"from": "shared.n", "weight": [1]}]}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve": 0}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve": [5]}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve": 1.0}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve": 1000000000001}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve_header": "X-Max-Tokens"}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve_max": 5}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "reserve_header": "a b", "reserve_max": 5}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "timeout": 86401}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "timeout": "5"}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "refund_on": 502}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "refund_on": [99]}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "refund_on": [[502]]}`},
		{"settle": `{"sources": [{"from": "shared.n"}], "refund_on": ["502"]}`},
	},
	"policies_settle_algorithm": {
		{"settle": `{"sources": [{"from": "shared.n"}]}`, "algorithm": "sliding_window"},
	},
	"policies_settle_soft_only": {{"settle": `{"sources": [{"from": "shared.n"}]}`, "soft_only": true}},
	"policies_fair": {
		fairly.with(row{"fair": `[]`}),
		fairly.with(row{"fair": `7`}),
		fairly.with(row{"fair": `null`}),
		fairly.with(row{"fair": `{"weights": [1]}`}),
		fairly.with(row{"fair": `{"weights": {"gold": 0}}`}),
		fairly.with(row{"fair": `{"weights": {"gold": 1001}}`}),
		fairly.with(row{"fair": `{"weights": {"gold": 1.5}}`}),
		fairly.with(row{"fair": `{"weights": {"gold": "1"}}`}),
		fairly.with(row{"fair": `{"default": 0}`}),
		fairly.with(row{"fair": `{"default": 1.0}`}),
		fairly.with(row{"fair": `{"default": [1]}`}),
		fairly.with(row{"fair": `{"weights": {"` + strings.Repeat("x", 9000) + `": 1}}`}),
	},
	"policies_fair_scope": {fairly.with(row{"scope": "tenant"}), fairly.with(row{"scope": "ip"})},
	"policies_fair_algorithm": {
		fairly.with(row{"algorithm": "fixed_window"}), fairly.with(row{"algorithm": "leaky_bucket"}),
	},
	"policies_fair_soft_only":   {fairly.with(row{"soft_only": true})},
	"policies_fair_window_size": {fairly.with(row{"limit": 100_000, "window_size": 3600})},
	"policies_fair_limit":       {fairly.with(row{"limit": 599})},
	"policies_fair_burst":       {fairly.with(row{"burst": 9})},

	"overrides_kind":       {ban.with(row{"kind": "block"})},
	"overrides_tenant":     {{"tenant": strings.Repeat("x", 129)}},
	"overrides_user":       {{"user": strings.Repeat("x", 129)}},
	"overrides_endpoint":   {{"endpoint": "/records"}},
	"overrides_credential": {{"credential": strings.Repeat("x", 129)}},
	"overrides_ip": {
		{"tenant": "", "ip": "10.0.0.256"},
		{"tenant": "", "ip": "10.0.0.1/8"},
		{"ip": "10.1"},
		{"ip": "10.0.0.1/32"},
		{"ip": "10/8"},
		{"ip": "2001:db8::1/64"},
	},
	"overrides_subject": {
		{"tenant": ""},
		{"tenant": "", "user": "bob"},
		{"tenant": "", "endpoint": "GET /a"},
		{"ip": "10.0.0.1", "user": "bob"},
		{"ip": "10.0.0.1", "credential": "c"},
		{"ip": "10.0.0.1", "endpoint": "GET /a"},
		ban.with(row{"tenant": "", "endpoint": "GET /a"}),
		exempt.with(row{"tenant": ""}),
		exempt.with(row{"tenant": "", "user": "bob", "endpoint": "GET /a"}),
		exempt.with(row{"tag": "x"}),
		exempt.with(row{"tenant": "", "tag": "x", "ip": "10.0.0.1"}),
		exempt.with(row{"credential": "c", "endpoint": "GET /a"}),
		{"credential": "c", "user": "bob"},
	},
	"overrides_topup": {
		topUp.with(row{"tenant": "", "credential": "c"}),
		topUp.with(row{"ip": "10.0.0.1"}),
		topUp.with(row{"permanent": true, "expires_at": nil}),
		topUp.with(row{"starts_at": "2099-01-01", "source": "scheduled"}),
		topUp.with(row{"source": "detector"}),
	},
	"overrides_tag": {
		exempt.with(row{"tenant": "", "tag": strings.Repeat("x", 129)}),
		exempt.with(row{"tenant": "", "tag": "x*"}),
	},
	"overrides_ip_all":               {exempt.with(row{"tenant": "", "ip": "0.0.0.0/0"}), exempt.with(row{"ip": "::/0"})},
	"overrides_tag_unused":           {ban.with(row{"tenant": "", "tag": "x"})},
	"overrides_policy":               {{"policy": "a b"}},
	"overrides_policy_missing":       {{"policy": ""}},
	"overrides_policy_unused":        {ban.with(row{"policy": "daily"})},
	"overrides_limit":                {{"limit": 0}},
	"overrides_limit_missing":        {{"limit": nil}},
	"overrides_limit_unused":         {multiplier.with(row{"limit": 5}), ban.with(row{"limit": 5})},
	"overrides_window_size":          {{"window_size": 0}},
	"overrides_window_size_unused":   {ban.with(row{"window_size": 5})},
	"overrides_burst":                {{"burst": 0}},
	"overrides_burst_unused":         {ban.with(row{"burst": 5})},
	"overrides_factor":               {multiplier.with(row{"factor": 0}), multiplier.with(row{"factor": 1_000_001})},
	"overrides_factor_missing":       {multiplier.with(row{"factor": nil})},
	"overrides_factor_unused":        {{"factor": 5}, ban.with(row{"factor": 5})},
	"overrides_amount":               {topUp.with(row{"amount": 0}), topUp.with(row{"amount": 1_000_000_000_001})},
	"overrides_amount_missing":       {topUp.with(row{"amount": nil})},
	"overrides_amount_unused":        {{"amount": 5}, ban.with(row{"amount": 5})},
	"overrides_reason":               {{"reason": ""}, {"reason": " \t"}, {"reason": strings.Repeat("x", 1025)}},
	"overrides_author":               {{"author": ""}, {"author": "  "}},
	"overrides_expires_at":           {{"expires_at": "2000-01-01"}, {"expires_at": "infinity"}},
	"overrides_expires_at_missing":   {{"expires_at": nil}},
	"overrides_expires_at_permanent": {{"permanent": true}},
	"overrides_source":               {{"source": "ann"}},
	"overrides_starts_at":            {{"starts_at": "-infinity", "source": "scheduled"}},
	"overrides_starts_at_end":        {{"starts_at": "2100-01-01", "source": "scheduled"}},
	"overrides_starts_at_source":     {{"starts_at": "2099-01-01"}, {"source": "scheduled"}},

	"tokens_name":        {{"name": ""}, {"name": "a b"}, {"name": "a:b"}, {"name": strings.Repeat("x", 65)}},
	"tokens_name_org":    {{"name": "acme/ci"}},
	"tokens_hash":        {{"hash": "secret"}},
	"tokens_role":        {{"role": ""}, {"role": "root"}},
	"tokens_org":         {{"role": "tenant", "org": strings.Repeat("x", 129)}},
	"tokens_org_missing": {{"role": "tenant"}},
	"tokens_org_unused":  {{"org": "acme"}},
	"tokens_created_by":  {{"created_by": " "}, {"created_by": strings.Repeat("x", 257)}},
	"tokens_expires_at":  {{"expires_at": "2000-01-01"}, {"expires_at": "infinity"}},
	"tokens_revoked_by":  {{"revoked_by": "ann"}},

	"answers_token":   {{"token": ""}, {"token": strings.Repeat("x", 257)}},
	"answers_key":     {{"key": ""}, {"key": "a\nb"}, {"key": "ä"}, {"key": strings.Repeat("x", 129)}},
	"answers_request": {{"request": "a body"}},

	"nodes_node":        {{"node": ""}, {"node": strings.Repeat("x", 257)}},
	"nodes_version":     {{"version": -1}},
	"nodes_source":      {{"source": "memory"}},
	"nodes_faults":      {{"faults": "{}"}},
	"nodes_faults_size": {{"faults": `["` + strings.Repeat("x", 64<<10) + `"]`}},
	"nodes_leases":      {{"leases": -1}},
	"nodes_zone_data":   {{"zone_data": strings.Repeat("x", 65)}},
	"nodes_took": {
		{"took": "{-1}"}, {"took": "{1,NULL}"}, {"took": "{{1}}"}, {"took": "{" + strings.Repeat("1,", 32) + "1}"},
	},
	"nodes_redis": {{"redis": "{}"}, {"redis": `["a"]`}, {"redis": `[{"name": 1}]`}, {"redis": `[{}]`}},
	"nodes_instants": {
		{"enforced_at": "infinity"},
		{"first_reported_at": "-infinity"},
		{"reported_at": "infinity"},
		{"reported_at": "9999-01-01 00:00+00"},
		{"enforced_at": "1969-12-31 23:59+00"},
	},
	"nodes_redis_away": {
		away(`"infinity"`), away(`"yesterday"`), away(`""`), away(`5`), away(`null`), away(`["2026-01-01T00:00:00Z"]`),
		away(`"10000-01-01T00:00:00Z"`), away(`"2026-01-01"`), away(`"2026-01-01T00:00:00"`),
		{"redis": `[{"name": "a"}, {"name": "b", "away_since": "x"}]`},
		{"redis": `[[{"name": "a"}]]`},
	},

	"usage_models_model":  {{"model": strings.Repeat("x", 1025)}},
	"usage_names_name":    {{"name": strings.Repeat("x", 1025)}},
	"usage_names_unit":    {{"unit": "eur"}},
	"usage_state_one_row": {{}},
	"usage_state_order":   {{"one": true, "days_until": "2026-01-03"}},

	"quota_notices_threshold": {{"threshold": 0}, {"threshold": 90}},

	"outbox_event":            {{"event": ""}, {"event": strings.Repeat("x", 1025)}},
	"outbox_source":           {{"source": ""}, {"source": strings.Repeat("x", 1025)}},
	"outbox_type":             {{"type": ""}, {"type": strings.Repeat("x", 129)}},
	"outbox_data":             {{"data": `"` + strings.Repeat("x", 256<<10) + `"`}},
	"outbox_state_one_row":    {{}},
	"outbox_state_order":      {{"one": true, "deleted": 1}, {"one": true, "deleted": -1}},
	"abuse_tenants_tenant":    {{"tenant": ""}, {"tenant": strings.Repeat("x", 129)}},
	"abuse_tenants_step":      {{"state": `{"step": "jail"}`}},
	"abuse_tenants_mode":      {{"mode": "off"}},
	"abuse_state_one_row":     {{}},
	"outbox_cursors_consumer": {{"consumer": ""}, {"consumer": strings.Repeat("x", 65)}},

	"webhooks_org": {{"org": strings.Repeat("x", 129)}},
	"webhooks_url": {
		{"url": ""}, {"url": "ftp://a"}, {"url": "https://a b"}, {"url": "https://" + strings.Repeat("x", 2041)},
	},
	"webhooks_types":           {{"types": make([]string, 17)}},
	"webhooks_created_by":      {{"created_by": " "}},
	"webhooks_disabled_for":    {{"disabled_for": "x"}, {"enabled": false, "disabled_for": strings.Repeat("x", 1025)}},
	"webhooks_last_error":      {{"last_error": strings.Repeat("x", 1025)}},
	"webhook_secrets_secret":   {{"secret": "short"}, {"secret": strings.Repeat("s", 65)}},
	"webhook_deliveries_id":    {{"id": ""}},
	"webhook_deliveries_body":  {{"body": strings.Repeat("x", 1<<20+1)}},
	"webhook_deliveries_state": {{"state": "lost"}},
	"webhook_deliveries_error": {{"error": strings.Repeat("x", 1025)}},

	"candidates_name":               {{"name": ""}, {"name": "."}, {"name": "a/b"}, {"name": strings.Repeat("x", 65)}},
	"candidates_state":              {{"state": "lost", "ended_at": "2026-01-01"}},
	"candidates_percent":            {{"percent": -1}, {"percent": 101}},
	"candidates_ended_at":           {{"ended_at": "2026-01-01"}, {"state": "dropped"}},
	"candidate_policies_namespace":  {deleting.with(row{"namespace": "a:b"})},
	"candidate_policies_name":       {deleting.with(row{"name": ""})},
	"candidate_policies_tier":       {deleting.with(row{"tier": strings.Repeat("x", 65)})},
	"candidate_policies_tenant":     {deleting.with(row{"tier": "", "tenant": strings.Repeat("x", 129)})},
	"candidate_policies_user":       {deleting.with(row{"tier": "", "tenant": "acme", "user": strings.Repeat("x", 129)})},
	"candidate_policies_credential": {deleting.with(row{"tier": "", "credential": strings.Repeat("x", 129)})},
	"candidate_policies_ip":         {deleting.with(row{"tier": "", "ip": "192.0.2.1/24"})},
	"candidate_policies_for":        {deleting.with(row{"tier": "", "for": "everyone"})},
	"candidate_policies_target": {
		deleting.with(row{"tier": ""}), deleting.with(row{"tenant": "acme"}), deleting.with(row{"user": "eve"}),
		deleting.with(row{"for": "all"}),
	},
	"candidate_policies_body_target": {{
		"tier": "", "tenant": "acme", "user": "eve",
		"body": `{"namespace": "default", "name": "daily", "tenant": "acme", "endpoint": "GET /a", "limit": 9}`,
	}},
	"candidate_policies_endpoint": {deleting.with(row{"endpoint": "/a"})},
	"candidate_policies_body": {
		{"body": `null`},
		{"body": `[]`},
		{"body": `{}`},
		{"name": "hourly"},
		{"tier": "silver"},
		{"endpoint": ""},
		{"namespace": "other"},
		{"tier": "", "tenant": "acme"},
	},
	"candidate_tenants_tenant": {{"tenant": ""}, {"tenant": strings.Repeat("x", 129)}},

	"costs_namespace": {{"namespace": ""}, {"namespace": "a b"}, {"namespace": strings.Repeat("x", 65)}},
	"costs_endpoint":  {{"endpoint": ""}, {"endpoint": "/exports"}, {"endpoint": "GET /" + strings.Repeat("x", 1020)}},
	"costs_cost":      {{"cost": -1}, {"cost": 1_000_000_001}},

	"policies_unit":         {{"unit": "eur"}},
	"policies_unit_prices":  {{"settle": `{"sources": [{"from": "prices"}]}`}},
	"policies_match_settle": {{"match": `{"model": "a"}`}},
	"policies_match": {
		settling.with(row{"match": `null`}),
		settling.with(row{"match": `{}`}),
		settling.with(row{"match": `{"model": 1}`}),
		settling.with(row{"match": `{"model": ""}`}),
		settling.with(row{"match": `{"model": "a*b"}`}),
		settling.with(row{"match": `{"model": "` + strings.Repeat("x", 129) + `"}`}),
		settling.with(row{"match": `{"provider": ""}`}),
		settling.with(row{"match": `{"provider": "` + strings.Repeat("x", 129) + `"}`}),
	},

	"prices_namespace":  {{"namespace": ""}, {"namespace": "a b"}},
	"prices_model":      {{"model": ""}, {"model": "*a"}, {"model": "a**"}, {"model": strings.Repeat("x", 129)}},
	"prices_prompt":     {{"prompt": -1}, {"prompt": 1_000_000_000_001}},
	"prices_completion": {{"completion": -1}, {"completion": 1_000_000_000_001}},
	"prices_starts_at":  {{"starts_at": "infinity"}, {"starts_at": "-infinity"}},
}

// tableOf returns the table of a constraint, with which its name begins.
func tableOf(constraint string) string {
	longest := ""
	for table := range good {
		if strings.HasPrefix(constraint, table+"_") && len(table) > len(longest) {
			longest = table
		}
	}
	return longest
}

func TestGoodRowsAreAccepted(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	for _, table := range []string{
		"tiers", "tenants", "policies", "overrides", "nodes", "tokens", "answers",
		"candidates", "candidate_policies", "candidate_tenants", "costs", "prices",
	} {
		if err := insert(t, pool, table, good[table]); err != nil {
			t.Errorf("%s: %v", table, err)
		}
	}
	tokens := good["policies"].with(row{"name": "tokens", "settle": `{"sources": [{"from": "shared.n", "weight": 4},
		{"from": "log.ai.*.usage.total_tokens"}, {"from": "header.X-1.5"}], "reserve": 500, "reserve_header": "X-Max-Tokens",
		"reserve_max": 4000, "refund_on": [502, 503], "timeout": 60}`})
	if err := insert(t, pool, "policies", tokens); err != nil {
		t.Errorf("a policy that settles: %v", err)
	}
	for i, fair := range []string{`{}`, `{"weights": {"gold": 1000, "a b": 1}, "default": 1000}`} {
		shared := good["policies"].with(fairly).with(row{"name": fmt.Sprint("shared-", i), "fair": fair})
		if err := insert(t, pool, "policies", shared); err != nil {
			t.Errorf("a policy that is shared fairly by %s: %v", fair, err)
		}
	}
	for name, change := range map[string]row{
		"dollars of a model": settling.with(row{
			"unit": "usd", "settle": `{"sources": [{"from": "prices"}]}`, "match": `{"model": "*", "provider": "openai"}`,
		}),
		"a month": monthly.with(row{}), "requests at once": atOnce.with(row{"accuracy": "exact", "cost": 0}),
		"an anchor": monthly.with(row{"period": "year", "anchor": `{"day": 29, "month": 2, "hour": 0}`}),
		"a week":    monthly.with(row{"period": "week", "anchor": `{"weekday": "sunday"}`, "time_zone": "Europe/Berlin"}),
	} {
		change["name"] = strings.ReplaceAll(name, " ", "-")
		if err := insert(t, pool, "policies", good["policies"].with(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]row{
		"a ban": ban, "a multiplier": multiplier, "a top-up": topUp, "another top-up": topUp.with(row{"amount": 7}),
		"forever":    {"permanent": true, "expires_at": nil, "user": "bob"},
		"an address": {"tenant": "", "ip": "10.0.0.1"}, "a prefix": {"tenant": "", "ip": "2001:db8::/64"},
		"a network": {"tenant": "", "ip": "10.0.0.0/8"}, "a tag": exempt.with(row{"tenant": "", "tag": "x"}),
		"a tag and an endpoint":      exempt.with(row{"tenant": "", "tag": "x", "endpoint": "GET /a"}),
		"an endpoint of all tenants": exempt.with(row{"tenant": "", "endpoint": "GET /a"}),
		"an endpoint and an address": exempt.with(row{"tenant": "", "ip": "10.0.0.1", "endpoint": "GET /a"}),
		"a tenant's address":         {"ip": "2001:db8::1"}, "the policy's own window": {"window_size": nil, "user": "eve"},
		"a credential": {"tenant": "", "credential": "c"}, "user and endpoint": {"user": "bob", "endpoint": "GET /a/{id}"},
	} {
		if err := insert(t, pool, "overrides", good["overrides"].with(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadRowsViolateTheirConstraints(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	for constraint, changes := range bad {
		table := tableOf(constraint)
		for _, change := range changes {
			err := insert(t, pool, table, good[table].with(change))
			if violated := new(pgconn.PgError); !errors.As(err, &violated) || violated.ConstraintName != constraint {
				t.Errorf("%s with %v: %v, want a violation of %s", table, change, err, constraint)
			}
		}
	}
}

func TestEveryConstraintHasABadRow(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	rows, err := pool.Query(t.Context(), `SELECT conname::text FROM pg_constraint WHERE contype = 'c'
		AND connamespace = 'rate_limiter'::regnamespace`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(all) == 0 {
		t.Fatalf("the constraints are %v (%v)", all, err)
	}
	for _, constraint := range all {
		if len(bad[constraint]) == 0 {
			t.Errorf("no bad row for %s", constraint)
		}
	}
}

func TestANameAndAMatchHaveOnePolicy(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	first := good["policies"].with(row{"endpoint": "GET /records/{id}"})
	for _, distinct := range []row{
		{},
		{"endpoint": "GET /records/{id}/parts"},
		{"name": "hourly"},
		{"tier": "silver"},
		{"tier": "", "tenant": "gold"},
		{"namespace": "other"},
		ofUser,
		ofUser.with(row{"user": "bob"}),
		ofNetwork,
		ofNetwork.with(row{"ip": "2001:db8::/48", "scope": "global"}),
		{"tier": "", "credential": "key", "scope": "credential"},
		{"tier": "", "for": "all", "scope": "endpoint"},
		{"tier": "", "for": "anonymous", "scope": "ip"},
	} {
		if err := insert(t, pool, "policies", first.with(distinct)); err != nil {
			t.Errorf("a policy with another %v: %v", distinct, err)
		}
	}
	for _, same := range []row{
		{}, {"endpoint": "GET /records/{record}"}, {"limit": 7}, {"scope": "user"}, ofUser, ofNetwork,
	} {
		err := insert(t, pool, "policies", first.with(same))
		violated := new(pgconn.PgError)
		if !errors.As(err, &violated) || violated.ConstraintName != "policies_one_per_match" {
			t.Errorf("a second policy with %v: %v, want a violation of policies_one_per_match", same, err)
		}
	}
}

func insert(t *testing.T, pool *pgxpool.Pool, table string, r row) error {
	t.Helper()
	columns := slices.Sorted(maps.Keys(r))
	names, places, values := []string{}, []string{}, []any{}
	for i, column := range columns {
		names = append(names, pgx.Identifier{column}.Sanitize())
		places = append(places, fmt.Sprint("$", i+1))
		if strings.HasSuffix(column, "_at") {
			places[i] += "::text::timestamptz" // otherwise pgx expects a time.Time
		}
		values = append(values, r[column])
	}
	_, err := pool.Exec(t.Context(), fmt.Sprintf("INSERT INTO rate_limiter.%s (%s) VALUES (%s)",
		table, strings.Join(names, ", "), strings.Join(places, ", ")), values...)
	return err
}
