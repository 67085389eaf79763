package cli

import "strings"

// csvLine returns a line of CSV (RFC 4180, with \n). Every cell is quoted, and none is a formula; see csvText.
func csvLine(cells ...string) string {
	quoted := make([]string, len(cells))
	for i, cell := range cells {
		quoted[i] = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
	}
	return strings.Join(quoted, ",") + "\n"
}

const (
	// formulaStarts begin a formula in a spreadsheet, also in their full-width forms. The apostrophe is one of them so
	// that a name that begins with it stays distinct.
	formulaStarts = "=+-@'\t\r\n＝＋－＠"
	// cellStarts are what a program may split a text at although it is quoted, such as one that expects semicolons.
	cellStarts = ",;|\t\r\n\""
)

// csvText returns a text that no spreadsheet takes for a formula. It puts an apostrophe before each character that
// begins a formula, at the begin of the text and where a program may split it.
func csvText(text string) string {
	var b strings.Builder
	begins := true
	for _, r := range text {
		if begins && strings.ContainsRune(formulaStarts, r) {
			b.WriteByte('\'')
		}
		b.WriteRune(r)
		begins = strings.ContainsRune(cellStarts, r)
	}
	return b.String()
}
