package schema

import (
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// show describes n for a message: scalars by their value, others by their kind.
func show(n *node) string {
	switch n.kind {
	case kindNull:
		return "null"
	case kindBool, kindNumber:
		return docpath.Shorten(n.text)
	case kindString:
		return strconv.Quote(docpath.Shorten(n.text))
	case kindArray:
		return "an array"
	default:
		return "an object"
	}
}

// exactInteger parses a JSON number as an integer, in any form: Lua's cjson prints large integers as 1e+15, and some
// encoders print 86400.0. It rejects a fraction and numbers outside of int64.
func exactInteger(number string) (int64, bool) {
	mantissa, exponentText, hasExponent := strings.Cut(strings.ToLower(number), "e")
	sign, mantissa := cutSign(mantissa)
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return 0, true
	}
	exponent := 0
	if hasExponent {
		var err error
		if exponent, err = strconv.Atoi(exponentText); err != nil {
			return 0, false // an exponent this large is none of an int64
		}
	}
	const int64Digits = 19
	if exponent < -maxDocumentBytes || exponent > int64Digits+len(fraction) {
		return 0, false
	}
	zeros := exponent - len(fraction) + len(digits) - len(significant)
	if zeros < 0 || zeros+len(significant) > int64Digits {
		return 0, false
	}
	value, err := strconv.ParseInt(sign+significant+strings.Repeat("0", zeros), 10, 64)
	return value, err == nil
}

func cutSign(number string) (sign, rest string) {
	if rest, ok := strings.CutPrefix(number, "-"); ok {
		return "-", rest
	}
	return "", number
}
