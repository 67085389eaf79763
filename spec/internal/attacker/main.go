// The command attacker sends one HTTP request repeatedly, on many connections at once, until its standard input ends.
// Then it prints the number of answers. It is a separate program so that it can run with a lower priority than the
// server.
//
//	attacker -connections 40 [-slow] ADDRESS FILE
//
// FILE has the bytes of the request.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// byteTime is the pause of a slow attacker before each byte of the second half of a request.
const byteTime = 10 * time.Millisecond

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
}

func run(args []string, until io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("attacker", flag.ContinueOnError)
	connections := flags.Int("connections", 1, "`number` of connections")
	slow := flags.Bool("slow", false, "send the second half of the request a byte at a time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("want an address and a file")
	}
	request, err := os.ReadFile(flags.Arg(1))
	if err != nil {
		return err
	}
	a := &attack{address: flags.Arg(0), request: request, slow: *slow}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	failures := make(chan error, *connections)
	var together sync.WaitGroup
	for range *connections {
		together.Go(func() { failures <- a.connect(ctx) })
	}
	if _, err := io.Copy(io.Discard, until); err != nil {
		return err
	}
	stop()
	together.Wait()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	_, printed := fmt.Fprintln(out, a.answers.Load())
	return errors.Join(err, printed)
}

// attack is what all connections send, and what came of it.
type attack struct {
	address string
	request []byte
	slow    bool
	answers atomic.Int64
}

// connect attacks on one connection after the other, until ctx ends.
func (a *attack) connect(ctx context.Context) error {
	for ctx.Err() == nil {
		connection, err := net.Dial("tcp", a.address)
		if err != nil {
			return err
		}
		// An answer that is late does not hold up the end of the attack.
		forget := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Now()) })
		a.use(ctx, connection)
		forget()
		if err := connection.Close(); err != nil {
			return err
		}
	}
	return nil
}

// use sends the request on a connection until the server closes it, or ctx ends.
func (a *attack) use(ctx context.Context, connection net.Conn) {
	from := bufio.NewReader(connection)
	for ctx.Err() == nil && a.write(ctx, connection) && a.read(from) {
	}
}

// read reads an answer, and reports whether the connection can be used again.
func (a *attack) read(from *bufio.Reader) bool {
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		return false
	}
	a.answers.Add(1)
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close()) == nil && !response.Close
}

// write writes the request, and reports whether an answer can follow. A server may answer before it has read all: then
// the rest is not taken, and the answer is there to be read.
func (a *attack) write(ctx context.Context, to net.Conn) bool {
	if !a.slow {
		_, err := to.Write(a.request)
		return err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	}
	_, err := to.Write(a.request[:len(a.request)/2])
	for i := len(a.request) / 2; err == nil && i < len(a.request) && ctx.Err() == nil; i++ {
		time.Sleep(byteTime)
		_, err = to.Write(a.request[i : i+1])
	}
	return err == nil
}
