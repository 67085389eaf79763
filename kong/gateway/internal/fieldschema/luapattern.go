package fieldschema

import (
	"errors"
	"fmt"
	"strings"
)

// luaMatch reports whether Lua's string.match finds pattern in s (Lua 5.1 reference manual section 5.4.1). Kong's match
// attributes are Lua patterns, not regular expressions: "%" is the escape, "-" the lazy repetition, and "{1,64}" six
// ordinary characters. Captures group nothing in Lua and are ignored. checkPattern denies %b, %f and back references.
func luaMatch(s, pattern string) bool {
	pattern, anchored := strings.CutPrefix(pattern, "^")
	for start := 0; start <= len(s); start++ {
		if matchHere(s[start:], pattern) {
			return true
		}
		if anchored {
			return false
		}
	}
	return false
}

func matchHere(s, pattern string) bool {
	for {
		switch {
		case pattern == "":
			return true
		case pattern == "$":
			return s == ""
		case pattern[0] == '(' || pattern[0] == ')':
			pattern = pattern[1:]
			continue
		}
		size := itemSize(pattern)
		item, rest := pattern[:size], pattern[size:]
		if rest != "" {
			switch rest[0] {
			case '*':
				return matchMany(s, item, rest[1:], 0)
			case '+':
				return matchMany(s, item, rest[1:], 1)
			case '-':
				return matchFew(s, item, rest[1:])
			case '?':
				if s != "" && itemMatches(item, s[0]) && matchHere(s[1:], rest[1:]) {
					return true
				}
				pattern = rest[1:]
				continue
			}
		}
		if s == "" || !itemMatches(item, s[0]) {
			return false
		}
		s, pattern = s[1:], rest
	}
}

func matchMany(s, item, rest string, least int) bool {
	n := 0
	for n < len(s) && itemMatches(item, s[n]) {
		n++
	}
	for ; n >= least; n-- {
		if matchHere(s[n:], rest) {
			return true
		}
	}
	return false
}

func matchFew(s, item, rest string) bool {
	for n := 0; ; n++ {
		if matchHere(s[n:], rest) {
			return true
		}
		if n == len(s) || !itemMatches(item, s[n]) {
			return false
		}
	}
}

// itemSize returns the length of the single-character item that the pattern begins with.
func itemSize(pattern string) int {
	switch pattern[0] {
	case '%':
		return min(2, len(pattern))
	case '[':
		i := 1
		if i < len(pattern) && pattern[i] == '^' {
			i++
		}
		for first := true; i < len(pattern); first = false {
			if pattern[i] == ']' && !first {
				return i + 1
			}
			if pattern[i] == '%' {
				i++
			}
			i++
		}
		return len(pattern)
	}
	return 1
}

func itemMatches(item string, c byte) bool {
	switch {
	case item == ".":
		return true
	case item[0] == '%' && len(item) == 2:
		return classMatches(item[1], c)
	case item[0] == '[' && len(item) > 2:
		return setMatches(item[1:len(item)-1], c)
	}
	return item[0] == c
}

func setMatches(set string, c byte) bool {
	set, negated := strings.CutPrefix(set, "^")
	for i := 0; i < len(set); i++ {
		switch {
		case set[i] == '%' && i+1 < len(set):
			i++
			if classMatches(set[i], c) {
				return !negated
			}
		case i+2 < len(set) && set[i+1] == '-':
			if set[i] <= c && c <= set[i+2] {
				return !negated
			}
			i += 2
		case set[i] == c:
			return !negated
		}
	}
	return negated
}

func classMatches(class, c byte) bool {
	letter := 'a' <= c|0x20 && c|0x20 <= 'z'
	digit := '0' <= c && c <= '9'
	printable := ' ' < c && c < 0x7f
	var in bool
	switch class | 0x20 {
	case 'a':
		in = letter
	case 'c':
		in = c < ' ' || c == 0x7f
	case 'd':
		in = digit
	case 'l':
		in = 'a' <= c && c <= 'z'
	case 'p':
		in = printable && !letter && !digit
	case 's':
		in = c == ' ' || '\t' <= c && c <= '\r'
	case 'u':
		in = 'A' <= c && c <= 'Z'
	case 'w':
		in = letter || digit
	case 'x':
		in = digit || 'a' <= c|0x20 && c|0x20 <= 'f'
	default:
		return class == c
	}
	if class < 'a' {
		return !in
	}
	return in
}

// checkPattern returns an error for a pattern that raises in Lua, and for one that is not simulated.
func checkPattern(pattern string) error {
	for i := 0; i < len(pattern); i++ {
		size := itemSize(pattern[i:])
		item := pattern[i : i+size]
		switch {
		case item == "%":
			return errors.New("malformed pattern (ends with '%')")
		case item[0] == '%' && strings.IndexByte("bf0123456789", item[1]) >= 0:
			return fmt.Errorf("pattern item %s is not simulated", item)
		case item[0] == '[' && (len(item) < 3 || item[len(item)-1] != ']'):
			return errors.New("malformed pattern (missing ']')")
		}
		i += size - 1
	}
	return nil
}
