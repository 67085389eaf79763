// The command demo-gateway runs the stand-in gateway in front of a plugin server, and on demand a short scripted
// session through it that shows what the plugin does and fails when it does something else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
