package reservation

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	// recordVersion is the version of the form of records. A process settles no record of another version.
	recordVersion = 3
	// maxRecord bounds a record in bytes.
	maxRecord = 128 << 10
)

var errLongRecord = fmt.Errorf("the record has more than %d bytes", maxRecord)

// jsonRecord is the stored form of a record: JSON, so that an operator can read it. Enumerations are stored as the
// numbers of their constants; the test with testdata/record.json fails if one changes.
type jsonRecord struct {
	Version  int          `json:"v"`
	Made     limit.Micros `json:"made"`
	Tenant   string       `json:"tenant,omitempty"`
	Endpoint string       `json:"endpoint,omitempty"`
	Bounds   []jsonBound  `json:"bounds"`
	LLM      *schema.LLM  `json:"llm,omitempty"` // where calls are read, and the prices when it was made; appended
}

type jsonBound struct {
	Cost      int64            `json:"cost"`
	Scope     policy.Scope     `json:"scope"`
	Mode      policy.Mode      `json:"mode,omitempty"`
	FailMode  policy.FailMode  `json:"fail,omitempty"`
	Key       policy.Key       `json:"key"`
	Limit     limit.Spec       `json:"limit"`
	Settle    json.RawMessage  `json:"settle,omitempty"` // absent: a concurrency limit
	Match     *schema.Match    `json:"match,omitempty"`
	Unit      string           `json:"unit,omitempty"`
	Unmatched bool             `json:"unmatched,omitempty"`
	Source    decision.Source  `json:"source"`
	Failure   decision.Failure `json:"failure,omitempty"`
	Receipt   limit.Receipt    `json:"receipt"`
	Now       limit.Micros     `json:"now,omitempty"`
	FullAgain limit.Micros     `json:"reset,omitempty"`
}

