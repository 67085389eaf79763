// Package soak gives a test a short form and a long form. make soak runs the long form: it sets the environment
// variable SOAK. Both forms check the same promise; the short one has less load, fewer steps or a shorter run.
//
// make soak runs the tests whose names contain Soak.
package soak

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// variable is the environment variable with the duration of the long form.
const variable = "SOAK"

// For returns the duration of SOAK, or short if it is not set.
func For(t testing.TB, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return long
}

// Seed returns the seed of a test's random choices, and logs it. The environment variable SEED sets it; else it is the
// time.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Logf("SEED=%d", seed)
	return seed
}

// Count returns the number of steps, buckets or tenants of a test: long if SOAK is set, else short.
func Count(short, long int) int {
	if os.Getenv(variable) == "" {
		return short
	}
	return long
}
