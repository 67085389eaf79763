package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

var completionCommand = &command{
	words: "completion",
	args:  "SHELL",
	brief: "print the completion script for bash, zsh or fish",
	least: 1,
	most:  1,
	about: `The script completes commands, flags and their values, and the names of tenants, policies and tiers if
RATELIMIT_DATABASE or the flags before them name the database.

  ratelimit completion bash > /etc/bash_completion.d/ratelimit
  ratelimit completion zsh > "${fpath[1]}/_ratelimit"
  ratelimit completion fish > ~/.config/fish/completions/ratelimit.fish`,
	define: func(c *call) action {
		c.cobra.ValidArgs = []string{"bash", "zsh", "fish"}
		return func(context.Context) error {
			// A script has tabs, which a screen replaces. It is made of nothing but the names and texts of commands.
			switch root, out := c.cobra.Root(), c.stdout.to; c.arg() {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return wrong("%q: the shell must be bash, zsh or fish", c.arg())
		}
	},
}

// manCommand writes the man pages that packages install.
var manCommand = &command{
	words: "man", args: "DIR", brief: "write a man page for each command to a directory", least: 1, most: 1,
	about: `  ratelimit man /usr/local/share/man/man1`,
	define: func(c *call) action {
		return func(context.Context) error {
			if err := os.MkdirAll(c.arg(), 0o755); err != nil {
				return err
			}
			root := c.cobra.Root()
			root.DisableAutoGenTag = true
			header := doc.GenManHeader{
				Section: "1",
				Source:  "tenant-rate-limiting " + process.Version,
				Manual:  "tenant-rate-limiting",
			}
			if err := doc.GenManTree(root, &header, c.arg()); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		}
	},
}
