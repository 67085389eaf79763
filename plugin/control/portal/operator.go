package portal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

func operatorPages() []page {
	return slices.Concat([]page{
		{
			Pattern: "GET /portal/fleet", For: operators, Nav: "Fleet", Live: true,
			Serve: pageOf("operator_fleet", "Fleet", readFleet),
		},
		{Pattern: "GET /portal/reach", For: operators, Live: true, Serve: pageOf("operator_reach", "Fleet", readReach)},
		{Pattern: "GET /portal/tenants", For: operators, Nav: "Tenants", Ranged: true, Serve: serveTenants},
		{Pattern: "GET /portal/top", For: operators, Nav: "Top tenants", Ranged: true, Serve: serveTop},
		{Pattern: "GET /portal/near-limit", For: operators, Nav: "Near limit", Serve: serveNearLimit},
		{Pattern: "GET /portal/denials", For: operators, Nav: "Denials", Live: true, Ranged: true, Serve: serveDenials},
		{Pattern: "GET /portal/search", For: operators, Serve: serveSearch},
		{Pattern: "GET /portal/candidates", For: operators, Nav: "Rollout", Serve: serveCandidates},
		{Pattern: "GET /portal/candidates/{name}", For: operators, Serve: serveCandidate},
		{Pattern: "GET /portal/abuse", For: operators, Nav: "Abuse", Serve: serveAbuse},
		{Pattern: "GET /portal/audit", For: operators, Nav: "Audit", Serve: serveAudit},
		{Pattern: "GET /portal/tenants/{org}", For: operators, Ranged: true, Serve: serveTenant},
	}, listingPages(), actionPages())
}

const pageRows = "50"

func (v *visit) isAdmin() bool { return v.caller.Role == api.Admin }

// org returns the org that a page is about: the caller's own, or the one in the path.
func (v *visit) org() string { return cmp.Or(v.caller.Org, v.r.PathValue("org")) }

// filters returns the values of these names in the query of the page, without empty ones.
func (v *visit) filters(names ...string) url.Values {
	given, kept := v.r.URL.Query(), url.Values{}
	for _, name := range names {
		if value := strings.TrimSpace(given.Get(name)); value != "" {
			kept.Set(name, value)
		}
	}
	return kept
}

// withPage returns a query with the cursor of the page and its number of rows.
func (v *visit) withPage(filters url.Values) url.Values {
	query := maps.Clone(filters)
	query.Set("limit", pageRows)
	if cursor := v.r.URL.Query().Get("cursor"); cursor != "" {
		query.Set("cursor", cursor)
	}
	return query
}

// nextPage returns the link of the next page of the list at a path, or "" after the last one.
func nextPage(path string, filters url.Values, cursor string) string {
	if cursor == "" {
		return ""
	}
	query := maps.Clone(filters)
	query.Set("cursor", cursor)
	return path + "?" + query.Encode()
}

func orgAPI(org, rest string) string { return "/v1/orgs/" + answers.PathSegment(org) + rest }

func tenantPath(org, rest string) string { return home + "tenants/" + answers.PathSegment(org) + rest }

// unavailable returns why a part of a page cannot be shown, so that the rest can: the API lacks what the part needs.
// Other errors are returned.
func unavailable(err error) (string, error) {
	if p := answers.ProblemOf(err); p != nil && (p.Status == 404 || p.Status == 503) {
		return p.Detail, nil
	}
	return "", err
}

const (
	// sharedTime is how long pages share an answer.
	sharedTime = 10 * time.Second
	// readTimeout bounds the read of an answer.
	readTimeout = 10 * time.Second
	// maxCached bounds the answers that are kept: of more, each page reads its own.
	maxCached = 64
)

// answerCache keeps answers of the API that take long, because they rank all tenants, and that are the same for each
// operator. Pages share one read of each in every sharedTime. The zero value is empty and safe for concurrent use.
type answerCache struct {
	reads singleflight.Group // by path

	mu    sync.Mutex
	since time.Time                  // when the current sharedTime began
	kept  map[string]json.RawMessage // by path
}

// answer returns what read returned first for a path in the current sharedTime, or awaits it until ctx ends. Errors are
// not kept. A limit that denies the read of another page says nothing about this one, which then reads itself.
func (c *answerCache) answer(
	ctx context.Context, now time.Time, path string, read func() (json.RawMessage, error),
) (json.RawMessage, error) {
	for {
		c.mu.Lock()
		if now.Sub(c.since) >= sharedTime {
			c.since, c.kept = now, map[string]json.RawMessage{}
		}
		kept := c.kept
		if body, ok := kept[path]; ok {
			c.mu.Unlock()
			return body, nil
		}
		isOwn := false
		result := c.reads.DoChan(path, func() (any, error) {
			isOwn = true
			body, err := read()
			c.mu.Lock()
			defer c.mu.Unlock()
			if err == nil && len(kept) < maxCached {
				kept[path] = body
			}
			return body, err
		})
		c.mu.Unlock() // only now: a read that ends meanwhile would not be found, neither kept nor in progress
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case r := <-result:
			if isOwn || !isStatus(r.Err, http.StatusTooManyRequests) {
				body, _ := r.Val.(json.RawMessage)
				return body, r.Err
			}
		}
	}
}

// getShared is get for a page of operators, and an answer that is the same for each. It is at most sharedTime old.
func (v *visit) getShared(path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	body, err := v.portal.shared.answer(v.r.Context(), v.portal.Now(), path, func() (body json.RawMessage, err error) {
		// The read is also for others, and ends if its page does not.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), readTimeout)
		defer cancel()
		return body, v.api().Get(ctx, path, nil, &body)
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer to %s: %w", path, err)
	}
	return nil
}
