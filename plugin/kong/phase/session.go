package phase

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
)

// session is the memory of one connection. Each event reuses it.
type session struct {
	exchange admit.Exchange
	interner *wire.Interner
	headers  []wire.Header

	// of the current event
	event    *wire.Event
	instance *instance

	// of the current Read
	req       *identity.Request
	decoders  []decoder
	questions []wire.Question
	decode    func(i int, answer []byte) error // sets the fact of the answer to the question at i
}

// sessionOf returns the session of the event's connection.
func sessionOf(e *wire.Event) *session {
	if s, ok := e.Local.(*session); ok {
		return s
	}
	s := &session{interner: wire.NewInterner()}
	s.decode = func(i int, answer []byte) error { return s.decoders[i](answer, s.interner, s.req) }
	e.Local = s
	return s
}

// Read reads facts from Kong in one round trip. It implements admit.FactSource.
func (s *session) Read(_ context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	now := s.event.Began()
	if facts&identity.RouteFact != 0 && s.instance.fillRoute(req, now) {
		facts &^= identity.RouteFact
	}
	s.questions, s.decoders, s.req = s.questions[:0], s.decoders[:0], req
	for i := range questions {
		if facts&questions[i].fact != 0 {
			s.addQuestion(&questions[i])
		}
	}
	if facts&identity.HeaderFacts != 0 {
		headers := s.instance.headers.questionsFor(rules)
		req.Headers = append(req.Headers[:0], headers.empty...)
		for i := range headers.questions {
			s.addQuestion(&headers.questions[i])
		}
	}
	if err := s.event.Ask(s.questions, s.decode); err != nil {
		return err
	}
	if facts&identity.RouteFact != 0 {
		s.instance.keepRoute(req, now)
	}
	return nil
}

// addQuestion adds a question to those that Read sends.
func (s *session) addQuestion(q *question) {
	s.questions = append(s.questions, q.ask)
	s.decoders = append(s.decoders, q.decode)
}

// respond sends the decision to Kong.
func (s *session) respond() {
	r := &s.exchange.Response
	if s.instance.traces && !r.Usage {
		s.event.SetSerializeValue(serializedAs, trace(&s.exchange.Decision))
	}
	if token := s.exchange.Reservation; token != "" {
		s.event.SetShared(sharedReservation, token)
	}
	s.headers = s.headers[:0]
	for _, h := range r.Headers {
		s.headers = append(s.headers, wire.Header(h))
	}
	if r.Denied || r.Usage {
		s.event.Exit(r.Status, s.headers, r.Body)
		return
	}
	s.event.SetHeaders(s.headers)
}

// serializedAs is the key under which Kong's log plugins write the decision.
const serializedAs = "rate_limit"

// trace returns the decision as Kong's log plugins write it. It is sent only if the config has log_decisions, and
// allocates.
func trace(d *decision.Decision) wire.Struct {
	t := wire.Struct{}.Text("result", d.Result.String()).Text("mode", d.Mode.String()).
		Text("tier", d.Resolution.Tier).Text("endpoint", d.Resolution.Endpoint)
	if d.Reason != decision.Counted {
		t = t.Text("reason", d.Reason.String())
	}
	t = t.Text("exempt_by", d.Resolution.Exemption.Source())
	if d.Denied() && d.RetryAfter != limit.Never {
		t = t.Number("retry_after", d.RetryAfter.Seconds())
	}
	if d.Binding >= 0 && d.Binding < len(d.Statuses) {
		p, status := d.Resolution.Bounds[d.Binding].Policy, &d.Statuses[d.Binding]
		t = t.Text("policy", p.Name)
		if p.Row != 0 {
			t = t.Number("policy_id", p.Row)
		}
		t = t.Number("limit", p.Limit.Spec().Burst).
			Number("remaining", status.Remaining).
			Text("source", status.Source.String())
	}
	if d.PolicyVersion != 0 {
		t = t.Number("policy_version", d.PolicyVersion)
	}
	return t.Flag("shadow_denied", d.ShadowDenied).Flag("degraded", d.Degraded)
}
