package cli

import (
	"encoding/csv"
	"slices"
	"strings"
	"testing"
	"testing/quick"
)

func TestNoCellOfCSVIsAFormulaAndNoneIsLost(t *testing.T) {
	for text, want := range map[string]string{
		"acme": "acme", "": "", "GET /a": "GET /a", "a=b-c": "a=b-c",
		"=cmd|' /C calc'!A0": "'=cmd|'' /C calc'!A0", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)",
		"\t=1": "'\t'=1", "\r=1": "'\r'=1", "\n=1": "'\n'=1", "＝1": "'＝1", "'=1": "''=1",
		"a;=1": "a;'=1", "a,\"=1": "a,\"'=1", "a\n-1": "a\n'-1",
	} {
		if got := csvText(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestALineOfCSVIsReadAsItsCells(t *testing.T) {
	is := func(a, b string) bool {
		a, b = strings.ReplaceAll(a, "\r", ""), strings.ReplaceAll(b, "\r", "") // the reader drops those before a \n
		read, err := csv.NewReader(strings.NewReader(csvLine(a, b, ""))).Read()
		return err == nil && slices.Equal(read, []string{a, b, ""})
	}
	if err := quick.Check(is, nil); err != nil {
		t.Error(err)
	}
	if !is("a,\"b\"\n=cmd", ";\n\n") {
		t.Error("a line with quotes and newlines is read as another one")
	}
}

func TestDifferentTextsStayDifferentInCSV(t *testing.T) {
	alphabet := []rune("=';\n\"a")
	seen := map[string]string{}
	var add func(text string)
	add = func(text string) {
		guarded := csvText(text)
		if other, ok := seen[guarded]; ok {
			t.Fatalf("%q and %q are both %q", text, other, guarded)
		}
		seen[guarded] = text
		if len(text) == 6 {
			return
		}
		for _, r := range alphabet {
			add(text + string(r))
		}
	}
	add("")
}
