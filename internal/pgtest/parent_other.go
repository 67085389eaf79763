//go:build !linux

package pgtest

import "syscall"

// endWithParent does nothing: other systems cannot, so a killed test leaves its server behind.
func endWithParent(*syscall.SysProcAttr) {}
