package gateway

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestXRealIPIsReadFromTrustedPeersOnly(t *testing.T) {
	for _, c := range []struct {
		trusted []string
		sent    []string
		want    string
	}{
		{nil, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"10.0.0.0/8"}, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, nil, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1"}, "1.1.1.1"},
		{[]string{"127.0.0.0/8"}, []string{"1.1.1.1", "2.2.2.2, 3.3.3.3"}, "3.3.3.3"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1, junk"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"2001:db8::1"}, "2001:db8::1"},
	} {
		trusted, err := parseTrusted(c.trusted)
		require.NoError(t, err)
		if ip := trusted.clientIP("127.0.0.1", http.Header{"X-Real-Ip": c.sent}); ip != c.want {
			t.Errorf("%+v: %s", c, ip)
		}
	}
	if _, err := parseTrusted([]string{"nonsense"}); err == nil {
		t.Error("nonsense is trusted")
	}
}
