//go:build !linux

package pgtest

import "syscall"

// memoryFolder returns the default folder: other systems have no known folder in memory.
func memoryFolder() (parent, prefix string) { return "", "pg" }

// lockRun returns no path: packages share no folder.
func lockRun(string) (dir string, unlock func() error, err error) { return "", nil, nil }

// endWithParent does nothing: other systems cannot, so a killed test leaves its server behind.
func endWithParent(*syscall.SysProcAttr) {}
