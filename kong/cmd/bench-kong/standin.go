package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// standIn is a running demo-gateway.
type standIn struct {
	url     string
	command *exec.Cmd
	dir     string
}

// startStandIn starts the stand-in gateway with the routes of the bench. It has one worker, like the Kong of our
// tables.
func startStandIn(ctx context.Context, s *settings, b *bench, stderr io.Writer) (*standIn, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	g := &standIn{dir: dir}
	if err := g.start(ctx, s, b, stderr); err != nil {
		return nil, errors.Join(err, g.stop())
	}
	return g, nil
}

func (g *standIn) start(ctx context.Context, s *settings, b *bench, stderr io.Writer) error {
	path := filepath.Join(g.dir, "kong.yml")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(b.writeDeclarative(file), file.Close()); err != nil {
		return err
	}
	args := []string{"-config", path, "-listen", "127.0.0.1:0", "-workers", "1"}
	for _, plugin := range s.plugins {
		args = append(args, "-plugin", plugin)
	}
	g.command = exec.CommandContext(context.WithoutCancel(ctx), s.standIn, args...)
	g.command.Stderr = stderr
	g.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for this program, which ends it
	output, err := g.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := g.command.Start(); err != nil {
		g.command = nil
		return fmt.Errorf("start the stand-in: %w", err)
	}
	first, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the stand-in has ended: %w", err)
	}
	fields := strings.Fields(first) // gateway URL plugin pid N
	if len(fields) < 2 || fields[0] != "gateway" {
		return fmt.Errorf("the stand-in printed %q, not its address", first)
	}
	g.url = fields[1]
	go func() { _, _ = io.Copy(io.Discard, output) }() // ends with the process
	return nil
}

// stop ends the stand-in, if it runs, and removes its files.
func (g *standIn) stop() (err error) {
	if g.command != nil {
		err = g.command.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, g.command.Wait())
	}
	return errors.Join(err, os.RemoveAll(g.dir))
}
