package fromkong

import (
	"encoding/json"
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"
)

// The fields of Kong's plugins, as [entry.read] reads them. Those with a tag yaml this plugin has too, and they are
// written as they were read.

type rateLimiting struct {
	periodLimits
	LimitBy    string `kong:"limit_by" of:"consumer credential ip service header path consumer-group"`
	HeaderName string `kong:"header_name"`
	Path       string `kong:"path"`
	counters
	visibility
	denial
}

type periodLimits struct {
	Second json.Number `kong:"second"`
	Minute json.Number `kong:"minute"`
	Hour   json.Number `kong:"hour"`
	Day    json.Number `kong:"day"`
	Month  json.Number `kong:"month"`
	Year   json.Number `kong:"year"`
}

// counters says where rate-limiting and response-ratelimiting count.
type counters struct {
	Policy        string      `kong:"policy" of:"local cluster redis"`
	SyncRate      json.Number `kong:"sync_rate"`
	FaultTolerant *bool       `kong:"fault_tolerant"` // nil: true
}

type visibility struct {
	HideClientHeaders bool `kong:"hide_client_headers" yaml:"hide_client_headers,omitempty"`
}

type denial struct {
	ErrorCode    int64  `kong:"error_code" range:"400 599" usual:"429" yaml:"error_code,omitempty"`
	ErrorMessage string `kong:"error_message" usual:"API rate limit exceeded" yaml:"error_message,omitempty"`
}

// aiAdvanced is a config of ai-rate-limiting-advanced. Its penalty, format and dictionary change nothing here.
type aiAdvanced struct {
	Providers     []aiProvider `kong:"llm_providers"`
	Policies      any          `kong:"policies"`
	TokensCounted string       `kong:"tokens_count_strategy" of:"total_tokens prompt_tokens completion_tokens cost"`

	ErrorMessage       string `kong:"error_message" default:"AI token rate limit exceeded for provider(s): "`
	ErrorHideProviders bool   `kong:"error_hide_providers"`

	// These have an effect only beside the providers requestPrompt and customCost, or none at all.
	RequestPromptCountFunction any `kong:"request_prompt_count_function"`
	CustomCostCountFunction    any `kong:"custom_cost_count_function"`
	DecreaseByFractionsInRedis any `kong:"decrease_by_fractions_in_redis"`
	LLMFormat                  any `kong:"llm_format"`

	advancedFields
}

type aiProvider struct {
	Name string `kong:"name"`
	windowLists
}

type advanced struct {
	windowLists
	CompoundIdentifier []string `kong:"compound_identifier"`
	CounterKey         string   `kong:"counter_key" default:"consumer.id"`

	EnforceConsumerGroups bool           `kong:"enforce_consumer_groups"`
	ConsumerGroups        []string       `kong:"consumer_groups"`
	Throttling            map[string]any `kong:"throttling"`
	LockDictionaryName    any            `kong:"lock_dictionary_name"`

	advancedFields
}

type windowLists struct {
	Limit      any `kong:"limit"`       // a number, or a list of numbers
	WindowSize any `kong:"window_size"` // in seconds, as many
}

// advancedFields are in rate-limiting-advanced and ai-rate-limiting-advanced.
type advancedFields struct {
	WindowType     string      `kong:"window_type" of:"sliding fixed"`
	DisablePenalty bool        `kong:"disable_penalty"`
	Identifier     string      `kong:"identifier" of:"consumer credential ip service header path route consumer-group"`
	HeaderName     string      `kong:"header_name"`
	Path           string      `kong:"path"`
	Namespace      string      `kong:"namespace"`
	Strategy       string      `kong:"strategy" of:"local redis cluster"`
	SyncRate       json.Number `kong:"sync_rate"`
	DictionaryName any         `kong:"dictionary_name"`
	visibility
	denial
	jitter
}

type jitter struct {
	RetryAfterJitterMax int64 `kong:"retry_after_jitter_max" range:"0 86400" yaml:"retry_after_jitter_max,omitempty"`
}

type throttling struct {
	Enabled bool `kong:"enabled"`
	Rest    any  `kong:"*"`
}

type responseRateLimiting struct {
	HeaderName            string         `kong:"header_name" default:"x-kong-limit"`
	BlockOnFirstViolation bool           `kong:"block_on_first_violation"`
	Limits                map[string]any `kong:"limits"` // periodLimits by name
	LimitBy               string         `kong:"limit_by" of:"consumer credential ip"`
	counters
	visibility
}

type redis struct {
	clusterNodes `yaml:",inline"`
	sentinels    `yaml:",inline"`
	server       `yaml:",inline"`

	Username string `kong:"username" yaml:"username,omitempty"`
	Password string `kong:"password" yaml:"password,omitempty"`
	Database int64  `kong:"database" range:"0 2147483647" yaml:"database,omitempty"`
	redisTLS `yaml:",inline"`

	Timeout        int64 `kong:"timeout" range:"1 2147483646" yaml:"-"` // the default of the following three
	ConnectTimeout int64 `kong:"connect_timeout" range:"1 2147483646" yaml:"connect_timeout,omitempty"`
	ReadTimeout    int64 `kong:"read_timeout" range:"1 2147483646" yaml:"read_timeout,omitempty"`
	SendTimeout    int64 `kong:"send_timeout" range:"1 2147483646" yaml:"send_timeout,omitempty"`

	KeepalivePoolSize      int64 `kong:"keepalive_pool_size" range:"1 65535" yaml:"keepalive_pool_size,omitempty"`
	KeepaliveBacklog       any   `kong:"keepalive_backlog" yaml:"-"`
	ClusterMaxRedirections any   `kong:"cluster_max_redirections" yaml:"-"`
	RedisProxyType         any   `kong:"redis_proxy_type" yaml:"-"`

	ConnectionIsProxied bool           `kong:"connection_is_proxied" yaml:"-"`
	CloudAuthentication map[string]any `kong:"cloud_authentication" yaml:"-"`
}

