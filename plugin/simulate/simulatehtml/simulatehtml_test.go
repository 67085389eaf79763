package simulatehtml_test

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate/simulatehtml"
)

func TestThePageHasChartsAndNeedsNoNetwork(t *testing.T) {
	r := simulate.Report{About: "a <b> fleet", Timeline: []simulate.Point{
		{At: 1, Offered: 10, Admitted: 8, RedisOps: 3}, {At: 2, Offered: 20, Admitted: 9, RedisOps: 4, Degraded: 1},
	}}
	var page strings.Builder
	if err := simulatehtml.Write(&page, &r); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(page.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
	text = strings.ReplaceAll(text, `xmlns:xlink="http://www.w3.org/1999/xlink"`, "")
	if strings.Count(text, "<svg") != 3 || !strings.Contains(text, "a &lt;b&gt; fleet") || strings.Contains(text, "http") {
		t.Errorf("the page is\n%s", text)
	}
}