// clientTexts returns the parts that clients choose. They are percent-encoded: JSON would replace bytes that are not
// UTF-8, and a key would name another bucket.
func (f *jsonRecord) clientTexts() []*string {
	texts := []*string{&f.Tenant, &f.Endpoint}
	for i := range f.Bounds {
		k := &f.Bounds[i].Key
		texts = append(texts, &k.GroupID, &k.Subject, &k.Endpoint)
	}
	return texts
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (r *Record) MarshalBinary() ([]byte, error) {
	form := jsonRecord{Version: recordVersion, Made: r.Made, Tenant: r.Tenant, Endpoint: r.Endpoint}
	for i := range r.Bounds {
		b, s := &r.Bounds[i], &r.Statuses[i]
		spec := b.Policy.Limit.Spec()
		if spec.Algorithm != limit.TokenBucket {
			spec.Burst = 0
		}
		var rule json.RawMessage
		if b.Policy.Settle != nil {
			rule = json.RawMessage(b.Policy.Settle.Spec().JSON())
		}
		form.Bounds = append(form.Bounds, jsonBound{
			Cost: b.Cost, Scope: b.Policy.Scope, Mode: b.Policy.Mode, FailMode: b.Policy.FailMode,
			Key: b.Key, Limit: spec, Settle: rule, Match: b.Policy.Settle.Match(), Unit: b.Policy.Unit,
			Unmatched: b.Unmatched, Source: s.Source, Failure: s.Failure, Receipt: s.Receipt, Now: s.Now,
			FullAgain: s.Reset,
		})
	}
	for _, part := range form.clientTexts() {
		*part = url.PathEscape(*part)
	}
	text, err := json.Marshal(form)
	if err == nil && r.Calls != nil {
		text = slices.Concat(text[:len(text)-1], []byte(`,"llm":`), r.Calls.JSON, []byte("}"))
	}
	if err == nil && len(text) > maxRecord {
		err = errLongRecord
	}
	if err != nil {
		return nil, fmt.Errorf("encode a reservation: %w", err)
	}
	return text, nil
}

// decodeRecord reads a record that another process may have made; own reports that this one has. It returns an error
// for a record of another version, and for one that cannot be settled.
func decodeRecord(text []byte, own bool) (*Record, error) {
	if len(text) > maxRecord {
		return nil, errLongRecord
	}
	var form jsonRecord
	if err := json.Unmarshal(text, &form); err != nil {
		return nil, err
	}
	switch {
	case form.Version != recordVersion:
		return nil, fmt.Errorf("version %d, want %d", form.Version, recordVersion)
	case form.Made < 0 || form.Made > limit.MaxProduct || len(form.Bounds) == 0:
		return nil, errors.New("no instant or no bound")
	}
	for _, part := range form.clientTexts() {
		plain, err := url.PathUnescape(*part)
		if err != nil {
			return nil, err
		}
		*part = plain
	}
	r := &Record{
		Made: form.Made, Tenant: form.Tenant, Endpoint: form.Endpoint, chargeOnly: make([]bool, len(form.Bounds)),
	}
	if form.LLM != nil {
		r.Calls = settle.NewCalls(*form.LLM)
	}
	for i := range form.Bounds {
		bound, status, err := form.Bounds[i].decode()
		if err != nil {
			return nil, fmt.Errorf("bound %d: %w", i, err)
		}
		switch {
		case status.Source == decision.Redis || own:
		case bound.Key.Slots:
			status.Charged = false // only the process that gave the slot has it
		default:
			// What this process did not take itself it can only charge, in the central store.
			status, r.chargeOnly[i] = decision.Status{Source: decision.Redis, Charged: true}, true
		}
		r.Bounds, r.Statuses = append(r.Bounds, bound), append(r.Statuses, status)
		r.Timeout = max(r.Timeout, bound.Policy.Timeout())
	}
	return r, nil
}

// decode returns the bound and the status of its take.
func (f *jsonBound) decode() (policy.Bound, decision.Status, error) {
	compiled, err := limit.New(f.Limit)
	var rule *settle.Rule
	if f.Settle != nil || !compiled.IsConcurrency() {
		var ruleErr error
		rule, ruleErr = decodeRule(f.Settle, f.Match)
		err = errors.Join(ruleErr, err)
	}
	switch {
	case err != nil:
	case compiled.IsConcurrency() != f.Key.Slots || compiled.IsConcurrency() != (rule == nil):
		err = errors.New("a concurrency limit has slots, and settles nothing")
	case f.Limit.Algorithm != limit.TokenBucket && f.Limit.Algorithm != limit.FixedWindow && rule != nil:
		err = fmt.Errorf("a %s cannot be settled", f.Limit.Algorithm)
	case f.Cost < 0 || f.Cost > settle.MaxActual:
		err = fmt.Errorf("the cost is %d tokens, want 0 to %d", f.Cost, int64(settle.MaxActual))
	case !f.hasNames():
		err = errors.New("an enumeration has a number without a constant, or the policy has no name")
	case !f.hasInstants():
		err = errors.New("an instant or a number of the receipt is out of bounds")
	}
	if err != nil {
		return policy.Bound{}, decision.Status{}, err
	}
	p := &policy.Policy{
		Name: f.Key.Policy, Scope: f.Scope, Mode: f.Mode, FailMode: f.FailMode, Settle: rule, Limit: compiled,
		Unit: f.Unit,
	}
	status := decision.Status{Source: f.Source, Failure: f.Failure, Charged: true, Receipt: f.Receipt, Now: f.Now}
	status.Reset = f.FullAgain
	return policy.Bound{Policy: p, Key: f.Key, Cost: f.Cost, Unmatched: f.Unmatched}, status, nil
}

func decodeRule(text []byte, match *schema.Match) (*settle.Rule, error) {
	spec, faults := schema.ParseSettle(text)
	if len(faults) > 0 {
		return nil, schema.Faults(faults)
	}
	return settle.New(*spec, match)
}

// hasNames reports whether each number is one of the constants of its type, and the policy has a name.
func (f *jsonBound) hasNames() bool {
	k := &f.Key
	return k.Policy != "" && f.Scope >= policy.Tenant && f.Scope <= policy.UserEndpoint && f.Mode <= policy.Log &&
		f.FailMode <= policy.FailClosed && f.Source <= decision.Local && f.Failure <= decision.WrongType &&
		k.Group >= policy.ByTenant && k.Group <= policy.ByAll && k.Kind <= policy.KindIP
}

// hasInstants reports whether the numbers of the take are in their bounds.
func (f *jsonBound) hasInstants() bool {
	numbers := []int64{int64(f.Receipt.At), f.Receipt.Debt, f.Receipt.Mark, int64(f.Now), int64(f.FullAgain)}
	return slices.Min(numbers) >= 0 && slices.Max(numbers) <= limit.MaxProduct
}
