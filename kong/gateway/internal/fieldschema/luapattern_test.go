package fieldschema

import "testing"

func TestLuaPatternsMatchAsInLua(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"^abc$", "abc", true},
		{"^abc$", "xabc", false},
		{"b", "abc", true},
		{"", "", true},
		{"^%d+$", "0123", true},
		{"^%d+$", "", false},
		{"^%d*$", "", true},
		{"^%D$", "7", false},
		{"^[%w_.%-]+$", "a-b_c.1", true},
		{"^[%w_.%-]+$", "a b", false},
		{"^[^%s]+$", "ab", true},
		{"^[^%s]+$", "a b", false},
		{"^a-b$", "aaab", true},
		{"^a?b$", "ab", true},
		{"^a?b$", "b", true},
		{"^a?b$", "aab", false},
		{"^(a+)(b+)$", "aab", true},
		{"^[a-c]+$", "abcd", false},
		{"^[]]$", "]", true},
		{"^.$", "x", true},
		{"^.$", "xy", false},
		{"^%u%l%x%p%a%c$", "Aaf!z\n", true},
		{"^a{1,3}$", "aa", false},
		{"^a{1,3}$", "a{1,3}", true},
		{"^[a-]$", "-", true},
		{"a.*b.*c", "xxaxxbxxc", true},
		{"a$b", "a$b", true},
	} {
		if got := luaMatch(c.s, c.pattern); got != c.want {
			t.Errorf("match(%q, %q) = %v", c.s, c.pattern, got)
		}
	}
}

func FuzzLuaMatchNeverPanics(f *testing.F) {
	f.Add("abc", "^[a-c]+$")
	f.Add("%", "[%")
	f.Fuzz(func(_ *testing.T, s, pattern string) {
		if len(s)+len(pattern) < 40 && checkPattern(pattern) == nil {
			luaMatch(s, pattern)
		}
	})
}
