package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The families of metrics that are read.
const (
	metricsPrefix = "rate_limiter_"

	requestsFamily    = metricsPrefix + "requests_total"
	denialsFamily     = metricsPrefix + "denials_total"
	shadowFamily      = metricsPrefix + "shadow_denials_total"
	unverifiedFamily  = metricsPrefix + "unverified_total"
	usageFamily       = metricsPrefix + "tenant_usage_ratio"
	degradedFamily    = metricsPrefix + "degraded"
	versionFamily     = metricsPrefix + "snapshot_version"
	ageFamily         = metricsPrefix + "snapshot_age_seconds"
	connectedFamily   = metricsPrefix + "policies_connected"
	processBornFamily = "process_start_time_seconds"
)

const (
	// unlabelled stands where a series has no such label.
	unlabelled = "(none)"
	// mostMetrics is how long an answer may be, in bytes: hundreds of thousands of series.
	mostMetrics = 64 << 20
	// mostCounted is the greatest number that is believed: above it a float64 does not count any more, and the sum of
	// numbers below it is always finite.
	mostCounted = 1 << 53
)

// counter is one series of a family that counts. Labels that the family does not have are [unlabelled].
type counter struct {
	family, tenant, endpoint, tier, result, mode, policy, scope, failMode string
}

// usageOf names a gauge of how much of a limit a tenant has used.
type usageOf struct{ tenant, policy string }

// scrape is what one answer of a node says.
type scrape struct {
	at       time.Time // when the node was scraped
	born     float64   // when its process began, in seconds since 1970; 0: it does not say
	counters map[counter]float64
	usage    map[usageOf]float64 // 1: all of the limit
	degraded []string            // stores, by name

	version   *int64   // of the policies; nil: it does not say
	age       *float64 // of the policies, in seconds; nil: it does not say
	connected *bool    // to Postgres; nil: it does not say
}

// watched is a node, and its last two answers.
type watched struct {
	address string
	before  *scrape // nil: it has not answered twice
	last    *scrape // nil: it has never answered
	err     error   // of the last reading; nil: last is its answer
}

// read reads the node's metrics. An answer that fails leaves the last one to be compared with the next.
func (n *watched) read(ctx context.Context, client *http.Client, at time.Time) {
	s, err := readMetrics(ctx, client, n.address, at)
	if n.err = err; err == nil {
		n.before, n.last = n.last, s
	}
}

// newScraper returns a client that follows no proxies and no redirects.
func newScraper() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func metricsURL(address string) string { return "http://" + address + "/metrics" }

func readMetrics(ctx context.Context, client *http.Client, address string, at time.Time) (*scrape, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsURL(address), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request the metrics: %w", err)
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	response, err := client.Do(request)
	if err != nil {
		return nil, unanswered(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s", response.Status)
	}
	body := &io.LimitedReader{R: response.Body, N: mostMetrics + 1}
	s, err := parseMetrics(body, at)
	switch {
	case body.N <= 0:
		return nil, fmt.Errorf("metrics exceed %d MiB", mostMetrics>>20)
	case err != nil:
		return nil, unanswered(err)
	}
	return s, nil
}

// unanswered returns why there is no answer, without the address, which stands beside it.
func unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("timed out")
	}
	if at, ok := errors.AsType[*url.Error](err); ok {
		return at.Err
	}
	return err
}

// parseMetrics reads an answer in the text format. It must hold something of ours: else another program answers there.
func parseMetrics(r io.Reader, at time.Time) (*scrape, error) {
	s := &scrape{at: at, counters: map[counter]float64{}, usage: map[usageOf]float64{}}
	decoder := expfmt.SampleDecoder{
		Dec:  expfmt.NewDecoder(r, expfmt.NewFormat(expfmt.TypeTextPlain)),
		Opts: &expfmt.DecodeOptions{Timestamp: model.TimeFromUnixNano(at.UnixNano())},
	}
	ours := false
	for {
		var samples model.Vector
		switch err := decoder.Decode(&samples); {
		case errors.Is(err, io.EOF) && !ours:
			return nil, errors.New("not a node of the plugin: it has no metrics that begin with " + metricsPrefix)
		case errors.Is(err, io.EOF):
			slices.Sort(s.degraded)
			return s, nil
		case err != nil:
			return nil, fmt.Errorf("read the metrics: %w", err)
		}
		for _, sample := range samples {
			ours = ours || strings.HasPrefix(string(sample.Metric[model.MetricNameLabel]), metricsPrefix)
			s.record(sample)
		}
	}
}

// record stores a sample of a known family. It skips values out of bounds. NaN fails both comparisons, hence the
// negation.
func (s *scrape) record(sample *model.Sample) {
	value := float64(sample.Value)
	if !(value >= 0 && value <= mostCounted) {
		return
	}
	label := func(name model.LabelName) string { return orDefault(string(sample.Metric[name]), unlabelled) }
	switch family := string(sample.Metric[model.MetricNameLabel]); family {
	case requestsFamily, denialsFamily, shadowFamily, unverifiedFamily:
		s.counters[counter{
			family: family, tenant: label("org_id"), endpoint: label("endpoint"), tier: label("tier"), result: label("result"),
			mode: label("mode"), policy: label("policy"), scope: label("scope"), failMode: label("fail_mode"),
		}] += value
	case usageFamily:
		key := usageOf{label("org_id"), label("policy")}
		s.usage[key] = max(s.usage[key], value)
	case degradedFamily:
		if value > 0 {
			s.degraded = append(s.degraded, label("store"))
		}
	case versionFamily:
		s.version = new(int64(value))
	case ageFamily:
		s.age = new(value)
	case connectedFamily:
		s.connected = new(value > 0)
	case processBornFamily:
		s.born = value
	}
}
