package pgtest

import "syscall"

// endWithParent makes a process end with its parent, so that a killed test leaves no server behind.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
