package rows

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	resetOperation = "reset"
	resetKey       = "buckets"
)

// EmptiedBucket describes a bucket before a reset has emptied it. It belongs to the tenant, unless it has a user,
// credential or address.
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

// resetDetails holds the details of a reset.
type resetDetails struct {
	Buckets []EmptiedBucket `json:"buckets"`
}

// ResetOf returns the action that records a reset of buckets of a tenant; "" for buckets of an address. statuses holds
// the status of each bound before it.
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
			if b.Key.Group == policy.ByIP {
				buckets[i].IP = b.Key.GroupID
			}
		}
	}
	details, err := json.Marshal(resetDetails{buckets})
	if err != nil {
		return Action{}, fmt.Errorf("encode a reset: %w", err)
	}
	return Action{Operation: resetOperation, Key: resetKey, Tenant: tenant, Details: details}, nil
}

// Emptied returns the buckets that a reset has emptied, and false for another entry.
func (e *AuditEntry) Emptied() ([]EmptiedBucket, bool) {
	var details resetDetails
	if e.Kind != "action" || e.Operation != resetOperation || json.Unmarshal(e.After, &details) != nil {
		return nil, false
	}
	return details.Buckets, details.Buckets != nil
}
