//go:build !linux

package pgtest

// swift is no place where the kernel has none in memory.
func swift() (place, prefix string) { return "", "pg" }
