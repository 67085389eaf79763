package server

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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// settings belong to the process, not of a plugin config: they come from flags (in Kong's start command), from the
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
	SnapshotMirror  bool
	NodeName        string
	Usage           bool

	DenialLog      string // off, stderr or a file
	DenialLogSize  int64  // bytes of a file
	DenialLogKeep  int    // full files
	DenialUsers    bool   // shown as they are
	DenialSaltFile string // "": a random salt
	DenialSingles  int    // lines of one denial for each tenant, policy and second
	DenialWebhooks bool   // offer them to webhooks
	DenialRecent   bool   // report a sample to the database
	DenialTopic    string
	Kafka          kafka.Options // without brokers: no events go there

	MetricsTenants     int
	MetricsAlways      []string // tenants
	MetricsListen      string
	MetricsAllowRemote bool
	ReadyNeedsRedis    bool

	Dump, DumpSettling, Version bool
}

const (
	mostNodes  = 1_000_000 // more than any limit is shared among
	maxSingles = 100       // bounds denial-singles
)

const environmentPrefix = "TENANT_RATE_LIMITING_"

// parseSettings reads flags, environment and file. flag.ErrHelp means that the usage was requested and written.
func parseSettings(args []string, getenv func(string) string, usage io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("tenant-rate-limiting", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.BoolVar(&s.Dump, "dump", false, "print the plugin's name, version and schema for Kong's query_cmd, and exit")
	flags.BoolVar(&s.DumpSettling, "dump-settling", false,
		"print the same of the companion plugin, which settles reservations, and exit")
	flags.BoolVar(&s.Version, "version", false, "print the version and exit")
	file := flags.String("config", "", "a YAML file with the settings of this list, their names with underscores")
	given, table := map[string]*string{}, s.table()
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
		if err := row.set(*given[row.name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q: %w", source[row.name], *given[row.name], err))
		}
	}
	s.DatabaseSource = source["database"]
	if s.DatabaseFile != "" {
		s.DatabaseSource = source["database-file"] + " " + s.DatabaseFile
	}
	return s, errors.Join(errs...)
}

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
		return errors.New("must be a number of bytes, optionally with the unit B, KiB, MiB or GiB, such as 64MiB")
	}
	*to = n * unit
	return nil
}

// maxProcs returns how many threads run Go code at once: the setting, else GOMAXPROCS where there is an environment,
// else a quarter of the cores, because Kong's workers need them more than we do.
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

func (s *settings) tenantLabels() metrics.TenantLabels {
	labels := metrics.TenantLabels{Busiest: s.MetricsTenants, Always: s.MetricsAlways}
	if labels.Busiest == 0 {
		labels.Busiest = -1 // none: there 0 is the default
	}
	return labels
}

// settlingSocketPath returns where Kong looks for the socket of the companion plugin: beside the other one.
func (s *settings) settlingSocketPath() string {
	return filepath.Join(s.KongPrefix, schema.SettlingName+".socket")
}

// socketPath returns where Kong looks for the socket: in its prefix, named after the executable.
func (s *settings) socketPath() (string, error) {
	executable, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the name of the executable, after which the socket is named: %w", err)
	}
	return filepath.Join(s.KongPrefix, filepath.Base(executable)+".socket"), nil
}
