package pgstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	resetOperation = "reset"
	resetKey       = "buckets"
)

// EmptiedBucket is a bucket that a reset has emptied, as it was before. It is the tenant's own, unless it says whose in
// the tenant.
type EmptiedBucket struct {
	Policy      string    `json:"policy"`
	Row         int64     `json:"policy_id,omitempty"` // the id of the policy; 0: it is in the plugin's config
	Endpoint    string    `json:"endpoint,omitempty"`
	User        string    `json:"user,omitempty"`
	Credential  string    `json:"credential,omitempty"`
	IP          string    `json:"ip,omitempty"`
	Description string    `json:"description"` // the limit in words
	Used        int64     `json:"used"`
	Remaining   int64     `json:"remaining"`
	Reset       time.Time `json:"reset"` // when it would have been full again, or its window would have ended
}

// emptied are the details of a reset.
type emptied struct {
	Buckets []EmptiedBucket `json:"buckets"`
}

// ResetOf is the emptying of buckets of a tenant as the audit shows it. statuses are those of bounds
// before, one for each.
func ResetOf(tenant string, bounds []policy.Bound, statuses []decision.Status) (Action, error) {
	buckets := make([]EmptiedBucket, len(bounds))
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		buckets[i] = EmptiedBucket{
			Policy: b.Policy.Name, Row: b.Policy.Row, Endpoint: b.Key.Endpoint, Description: b.Policy.Describe(),
			Used: status.Used, Remaining: status.Remaining, Reset: time.UnixMicro(int64(status.Reset)).UTC(),
		}
		switch subject := b.Key.Subject; b.Key.Kind {
		case policy.KindUser:
			buckets[i].User = subject
		case policy.KindCredential:
			buckets[i].Credential = subject
		case policy.KindIP:
			buckets[i].IP = subject
		default:
		}
	}
	details, err := json.Marshal(emptied{buckets})
	if err != nil {
		return Action{}, fmt.Errorf("tell a reset: %w", err)
	}
	return Action{Operation: resetOperation, Key: resetKey, Tenant: tenant, Details: details}, nil
}

// Emptied are the buckets that the action of an entry has emptied; false: it tells something else. What older versions
// have written says less of a bucket, and some of them wrote the list alone.
func (e *AuditEntry) Emptied() ([]EmptiedBucket, bool) {
	var (
		list  []EmptiedBucket
		named emptied
	)
	switch {
	case e.Kind != "action" || e.Operation != resetOperation:
		return nil, false
	case json.Unmarshal(e.After, &list) == nil:
		return list, list != nil
	case json.Unmarshal(e.After, &named) == nil:
		return named.Buckets, named.Buckets != nil
	}
	return nil, false
}
