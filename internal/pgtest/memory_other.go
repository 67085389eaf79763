//go:build !linux

package pgtest

// memoryFolder returns the default folder: other systems have no known folder in memory.
func memoryFolder() (parent, prefix string) { return "", "pg" }

// lockRun returns no path: packages share no folder.
func lockRun(string) (dir string, unlock func() error, err error) { return "", nil, nil }
