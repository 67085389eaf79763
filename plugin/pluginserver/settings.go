package pluginserver

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/setting"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

// settings are those of the process, not of a plugin config: they come from flags (in Kong's start command), from the
// environment (which Kong empties, so it serves under systemd or Kubernetes only), or from a file, in that order.
type settings struct {
	KongPrefix  string
	LogLevel    slog.Level
	LogText     bool   // not JSON
	LogFile     string // stderr, syslog or a file
	LogFileSize int64  // bytes of a file
	LogFileKeep int    // full files
	TimeBudget  time.Duration
	DrainTime   time.Duration
	EndWithKong string // auto, true or false
	MaxBuckets  int
	MaxProcs    int   // 0: one for every four cores
	MemoryLimit int64 // bytes; 0: none
	Nodes       int
	LeaseShare  int // percent; 0: nothing is leased

	MaxAddresses int // 0: any number
	NewAddresses int // a second; 0: any number

	Database        string // a connection string
	DatabaseFile    string // of a connection string
	DatabaseSource  string // the flag, variable or line that gave either
	SnapshotDir     string // "": none
	SnapshotMaxRows int
	NodeName        string

	DenialLog      string // off, stderr or a file
	DenialLogSize  int64  // bytes of a file
	DenialLogKeep  int    // full files
	DenialUsers    bool   // shown as they are
	DenialSaltFile string // "": a random salt

	MetricsTenants     int
	MetricsAlways      []string // tenants
	MetricsListen      string
	MetricsAllowRemote bool
	ReadyNeedsRedis    bool

	Dump, Version bool
}

// settingRow is one row of the table in docs/configuration.md.
type settingRow struct {
	name  string // as a flag; in a file with underscores; in the environment in upper case behind TENANT_RATE_LIMITING_
	value string // the default
	usage string
	set   func(s *settings, text string) error
}

