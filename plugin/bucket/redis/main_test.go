package redis

import (
	"flag"
	"strconv"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// TestMain fails the tests when a goroutine outlives them. Properties of a store run over eight transports, so the
// short form has fewer cases of each than rapid's 100.
func TestMain(m *testing.M) {
	flag.Parse()
	if !isSet("rapid.checks") {
		if err := flag.Set("rapid.checks", strconv.Itoa(soak.Count(25, 100))); err != nil {
			panic(err)
		}
	}
	leaktest.Main(m)
}

// isSet reports whether a flag was given.
func isSet(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}
