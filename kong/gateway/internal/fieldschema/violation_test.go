package fieldschema

import "testing"

func TestMessagesQuoteAsPenlightDoes(t *testing.T) {
	faults := func(entries map[any]any) *table { return &table{entries: entries} }
	for _, c := range []struct {
		faults *table
		want   string
	}{
		{faults(map[any]any{"a": "b"}), "{\n  a = \"b\"\n}"},
		{
			faults(map[any]any{1: "x", 3: "z", "end": "k", "a-b": `q"\`}),
			"{\n  \"x\",\n  [\"a-b\"] = \"q\\\"\\\\\",\n  [\"end\"] = \"k\",\n  [3] = \"z\"\n}",
		},
		{faults(map[any]any{"a": "x]"}), "{\n  a = [=[x]]=]\n}"},
		{faults(map[any]any{"a": "x\ny"}), "{\n  a = [[x\ny]]\n}"},
		{faults(map[any]any{"a": "[==[x"}), "{\n  a = [===[[==[x]===]\n}"},
	} {
		if got := pretty(c.faults); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