var table = []settingRow{
	{"kong-prefix", "/usr/local/kong", "directory of the socket that Kong connects to", func(s *settings, text string) error {
		s.KongPrefix = text
		return nil
	}},
	{"log-level", "info", "debug, info, warn or error", func(s *settings, text string) error {
		return setting.ParseLevel(text, &s.LogLevel)
	}},
	{"log-format", "json", "json or text", func(s *settings, text string) error {
		if s.LogText = text == "text"; !s.LogText && text != "json" {
			return errors.New("must be json or text")
		}
		return nil
	}},
	{"log-file", "stderr", "where lines go: stderr, which Kong hides below its log_level info, syslog, or the path of a file", func(s *settings, text string) error {
		s.LogFile = text
		return nil
	}},
	{"log-file-size", "64MiB", "size from which that file is full, and renamed", func(s *settings, text string) error {
		return parseBytes(text, &s.LogFileSize)
	}},
	{"log-file-keep", "5", "how many full files are kept", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.LogFileKeep)
	}},
	{"time-budget", "1s", "how long one request may wait for Kong's answers before on_internal_error decides", func(s *settings, text string) error {
		return setting.ParseDuration(text, &s.TimeBudget)
	}},
	{"drain-time", "5s", "how long running requests may take to finish after SIGTERM", func(s *settings, text string) error {
		return setting.ParseDuration(text, &s.DrainTime)
	}},
	{"end-with-kong", "auto", "true ends the process after 10 s without a connection when the Kong that started it is gone or another process has its socket; auto: unless systemd or a supervisor started it", func(s *settings, text string) error {
		s.EndWithKong = text
		if ends := false; text != "auto" {
			return parseBool(text, &ends)
		}
		return nil
	}},
	{"max-buckets", "1000000", "most buckets kept in this process (about 250 bytes each, a sliding_log 16 more for every request it remembers); beyond it the one that expires soonest makes room", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.MaxBuckets)
	}},
	{"max-procs", "0", "how many threads run Go code at once, in place of GOMAXPROCS; 0: one for every four cores, at least one", func(s *settings, text string) error {
		return setting.ParseInt(text, 0, &s.MaxProcs)
	}},
	{"memory-limit", "0", "soft limit of the process's memory, in place of GOMEMLIMIT, for instance 512MiB; 0: none", func(s *settings, text string) error {
		return parseBytes(text, &s.MemoryLimit)
	}},
	{"nodes", "1", "the fewest Kong nodes that share a limit while Redis is away; when more were last seen alive, they count", func(s *settings, text string) error {
		if err := setting.ParseInt(text, 1, &s.Nodes); err != nil || s.Nodes > mostNodes {
			return fmt.Errorf("must be a whole number from 1 to %d", mostNodes)
		}
		return nil
	}},
	{"lease-share", "2", "percent of a limit, at most 5, that all nodes together may have taken from Redis ahead of need; 0: every request asks. The same on all nodes", func(s *settings, text string) error {
		if err := setting.ParseInt(text, 0, &s.LeaseShare); err != nil || s.LeaseShare > lease.MaxSharePct {
			return fmt.Errorf("must be a whole number from 0 to %d", lease.MaxSharePct)
		}
		return nil
	}},
	{"max-addresses", strconv.Itoa(addresses.DefaultMost), "most addresses that have buckets in each Redis by this node at once (about 230 bytes each there, and as much again together where limits are sliding_log); further ones share a bucket with their /24 or /48, and above a tenth of this many of those are counted in this process; 0: any number", func(s *settings, text string) error {
		return setting.ParseInt(text, 0, &s.MaxAddresses)
	}},
	{"new-addresses", strconv.Itoa(addresses.DefaultRate), "how many addresses a second that this node has not seen lately get such buckets, and ten seconds' worth at once; 0: any number", func(s *settings, text string) error {
		return setting.ParseInt(text, 0, &s.NewAddresses)
	}},
	{"database", "none", "connection string of the Postgres that has policies, tiers and overrides; one with a password is better kept in a file", func(s *settings, text string) error {
		s.Database = given(text)
		return nil
	}},
	{"database-file", "none", "file with that connection string, read for every connection", func(s *settings, text string) error {
		s.DatabaseFile = given(text)
		return nil
	}},
	{"snapshot-dir", "kong-prefix", "directory of the last rows from Postgres, for a start without it; off: nothing is saved", func(s *settings, text string) error {
		switch s.SnapshotDir = text; text {
		case "kong-prefix":
			s.SnapshotDir = s.KongPrefix
		case "off":
			s.SnapshotDir = ""
		}
		return nil
	}},
	{"snapshot-max-rows", "2000000", "most rows from Postgres, about 400 bytes each; of more, the last good ones stay in force", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.SnapshotMaxRows)
	}},
	{"node-name", "hostname", "this node's name in ratelimit fleet; a part that differs from process to process is added", func(s *settings, text string) error {
		s.NodeName = text
		return nil
	}},
	{metrics.Setting, "127.0.0.1:9542", "host:port of /metrics, /healthz and /readyz; off: none", func(s *settings, text string) error {
		if s.MetricsListen = text; text == "off" {
			s.MetricsListen = ""
		}
		return nil
	}},
	{"metrics-tenants", "500", "the busiest tenants, so many, have metrics of their own; the others are counted together", func(s *settings, text string) error {
		return setting.ParseInt(text, 0, &s.MetricsTenants)
	}},
	{"metrics-always", "none", "tenants that always have metrics of their own, separated by commas", func(s *settings, text string) error {
		if text = given(text); text != "" {
			s.MetricsAlways = strings.Split(text, ",")
		}
		return metrics.TenantLabels{Always: s.MetricsAlways}.Validate()
	}},
	{"denial-log", "off", "where denials are recorded, one JSON line for each tenant, policy and second: off, stderr, or the path of a file", func(s *settings, text string) error {
		s.DenialLog = text
		return nil
	}},
	{"denial-log-size", "64MiB", "size from which that file is full, and renamed", func(s *settings, text string) error {
		return parseBytes(text, &s.DenialLogSize)
	}},
	{"denial-log-keep", "5", "how many full files are kept", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.DenialLogKeep)
	}},
	{"denial-users", "false", "true records users and addresses as they are, and not as hashes", func(s *settings, text string) error {
		return parseBool(text, &s.DenialUsers)
	}},
	{"denial-salt-file", "none", "file with the salt of these hashes, for the same hash of one user on all nodes; none: random for each process", func(s *settings, text string) error {
		s.DenialSaltFile = given(text)
		return nil
	}},
	{metrics.RemoteSetting, "false", "true lets metrics-listen be an address that other machines reach", func(s *settings, text string) error {
		return parseBool(text, &s.MetricsAllowRemote)
	}},
	{"ready-needs-redis", "false", "true makes /readyz fail while Redis is away, that of addresses excepted, which takes the node out of rotation", func(s *settings, text string) error {
		return parseBool(text, &s.ReadyNeedsRedis)
	}},
}

// mostNodes is more than any limit is shared among.
const mostNodes = 1_000_000

const environmentPrefix = "TENANT_RATE_LIMITING_"