type clusterNodes struct {
	ClusterNodes     []clusterNode `kong:"cluster_nodes" yaml:"cluster_nodes,omitempty"`
	ClusterAddresses []string      `kong:"cluster_addresses" yaml:"-"` // of older versions
}

type clusterNode struct {
	IP   string `kong:"ip" default:"127.0.0.1" yaml:"ip"`
	Port int64  `kong:"port" range:"1 65535" usual:"6379" yaml:"port,omitempty"`
}

type sentinels struct {
	SentinelNodes     []sentinelNode `kong:"sentinel_nodes" yaml:"sentinel_nodes,omitempty"`
	SentinelAddresses []string       `kong:"sentinel_addresses" yaml:"-"` // of older versions
	SentinelMaster    string         `kong:"sentinel_master" yaml:"sentinel_master,omitempty"`
	SentinelUsername  string         `kong:"sentinel_username" yaml:"sentinel_username,omitempty"`
	SentinelPassword  string         `kong:"sentinel_password" yaml:"sentinel_password,omitempty"`
	SentinelRole      string         `kong:"sentinel_role" yaml:"-"`
}

type sentinelNode struct {
	Host string `kong:"host" default:"127.0.0.1" yaml:"host"`
	Port int64  `kong:"port" range:"1 65535" usual:"26379" yaml:"port,omitempty"`
}

type server struct {
	Host string `kong:"host" yaml:"host,omitempty"`
	Port int64  `kong:"port" range:"1 65535" usual:"6379" yaml:"port,omitempty"`
}

type redisTLS struct {
	SSL        bool   `kong:"ssl" yaml:"ssl,omitempty"`
	SSLVerify  *bool  `kong:"ssl_verify" yaml:"ssl_verify,omitempty"`
	ServerName string `kong:"server_name" yaml:"server_name,omitempty"`
}

type cloudAuthentication struct {
	AuthProvider string `kong:"auth_provider"`
	Rest         any    `kong:"*"`
}

// config is a config of this plugin: the fields that a conversion sets, in the order in which they are written.
type config struct {
	Namespace        string `yaml:"namespace"`
	Mode             string `yaml:"mode,omitempty"`
	Strategy         string `yaml:"strategy"`
	Accuracy         string `yaml:"accuracy,omitempty"`
	Redis            *redis `yaml:"redis,omitempty"`
	FailMode         string `yaml:"fail_mode,omitempty"`
	visibility       `yaml:",inline"`
	KongHeaders      bool `yaml:"kong_headers,omitempty"`
	ShowSharedLimits bool `yaml:"show_shared_limits,omitempty"`
	denial           `yaml:",inline"`
	jitter           `yaml:",inline"`

	TenantFrom         []string  `yaml:"tenant_from,omitempty"`
	TrustedHeaders     []string  `yaml:"trusted_headers,omitempty"`
	AnonymousConsumers *[]string `yaml:"anonymous_consumers,omitempty"`
	IPv6PrefixLength   int64     `yaml:"ipv6_prefix_length,omitempty"`

	Global    *limits `yaml:"global,omitempty"`
	Tiers     []tier  `yaml:"tiers,omitempty"`
	Anonymous *limits `yaml:"anonymous,omitempty"`
}

type tier struct {
	Name   string `yaml:"name"`
	limits `yaml:",inline"`
}

type limits struct {
	Limits []limit `yaml:"limits"`
}

type limit struct {
	Name       string  `yaml:"name"`
	Scope      string  `yaml:"scope"`
	Endpoint   string  `yaml:"endpoint,omitempty"`
	Unit       string  `yaml:"unit,omitempty"`
	Limit      int64   `yaml:"limit"`
	WindowSize int64   `yaml:"window_size,omitempty"`
	Period     string  `yaml:"period,omitempty"`
	Algorithm  string  `yaml:"algorithm"`
	Match      *match  `yaml:"match,omitempty"`
	Settle     *settle `yaml:"settle,omitempty"`
}

type match struct {
	Provider string `yaml:"provider"`
}

type settle struct {
	Sources []source `yaml:"sources"`
}

type source struct {
	From   string `yaml:"from"`
	Weight int64  `yaml:"weight,omitempty"`
}

func (c *config) node() *yaml.Node {
	n := new(yaml.Node)
	if err := n.Encode(c); err != nil {
		panic(fmt.Sprintf("fromkong: no YAML for a config: %v", err))
	}
	style(n)
	return n
}

// style writes lists of texts in one line, and so each record of a list, unless it has a list itself.
func style(n *yaml.Node) {
	isList := func(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode }
	list := isList(n)
	for _, inner := range n.Content {
		style(inner)
		switch {
		case list && inner.Kind == yaml.ScalarNode:
			n.Style = yaml.FlowStyle
		case list && !slices.ContainsFunc(inner.Content, isList):
			inner.Style = yaml.FlowStyle
		case isTemplate(inner.Value):
			inner.Style = yaml.SingleQuotedStyle // decK replaces it before it parses the file
		}
	}
}

func mapping(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{textNode(key), value}}
}

// textNode returns a text as YAML; the encoder quotes it where another reader could take it for something else.
func textNode(text string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(text)
	style(&yaml.Node{Content: []*yaml.Node{n}})
	return n
}
