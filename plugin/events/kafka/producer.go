//go:build !nokafka

package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

const (
	// maxRequest bounds one request of events of a partition, in bytes before compression. A topic must take that much.
	maxRequest = 512 << 10
	// maxBuffered and maxBufferedBytes bound the events that Kafka has not acknowledged, of all calls of Send.
	maxBuffered      = 10_000
	maxBufferedBytes = 16 << 20
	// dialTime, replicateTime and answerTime bound a connection, the time that a broker has to reach its replicas, and
	// the time that its answer may take beyond that.
	dialTime      = 5 * time.Second
	replicateTime = 5 * time.Second
	answerTime    = 5 * time.Second
)

// Producer sends events to one topic. Its methods are not for concurrent use.
type Producer struct {
	topic  string
	client *kgo.Client
	faults *faults
	sent   map[string]*outcome // by the id of the event
}

type outcome struct {
	done chan struct{} // closed: Kafka has answered, or never will
	err  error         // nil: it is stored; set before done is closed
}

// New makes a producer. It opens no connection. The options must be valid.
func New(o Options, topic string) (*Producer, error) {
	all, err := o.client()
	if err != nil {
		return nil, err
	}
	p := &Producer{topic: topic, faults: &faults{by: map[string]string{}}, sent: map[string]*outcome{}}
	p.client, err = kgo.NewClient(append(all,
		kgo.ClientID("tenant-rate-limiting"),
		kgo.WithHooks(p.faults),
		kgo.DisableClientMetrics(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProduceRequestTimeout(replicateTime),
		kgo.RequestTimeoutOverhead(answerTime),
		kgo.ProducerBatchMaxBytes(maxRequest),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.MaxBufferedBytes(maxBufferedBytes),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make a client of Kafka: %w", err)
	}
	return p, nil
}

// Send sends a batch, and returns nil when Kafka has stored all of it. Any other result is an [*Unsent]. Send returns
// soon after ctx ends; then Kafka may still store what is pending. Send an event again, with its id, to wait for its
// answer: a pending event is not written again.
func (p *Producer) Send(ctx context.Context, batch []events.Event) error {
	for _, e := range batch {
		if p.sent[e.ID] == nil {
			p.produce(e)
		}
	}
	left, pending := &Unsent{}, map[string]bool{}
	for i, e := range batch {
		err := p.sent[e.ID].await(ctx)
		left.add(i, err)
		pending[e.ID] = errors.Is(err, errPending)
	}
	maps.DeleteFunc(p.sent, func(id string, o *outcome) bool { return o.isDone() && !pending[id] })
	if len(left.retry)+len(left.rejected) == 0 {
		p.faults.reset()
		return nil
	}
	left.reason = cmp.Or(left.reason, p.faults.text(), "no acknowledgement from Kafka")
	return left
}

// produce hands an event to the client, without waiting.
func (p *Producer) produce(e events.Event) {
	o := &outcome{done: make(chan struct{})}
	p.sent[e.ID] = o
	text, err := e.JSON()
	if err != nil {
		o.err = fmt.Errorf("%w: %w", errInvalid, err)
		close(o.done)
		return
	}
	record := &kgo.Record{
		Topic: p.topic, Value: text,
		Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(events.MediaType + "; charset=UTF-8")}},
	}
	if e.Tenant != "" {
		record.Key = []byte(events.Text(e.Tenant))
	}
	p.client.TryProduce(context.Background(), record, func(_ *kgo.Record, err error) {
		o.err = err
		close(o.done)
	})
}

// Close closes the connections. Events that Kafka has not acknowledged may be stored or not.
func (p *Producer) Close() { p.client.Close() }

var errPending = errors.New("pending")

// await returns the result of an event when it is there, or errPending when ctx ends.
func (o *outcome) await(ctx context.Context) error {
	if o.isDone() {
		return o.err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return errPending
	}
}

func (o *outcome) isDone() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

var errInvalid = errors.New("it is no CloudEvent")

// permanent lists the errors of an event that is never stored, whatever is retried.
var permanent = []error{
	errInvalid, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
	kerr.UnsupportedForMessageFormat,
}

func (u *Unsent) add(i int, err error) {
	switch {
	case err == nil:
		return
	case errors.Is(err, errPending):
		u.pending = true
		u.retry = append(u.retry, i)
		return
	case slices.ContainsFunc(permanent, func(target error) bool { return errors.Is(err, target) }):
		u.rejected = append(u.rejected, i)
	default:
		u.retry = append(u.retry, i)
	}
	if u.reason == "" {
		u.reason = describe(err)
	}
}

// describe returns the text of an error without what differs from one batch to the next, such as sizes.
func describe(err error) string {
	if code := new(kerr.Error); errors.As(err, &code) {
		return code.Error()
	}
	return err.Error()
}

// mechanism returns how a client authenticates. It must not be called without SASL.
func (o *Options) mechanism() sasl.Mechanism {
	if o.SASL == "PLAIN" {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := o.password()
			return plain.Auth{User: o.User, Pass: password}, err
		})
	}
	authenticate := func(context.Context) (scram.Auth, error) {
		password, err := o.password()
		return scram.Auth{User: o.User, Pass: password}, err
	}
	if o.SASL == "SCRAM-SHA-256" {
		return scram.Sha256(authenticate)
	}
	return scram.Sha512(authenticate)
}

func (o *Options) client() ([]kgo.Opt, error) {
	encryption, err := o.tlsConfig()
	if err != nil {
		return nil, err
	}
	all := []kgo.Opt{kgo.SeedBrokers(o.Brokers...)}
	if encryption != nil {
		all = append(all, kgo.DialTLSConfig(encryption))
	}
	if o.SASL != "" {
		all = append(all, kgo.SASL(o.mechanism()))
	}
	if o.dial != nil {
		all = append(all, kgo.Dialer(o.dial))
	} else {
		all = append(all, kgo.DialTimeout(dialTime))
	}
	return all, nil
}

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
