// The command tenant-rate-limiting is the plugin server that Kong starts. The plugin is known in Kong by the name of
// its executable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/server"
)

func main() {
	// stderr is a pipe to one of Kong's workers, which may go before we do. SIGHUP is for the supervisor alone, which
	// takes it later.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGQUIT, os.Interrupt)
	code := server.Run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
