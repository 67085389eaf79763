//go:build !linux

package pgtest

// memoryFolder returns the default folder: other systems have no known folder in memory.
func memoryFolder() (parent, prefix string) { return "", "pg" }
