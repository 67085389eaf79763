package spec

import "testing"

func TestACostOfAnEndpointReachesARunningNodeAndEndsWithItsRow(t *testing.T) {
	t.Parallel()
	g := govern(t)
	operator := &plane{t: t, dsn: g.dsn}
	write := func(args ...string) {
		t.Helper()
		operator.operate(append(args, "--reason", "a test")...)
		g.awaitEnforced()
	}
	write("policy", "put", "hour", "--tier", "enterprise", "--limit", "10", "--window", "31536000",
		"--algorithm", "fixed_window")
	write("cost", "put", "GET /records", "--cost", "4")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice") // 8 of 10
	write("cost", "put", "GET /records", "--cost", "0")
	g.want([]int{200, 200, 200, 200}, "/records", "apikey", "alice")
	write("cost", "delete", "GET /records")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice") // the last 2
}
