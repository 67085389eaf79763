//go:build !nokafka

package kafka

import (
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// faults remembers what is wrong with the brokers: the client retries without an error, and events only wait.
type faults struct {
	mu sync.Mutex
	by map[string]string // the last error of each broker and kind of request, by their names
}

var (
	_ kgo.HookBrokerConnect = (*faults)(nil)
	_ kgo.HookBrokerE2E     = (*faults)(nil)
)

// OnBrokerConnect implements [kgo.HookBrokerConnect]. A connection is made once the broker has authenticated it.
func (f *faults) OnBrokerConnect(broker kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	f.record(broker, "connect", err)
}

// OnBrokerE2E implements [kgo.HookBrokerE2E].
func (f *faults) OnBrokerE2E(broker kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	f.record(broker, kmsg.NameForKey(key), e2e.Err())
}

func (f *faults) record(broker kgo.BrokerMetadata, action string, err error) {
	name := "broker " + net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port))) + ": " + action
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.by, name)
		return
	}
	// The error of a connection has its local port, which differs each time.
	if network := new(net.OpError); errors.As(err, &network) {
		err = network.Err
	}
	f.by[name] = name + ": " + err.Error()
}

// text returns one of the errors, always the same one while it lasts, or "".
func (f *faults) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.by)) {
		return f.by[name]
	}
	return ""
}

// reset forgets all errors. A broker that has left the cluster keeps its last one otherwise.
func (f *faults) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.by)
}
