package kongplugin

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

// BenchmarkSocket drives events through the socket of the built plugin server and through that of a plugin that asks
// the same question and sets the same headers with go-pdk's own client and server. The two are measured in turns
// within one run, each in a process of its own with one thread, so the ratio holds on a noisy machine.
func BenchmarkSocket(b *testing.B) {
	const connections, turn = 8, 2000
	dir := b.TempDir()
	ours := startPlugin(b, dir, "tenant-rate-limiting", "../cmd/tenant-rate-limiting", `{"__seq__":1,"tenant_from":["consumer.custom_id"],"tiers":[{"name":"a","limits":[{"name":"burst","scope":"tenant","limit":1000000000,"window_size":1}]}]}`)
	theirs := startPlugin(b, dir, "gopdk", "./internal/gopdkplugin", `{"__seq__":1}`)
	var took [2]time.Duration
	events := 0
	for b.Loop() {
		for i, driver := range []*driver{ours, theirs} {
			start := time.Now()
			driver.run(b, connections, turn)
			took[i] += time.Since(start)
		}
		events += turn
	}
	b.ReportMetric(float64(events)/took[0].Seconds(), "ours-events/s")
	b.ReportMetric(float64(events)/took[1].Seconds(), "go-pdk-events/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
	b.ReportMetric(0, "ns/op") // of both together: says nothing
}

// driver plays Kong's workers.
type driver struct {
	instance int32
	conns    []*kong
	dial     func() *kong
}

func startPlugin(b *testing.B, dir, name, source, config string) *driver {
	b.Helper()
	binary := filepath.Join(dir, name)
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", source, err, out)
	}
	ctx, stop := context.WithCancel(context.Background())
	process := exec.CommandContext(ctx, binary, "-kong-prefix", dir)
	process.Env = []string{"GOMAXPROCS=1"}
	process.Stderr = os.Stderr
	if name == "tenant-rate-limiting" {
		process.Args = append(process.Args, "-log-level", "error")
	}
	if err := process.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stop()
		_ = process.Wait() // ended by us
	})
	d := &driver{dial: func() *kong {
		c, err := net.Dial("unix", binary+".socket")
		if err != nil {
			return nil
		}
		b.Cleanup(func() { c.Close() })
		return newKong(b, c)
	}}
	for deadline := time.Now().Add(10 * time.Second); len(d.conns) == 0; {
		if k := d.dial(); k != nil {
			d.conns = append(d.conns, k)
		} else if time.Now().After(deadline) {
			b.Fatalf("%s does not listen", name)
		}
	}
	d.instance = d.conns[0].startRaw([]byte(config))
	return d
}

// run spreads events over connections.
func (d *driver) run(b *testing.B, connections, events int) {
	for len(d.conns) < connections {
		d.conns = append(d.conns, d.dial())
	}
	var group sync.WaitGroup
	for _, k := range d.conns {
		k.answers["kong.client.get_consumer"] = []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme")
		group.Go(func() {
			for range events / connections {
				if err := k.fastEvent(d.instance); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// fastEvent runs an event without looking into it: every question is answered with the consumer, set_headers with
// nothing. It must cost little, because it is measured with the plugin.
func (k *kong) fastEvent(id int32) error {
	k.sequence++
	k.out = k.out[:0]
	k.out, k.start = beginFrame(k.out)
	k.out = appendVarint(k.out, 1, uint64(k.sequence))
	k.out = append(k.out, 0xa2, 0x02, 0x0a, 0x12, 0x06, 'a', 'c', 'c', 'e', 's', 's', 0x08, byte(id))
	endFrame(k.out, k.start)
	if _, err := k.net.Write(k.out); err != nil {
		return err
	}
	for {
		method, err := k.frames.read(maxFrame)
		if err != nil {
			return err
		}
		if len(method) == 0 {
			_, err := k.frames.read(maxFrame)
			return err
		}
		k.out = k.out[:0]
		if string(method) == "kong.response.set_headers" {
			k.out = appendFrame(k.out, nil)
		} else {
			k.out = appendFrame(k.out, k.answers["kong.client.get_consumer"])
		}
		if _, err := k.frames.read(maxFrame); err != nil {
			return err
		}
		if _, err := k.net.Write(k.out); err != nil {
			return err
		}
	}
}

func BenchmarkDecodeConsumer(b *testing.B) {
	answer := []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme*\x08org:acme*\x0ftier:enterprise\x10\xc8\xc7\x84\xd8\x06")
	var c identity.Consumer
	b.ReportAllocs()
	for b.Loop() {
		if err := decodeConsumer(answer, &c); err != nil {
			b.Fatal(err)
		}
	}
}
