package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The oldest Redis that will do.
const oldestMajor, oldestMinor = 6, 2

// finding is what a start-up check has to say about one server, in one line.
type finding struct {
	message string
	refuse  bool // nothing can be counted there
}

// examine asks a server what it is, judges that, and leaves the script there. It reads and writes no key.
func (c *connection) examine(ctx context.Context, client *redis.Client) ([]finding, error) {
	text, err := client.Info(ctx).Result()
	switch {
	case redis.IsPermissionError(err):
		return []finding{{message: "cannot be checked, because its user may not run INFO"}}, nil
	case err != nil:
		return nil, fmt.Errorf("ask for INFO: %w", err)
	}
	findings := judge(parseInfo(text), c.settings.clustered())
	if refused(findings) {
		return findings, nil
	}
	if c.settings.clustered() {
		for _, judge := range []func(context.Context, *redis.Client) ([]finding, error){judgeTags, judgeCoverage} {
			more, err := judge(ctx, client)
			if err != nil {
				return nil, err
			}
			findings = append(findings, more...)
		}
	}
	if err := client.ScriptLoad(ctx, c.script.source).Err(); err != nil {
		return nil, fmt.Errorf("load the script: %w", err)
	}
	return findings, nil
}

// parseInfo reads the lines "name:value" of INFO.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// judge finds what is wrong with a server, given its INFO and whether the settings are those of a cluster. A value that
// a server does not tell is no finding.
func judge(info map[string]string, clustered bool) []finding {
	var findings []finding
	warn := func(format string, args ...any) {
		findings = append(findings, finding{message: fmt.Sprintf(format, args...)})
	}
	refuse := func(format string, args ...any) {
		findings = append(findings, finding{fmt.Sprintf(format, args...), true})
	}
	if version := info["redis_version"]; tooOld(version) {
		refuse("is Redis %s: %d.%d or newer is needed", version, oldestMajor, oldestMinor)
	}
	switch mode := info["redis_mode"]; {
	case mode == "sentinel":
		refuse("is a Sentinel: name it in redis.sentinel_nodes, and the master in redis.sentinel_master")
	case mode == "cluster" && !clustered:
		refuse("is part of a Redis Cluster: name some of its nodes in redis.cluster_nodes instead of redis.host")
	case mode == "standalone" && clustered:
		refuse("is not part of a Redis Cluster: use redis.host instead of redis.cluster_nodes")
	}
	if info["role"] == "slave" {
		if info["slave_read_only"] == "0" {
			warn("is a replica that answers writes: its master will overwrite what is counted there; name the master")
		} else {
			warn("is a replica and denies writes: name the master")
		}
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		warn("has maxmemory-policy %s: under memory pressure it forgets what was spent; set noeviction", policy)
	}
	return findings
}

// tooOld tells whether a version is known to be older than the oldest that will do.
func tooOld(version string) bool {
	majorText, rest, _ := strings.Cut(version, ".")
	minorText, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(majorText)
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(minorText)
	return major < oldestMajor || (err == nil && major == oldestMajor && minor < oldestMinor)
}

// judgeTags finds out whether keys with one hash tag share a slot, as the keys of one tenant must. A server that may not
// be asked is believed.
func judgeTags(ctx context.Context, client *redis.Client) ([]finding, error) {
	pipeline := client.Pipeline()
	one, other := pipeline.ClusterKeySlot(ctx, "{t=a}1"), pipeline.ClusterKeySlot(ctx, "{t=a}2")
	_, err := pipeline.Exec(ctx)
	switch {
	case redis.IsPermissionError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask for the slot of a key: %w", err)
	case one.Val() != other.Val():
		return []finding{{"does not keep keys with one hash tag in one slot, as a request's buckets must be", true}}, nil
	}
	return nil, nil
}

// judgeCoverage finds out whether one lost master takes all others with it. A server that may not be asked, or does not
// say, is believed.
func judgeCoverage(ctx context.Context, client *redis.Client) ([]finding, error) {
	const setting = "cluster-require-full-coverage"
	values, err := client.ConfigGet(ctx, setting).Result()
	var refusal redis.Error
	switch {
	case errors.As(err, &refusal):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask for %s: %w", setting, err)
	case values[setting] == "yes":
		return []finding{{message: "has " + setting + " yes: while one master is away the whole cluster stops answering; set it to no"}}, nil
	}
	return nil, nil
}

func refused(findings []finding) bool {
	for _, f := range findings {
		if f.refuse {
			return true
		}
	}
	return false
}

// check examines all masters once, refuses or admits the connection by what it finds, and returns one line for each
// finding, behind the server's address. An error means that it could not look everywhere: the connection stays as it is.
func (c *connection) check(ctx context.Context) (warnings []string, refusal, err error) {
	var mu sync.Mutex
	var refusals []error
	err = c.backend.masters(ctx, func(ctx context.Context, client *redis.Client) error {
		findings, err := c.examine(ctx, client)
		mu.Lock()
		defer mu.Unlock()
		for _, f := range findings {
			line := c.address(client) + " " + f.message
			if f.refuse {
				refusals = append(refusals, errors.New(line))
			} else {
				warnings = append(warnings, line)
			}
		}
		return err
	})
	if c.settings.clustered() && redis.HasErrorPrefix(err, "This instance has cluster support disabled") {
		refusals, err = append(refusals, errors.New("redis.cluster_nodes names a Redis that is not part of a Redis Cluster: use redis.host")), nil
	}
	if refusal = errors.Join(refusals...); refusal != nil {
		c.refuse(refusal)
		return warnings, refusal, err
	}
	if err == nil {
		c.refuse(nil)
	}
	return warnings, nil, err
}

// address is where a client leads to: its own name in a cluster, else the settings'.
func (c *connection) address(client *redis.Client) string {
	if c.settings.clustered() {
		return client.Options().Addr
	}
	return c.settings.place()
}

// longestPause is how long watch waits at most before it looks again.
const longestPause = 30 * time.Second

// watch checks a connection until all is well with it, it is closed, or ctx ends. It logs each finding once.
func (c *connection) watch(ctx context.Context, log *slog.Logger, pause time.Duration) {
	log = log.With("redis", c.settings.place())
	said := map[string]bool{}
	say := func(level slog.Level, line string) {
		if !said[line] {
			log.Log(ctx, level, line)
			said[line] = true
		}
	}
	failing := false
	for ; ; pause = min(2*pause, longestPause) {
		warnings, refusal, err := c.check(ctx)
		if errors.Is(err, redis.ErrClosed) || ctx.Err() != nil {
			return
		}
		for _, line := range warnings {
			say(slog.LevelWarn, line)
		}
		if refusal != nil {
			say(slog.LevelError, "no limit can be counted: "+refusal.Error())
		}
		if err != nil && !failing {
			log.Warn("Redis cannot be checked; trying again until it can", "error", err)
		}
		failing = err != nil
		if refusal == nil && err == nil {
			log.Info("Redis is ready")
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
