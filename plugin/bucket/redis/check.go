package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The oldest Redis that is supported.
const oldestMajor, oldestMinor = 6, 2

// examine reads a server's INFO and settings, returns what is wrong with them, in lines, and loads the script. With a
// fault the server cannot keep buckets. examine reads and writes no key.
func (c *connection) examine(ctx context.Context, client *redis.Client) (warnings, faults []string, err error) {
	text, err := client.Info(ctx).Result()
	switch {
	case redis.IsPermissionError(err):
		return []string{"cannot be checked, because its user may not run INFO"}, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read INFO: %w", err)
	}
	if warnings, faults = judge(parseInfo(text), c.settings.isCluster()); len(faults) > 0 {
		return warnings, faults, nil
	}
	if c.settings.isCluster() {
		more, err := checkCoverage(ctx, client)
		if err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, more...)
	}
	if err := client.ScriptLoad(ctx, c.script.source).Err(); err != nil {
		return nil, nil, fmt.Errorf("load the script: %w", err)
	}
	return warnings, nil, nil
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

// judge returns what is wrong with a server, by its INFO and whether the settings describe a cluster. Nothing is wrong
// with a value that is missing.
func judge(info map[string]string, clustered bool) (warnings, faults []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	reject := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if version := info["redis_version"]; isTooOld(version) {
		reject("is Redis %s: %d.%d or newer is needed", version, oldestMajor, oldestMinor)
	}
	switch mode := info["redis_mode"]; {
	case mode == "sentinel":
		reject("is a Sentinel: name it in redis.sentinel_nodes, and the master in redis.sentinel_master")
	case mode == "cluster" && !clustered:
		reject("is part of a Redis Cluster: name some of its nodes in redis.cluster_nodes instead of redis.host")
	case mode == "standalone" && clustered:
		reject("is not part of a Redis Cluster: use redis.host instead of redis.cluster_nodes")
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
	return warnings, faults
}

// isTooOld reports whether a version is older than the oldest that is supported; false for a version of another form.
func isTooOld(version string) bool {
	major, minor := 0, oldestMinor
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n > 0 && (major < oldestMajor || major == oldestMajor && minor < oldestMinor)
}

// checkCoverage checks that one lost master does not stop all others. A server that returns an error, or no value,
// gives no warning.
func checkCoverage(ctx context.Context, client *redis.Client) (warnings []string, err error) {
	const setting = "cluster-require-full-coverage"
	values, err := client.ConfigGet(ctx, setting).Result()
	if rejection := redis.Error(nil); err != nil && !errors.As(err, &rejection) {
		return nil, fmt.Errorf("read %s: %w", setting, err)
	}
	if values[setting] != "yes" {
		return nil, nil
	}
	const message = " yes: while one master is unavailable the whole cluster stops answering; set it to no"
	return []string{"has " + setting + message}, nil
}

// check examines all masters once, and rejects the connection's calls, or admits them again, by what it finds. It
// returns one line for each finding, behind the server's address. An error means that some server could not be
// examined: then the connection stays as it is, unless another server is unfit.
func (c *connection) check(ctx context.Context) (warnings []string, rejection, err error) {
	var mu sync.Mutex
	var rejections []error
	err = c.backend.masters(ctx, func(ctx context.Context, client *redis.Client) error {
		warns, faults, err := c.examine(ctx, client)
		mu.Lock()
		defer mu.Unlock()
		for _, line := range warns {
			warnings = append(warnings, c.address(client)+" "+line)
		}
		for _, line := range faults {
			rejections = append(rejections, errors.New(c.address(client)+" "+line))
		}
		return err
	})
	if c.settings.isCluster() && redis.HasErrorPrefix(err, "This instance has cluster support disabled") {
		err = nil
		rejections = append(rejections,
			errors.New("redis.cluster_nodes names a Redis that is not part of a Redis Cluster: use redis.host"))
	}
	if rejection = errors.Join(rejections...); rejection != nil || err == nil {
		c.reject(rejection)
	}
	return warnings, rejection, err
}

// address returns where a client leads to: its own address in a cluster, else the place of the settings.
func (c *connection) address(client *redis.Client) string {
	if c.settings.isCluster() {
		return client.Options().Addr
	}
	return c.settings.place()
}

// maxPause bounds how long watch waits before it checks again.
const maxPause = 30 * time.Second

// watch checks a connection until all is well with it, it is closed, or ctx ends. It logs each finding once.
func (c *connection) watch(ctx context.Context, log *slog.Logger, pause time.Duration) {
	log = log.With("redis", c.settings.place())
	logged := map[string]bool{}
	logOnce := func(level slog.Level, line string, args ...any) {
		if !logged[line] {
			log.Log(ctx, level, line, args...)
			logged[line] = true
		}
	}
	for ; ; pause = min(2*pause, maxPause) {
		warnings, rejection, err := c.check(ctx)
		if errors.Is(err, redis.ErrClosed) || ctx.Err() != nil {
			return
		}
		for _, line := range warnings {
			logOnce(slog.LevelWarn, line)
		}
		if rejection != nil {
			logOnce(slog.LevelError, "no limit can be counted: "+rejection.Error())
		}
		if err != nil {
			logOnce(slog.LevelWarn, "Redis cannot be checked; trying again until it can", "error", err)
		} else if rejection == nil {
			log.Info("Redis is ready")
			return
		}
		select {
		case <-time.After(pause):
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}
