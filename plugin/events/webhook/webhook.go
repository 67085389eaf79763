// Package webhook defines webhooks by the Standard Webhooks specification: secrets and signatures, which URLs and
// addresses may be called, when a delivery is tried again, and what of an event a tenant may read. It does no I/O:
// package sender sends, and package rows keeps the subscriptions.
//
// The specification is https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	secretPrefix = "whsec_" // of the text of a secret
	newBytes     = 32
)

// The headers of a delivery.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// Secret signs deliveries. With it they can be forged. It formats as REDACTED, so that no log shows it; [Secret.Text]
// returns it.
type Secret []byte

// NewSecret returns a random secret.
func NewSecret() Secret {
	s := make(Secret, newBytes)
	rand.Read(s) // it never fails
	return s
}

// Text returns the secret in the form that receivers need: whsec_ and base64.
func (s Secret) Text() string { return secretPrefix + base64.StdEncoding.EncodeToString(s) }

// Format implements [fmt.Formatter] for all verbs.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("REDACTED")) }

// MarshalJSON implements [encoding/json.Marshaler].
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"REDACTED"`), nil }

// Sign returns the value of the header Webhook-Signature: one signature by each secret. A receiver accepts the delivery
// if one of them is by a secret that it has.
func Sign(id string, at time.Time, body []byte, secrets ...Secret) string {
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(sum(id, strconv.FormatInt(at.Unix(), 10), body, s))
	}
	return strings.Join(signatures, " ")
}

func sum(id, timestamp string, body []byte, s Secret) []byte {
	hash := hmac.New(sha256.New, s)
	_, _ = fmt.Fprintf(hash, "%s.%s.", id, timestamp) // a hash returns no error
	hash.Write(body)
	return hash.Sum(nil)
}

// tolerance bounds how far the clocks of sender and receiver may be apart.
const tolerance = 5 * time.Minute

// Verify returns nil if a delivery was signed by a secret, at most five minutes from now. Receivers in Go may copy it;
// docs/webhooks.md has it in other words.
func Verify(header http.Header, body []byte, now time.Time, s Secret) error {
	id, timestamp := header.Get(HeaderID), header.Get(HeaderTimestamp)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || id == "" {
		return errors.New("the delivery has no id or no timestamp")
	}
	if apart := now.Sub(time.Unix(seconds, 0)).Abs(); apart > tolerance {
		return fmt.Errorf("the delivery was signed %v from now", apart)
	}
	want := sum(id, timestamp, body, s)
	for signature := range strings.FieldsSeq(header.Get(HeaderSignature)) {
		encoded, found := strings.CutPrefix(signature, "v1,")
		got, err := base64.StdEncoding.DecodeString(encoded)
		if found && err == nil && hmac.Equal(got, want) {
			return nil
		}
	}
	return errors.New("no signature of the delivery is by this secret")
}

// NewMessageID returns a random id of a delivery, which all its tries have.
func NewMessageID() string { return "msg_" + rand.Text() }

// TestPrefix begins the ids of deliveries that are tests.
const TestPrefix = "test_"

// NewTestID returns a random id of a delivery that is a test.
func NewTestID() string { return TestPrefix + rand.Text() }

const (
	// firstDelay and maxDelay bound the delay after a failed try, which grows fourfold with each.
	firstDelay  = 5 * time.Second
	maxDelay    = 4 * time.Hour
	delayFactor = 4

	// KeepTrying is how long a delivery is tried.
	KeepTrying = 3 * 24 * time.Hour
	// DisableAfter is how long all tries of a webhook may fail before it is disabled.
	DisableAfter = 24 * time.Hour
	// DisableTries is how many tries must have failed then, at least.
	DisableTries = 5
	// OldSecretSigns is how long the secret before a rotation signs too.
	OldSecretSigns = 24 * time.Hour
)

// Backoff returns the delay before the next try of a delivery that has failed a number of times: exponential, with full
// jitter. fraction is a random number from 0 to below 1.
func Backoff(failures int, fraction float64) time.Duration {
	delay := firstDelay
	for i := 1; i < failures && delay < maxDelay; i++ {
		delay *= delayFactor
	}
	return time.Duration(fraction * float64(min(delay, maxDelay)))
}

// RetryAfter returns how long the answer of a receiver wants the sender to wait, from 0 to the longest backoff.
func RetryAfter(status int, header http.Header, now time.Time) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(maxDelay/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxDelay)
}
