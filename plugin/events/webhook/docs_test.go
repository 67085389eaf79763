package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// verify returns nil if the delivery was signed by the secret, at most five minutes ago.
func verify(r *http.Request, body []byte, secret string) error {
	id, timestamp := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return errors.New("the timestamp is missing, or too far from now")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return err
	}
	hash := hmac.New(sha256.New, key)
	fmt.Fprintf(hash, "%s.%s.%s", id, timestamp, body)
	want := "v1," + base64.StdEncoding.EncodeToString(hash.Sum(nil))
	for _, signature := range strings.Fields(r.Header.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return nil
		}
	}
	return errors.New("no signature is right")
}

func TestTheReceiverOfTheDocsVerifiesDeliveries(t *testing.T) {
	text, err := os.ReadFile("../../../docs/webhooks.md")
	require.NoError(t, err)
	own, err := os.ReadFile("docs_test.go")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(text), "```go\n")
	code, _, found := strings.Cut(code, "```\n")
	if !found || !strings.Contains(string(own), code) {
		t.Errorf("this file does not have the code of docs/webhooks.md:\n%s", code)
	}
	for _, part := range []string{exampleSecret, exampleID, exampleBody, exampleSignature, fmt.Sprint(instant.Unix())} {
		assert.Contains(t, string(text), "`"+part+"`", "docs/webhooks.md has no `%s`", part)
	}
	s, old, now := NewSecret(), NewSecret(), time.Now()
	r := &http.Request{Header: headers("msg_1", Sign("msg_1", now, []byte("body"), old, s), now)}
	assert.NoError(t, verify(r, []byte("body"), s.Text()))
	if verify(r, []byte("another"), s.Text()) == nil || verify(r, []byte("body"), NewSecret().Text()) == nil {
		t.Error("a forged delivery is verified")
	}
}
