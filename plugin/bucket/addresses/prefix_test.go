package addresses

import "testing"

func TestWiderReturnsAPrefixThatContainsTheAddress(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.77":              "192.0.2.0/24",
		"2001:db8:1:2::/64":       "2001:db8:1::/48",
		"2001:db8:1:2::9":         "2001:db8:1::/48",
		"2001:db8:1:2::9/128":     "2001:db8:1::/48",
		"2001:db8:1::/48":         "2001:db8::/32",
		"2001:db8::/32":           "2001::/16",
		"2000::/8":                "::/0",
		"fe80::1%eth0":            "fe80::/48",
		"unknown":                 "other",
		"192.0.2.0/24":            "other",
		"sha256:0123":             "other",
		"":                        "other",
		"::ffff:192.0.2.77":       "192.0.2.0/24",
		"2001:db8:1:2:3:4:5:6/47": "2001:db8::/31",
	} {
		if got := Wider(text); got != want {
			t.Errorf("the prefix of %s is %s, want %s", text, got, want)
		}
	}
}
