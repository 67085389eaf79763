// Package pgtext makes texts of clients fit for Postgres.
package pgtext

import "strings"

// Storable returns a text as Postgres can store it: UTF-8 without NUL.
func Storable(text string) string {
	const replacement = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(text, replacement), "\x00", replacement)
}