// parseSettings reads flags, environment and file. flag.ErrHelp means that the usage was asked for and written.
func parseSettings(args []string, getenv func(string) string, usage io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("tenant-rate-limiting", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.BoolVar(&s.Dump, "dump", false, "print the plugin's name, version and schema as Kong's query command wants them, and exit")
	flags.BoolVar(&s.Version, "version", false, "print the version and exit")
	file := flags.String("config", "", "a YAML file with the settings of this list (names with underscores)")
	given := map[string]*string{}
	for _, row := range table {
		given[row.name] = flags.String(row.name, row.value, row.usage)
	}
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: settings are flags, see -help", flags.Arg(0))
	}
	source := map[string]string{}
	if *file != "" {
		if err := readSettings(*file, given, source); err != nil {
			return s, err
		}
	}
	for _, row := range table {
		variable := environmentPrefix + strings.ToUpper(strings.ReplaceAll(row.name, "-", "_"))
		if text := getenv(variable); text != "" {
			*given[row.name], source[row.name] = text, variable
		}
	}
	// A flag wins over both, so flags are read once more.
	flags.SetOutput(io.Discard)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	flags.Visit(func(f *flag.Flag) { source[f.Name] = "-" + f.Name })
	var errs []error
	for _, row := range table {
		if err := row.set(&s, *given[row.name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q: %w", source[row.name], *given[row.name], err))
		}
	}
	s.DatabaseSource = source["database"]
	if s.DatabaseFile != "" {
		s.DatabaseSource = source["database-file"] + " " + s.DatabaseFile
	}
	return s, errors.Join(errs...)
}

// readSettings sets the values that a file gives.
func readSettings(path string, given map[string]*string, source map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("-config: %w", err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("-config %s: %w", path, err)
	}
	if len(document.Content) == 0 {
		return nil // an empty file
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("-config %s:%d: must be settings, one `name: value` on each line", path, root.Line)
	}
	for pair := range slices.Chunk(root.Content, 2) {
		name := strings.ReplaceAll(pair[0].Value, "_", "-")
		where := fmt.Sprintf("%s:%d: %s", path, pair[0].Line, pair[0].Value)
		switch {
		case given[name] == nil:
			return fmt.Errorf("%s: no such setting; see -help", where)
		case pair[1].Kind != yaml.ScalarNode:
			return fmt.Errorf("%s: must be a single value", where)
		}
		*given[name], source[name] = pair[1].Value, where
	}
	return nil
}

// given is a setting whose default says that there is none.
func given(text string) string {
	if text == "none" {
		return ""
	}
	return text
}

func parseBool(text string, to *bool) error {
	switch text {
	case "true", "false":
		*to = text == "true"
		return nil
	}
	return errors.New("must be true or false")
}

var units = map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func parseBytes(text string, to *int64) error {
	digits := strings.TrimRight(text, "BKMGi")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, ok := units[text[len(digits):]]
	if err != nil || !ok || n < 0 || n > (1<<62)/unit {
		return errors.New("must be a number of bytes, with B, KiB, MiB or GiB behind it if you like")
	}
	*to = n * unit
	return nil
}

// maxProcs is how many threads run Go code at once: the setting, else GOMAXPROCS where there is an environment, else a
// quarter of the cores, because Kong's workers need them more than we do.
func (s *settings) maxProcs(getenv func(string) string) int {
	switch {
	case s.MaxProcs > 0:
		return s.MaxProcs
	case getenv("GOMAXPROCS") != "":
		return runtime.GOMAXPROCS(0)
	}
	return max(1, runtime.NumCPU()/4)
}

// endsWithKong reports whether the process ends when the Kong that started it has left it alone.
func (s *settings) endsWithKong(environ []string, parent int) bool {
	if s.EndWithKong == "auto" {
		return startedByKong(environ, parent)
	}
	return s.EndWithKong == "true"
}

// tenantLabels are which tenants have metrics of their own.
func (s *settings) tenantLabels() metrics.TenantLabels {
	labels := metrics.TenantLabels{Busiest: s.MetricsTenants, Always: s.MetricsAlways}
	if labels.Busiest == 0 {
		labels.Busiest = -1 // none: there 0 is the default
	}
	return labels
}

// socketPath is where Kong looks for the socket: in its prefix, named after the executable.
func (s *settings) socketPath() (string, error) {
	executable, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the name of the executable, after which the socket is named: %w", err)
	}
	return filepath.Join(s.KongPrefix, filepath.Base(executable)+".socket"), nil
}
