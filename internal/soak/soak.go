// Package soak gives a test a short form for every day and a long form for make soak, which sets SOAK in the
// environment. Both forms check the same promise: the short one with less load, fewer steps or a shorter run.
//
// The name of such a test has Soak in it: that is how make soak finds it.
package soak

import (
	"os"
	"testing"
	"time"
)

// variable names the duration that a test that runs for a while takes in its long form.
const variable = "SOAK"

// For returns how long a test runs: as long as SOAK says, or else short.
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

// Count returns how many steps, buckets or tenants a test plays: short, or long where SOAK is set.
func Count(short, long int) int {
	if os.Getenv(variable) == "" {
		return short
	}
	return long
}
