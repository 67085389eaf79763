// Command demo-gateway runs the stand-in gateway in front of a plugin server. With -session it plays a short scripted
// session, and fails if the plugin answers otherwise. With -chats it spends budgets of LLM tokens by concurrent chats,
// and fails if reservations do not keep them.
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
