// The command ratelimit is the operator's program.
package main

import (
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/cli"
)

func main() {
	os.Exit(cli.Ratelimit(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
