package pgtest

import "syscall"

// endWithParent has a process end with the one that started it: a test that is killed leaves no server behind.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
