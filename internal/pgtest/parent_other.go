//go:build !linux

package pgtest

import "syscall"

// endWithParent does nothing where the kernel offers nothing for it: a test that is killed leaves its server behind.
func endWithParent(*syscall.SysProcAttr) {}
