package phase

import (
	"context"
	"math"
	"net"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// settlements records what is settled, and reads what a rule would read.
type settlements struct {
	needs   settle.Needs
	ids     []string
	answers []settle.Answer
}

func (s *settlements) Settle(ctx context.Context, id string, source reservation.Source) error {
	var a settle.Answer
	err := source.Read(ctx, s.needs, &a)
	s.ids, s.answers = append(s.ids, id), append(s.answers, a)
	return err
}

// settlingServer serves the companion plugin, and returns a worker of Kong with one instance of it.
func settlingServer(t *testing.T, s Settler) (*Settling, *kongtest.Worker, int32) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	server := NewSettling(SettlingOptions{Reservations: s, Budget: await.Longest})
	kongtest.Serve(t, listener, server.Serve)
	k := kongtest.Dial(t, listener.Addr().String())
	return server, k, k.StartInstance(1, "{}")
}

func TestTheLogPhaseSettlesTheReservationOfItsRequest(t *testing.T) {
	s := &settlements{needs: settle.Needs{Log: true, Headers: []string{"x-upstream"}, Shared: []string{"nothing"}}}
	_, k, id := settlingServer(t, s)
	k.Answers = kongtest.AnswersOf(t, "log-chunked")
	k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, structpb.NewStringValue("0123"))
	require.NoError(t, k.LogEvent(id))
	require.Equal(t, []string{"0123"}, s.ids, "settled")
	a := s.answers[0]
	if a.Status != 200 || a.Source != settle.SourceService || !a.Tried || a.Headers["x-upstream"] != "yes" ||
		len(a.Log) < 10 {
		t.Errorf("%+v", a)
	}
}

func TestAHeaderThatCameMoreThanOnceIsNoValue(t *testing.T) {
	s := &settlements{needs: settle.Needs{Headers: []string{"x-nothing", "x-twice", "x-upstream", "x_upstream"}}}
	_, k, id := settlingServer(t, s)
	k.Answers = kongtest.AnswersOf(t, "log-chunked")
	k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, structpb.NewStringValue("0123"))
	k.Answers["kong.response.get_header=x-twice"] = kongtest.Encode(t, &pb.String{V: "one"}) // as Kong answers
	require.NoError(t, k.LogEvent(id))
	want := map[string]string{"x-twice": "", "x-upstream": "yes", "x_upstream": "yes"}
	assert.Equal(t, want, s.answers[0].Headers, "read")
}

func TestAHostileReservationIdSettlesNothing(t *testing.T) {
	for name, value := range map[string]*structpb.Value{
		"null": structpb.NewNullValue(), "a number": structpb.NewNumberValue(7), "true": structpb.NewBoolValue(true),
		"an empty text": structpb.NewStringValue(""),
		"a table":       structpb.NewStructValue(&structpb.Struct{}),
	} {
		t.Run(name, func(t *testing.T) {
			s := &settlements{}
			server, k, id := settlingServer(t, s)
			k.Answers = kongtest.AnswersOf(t, "log-chunked")
			k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, value)
			if err := k.LogEvent(id); err != nil || len(s.ids) != 0 || server.Unreserved() != 1 {
				t.Errorf("%v: settled %q, %d requests without a reservation", err, s.ids, server.Unreserved())
			}
		})
	}
}

// A plugin of Kong can write any token. One that names another process's store makes few questions, and waits.
func TestAForgedTokenCostsABoundedNumberOfQuestions(t *testing.T) {
	clock := func() limit.Micros { return limit.Second }
	table := reservation.New(reservation.Options{Elapsed: clock, Now: clock})
	_, k, id := settlingServer(t, table)
	forged := strings.Repeat("0", 32) + ".0123456789abcdef."
	parked := 0
	for _, c := range []struct {
		name, token string
		questions   int // beside those about every request; -1: the token is none, and nothing is parked
	}{
		{"the log", forged + "l", 1},
		{"all kinds", forged + "l,hx-upstream,snothing", 3},
		{"the most", forged + strings.Repeat(",sn", 64), 1},
		{"too many names", forged + strings.Repeat(",sn", 65), -1},
		{"a long name", forged + "l,s" + strings.Repeat("n", 1000), -1},
		{"a megabyte", forged + strings.Repeat(",sn", 1<<20/3), -1},
		{"no names", forged, 0},
		{"a bucket", strings.Repeat("0", 32) + ".{t=acme}.l", -1},
	} {
		k.Answers = kongtest.AnswersOf(t, "log-chunked")
		k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, structpb.NewStringValue(c.token))
		k.Answers["kong.ctx.shared.get"] = kongtest.Encode(t, structpb.NewNullValue())
		require.NoError(t, k.LogEvent(id), "%s", c.name)
		if c.questions >= 0 {
			parked++
		}
		if n := len(k.Questions) - len(endQuestions); n != max(c.questions, 0) || table.Stats().Parked != parked {
			t.Errorf("%s: %d more questions, want %d; %+v", c.name, n, c.questions, table.Stats())
		}
	}
}

func TestOnlyWhatTheRulesNeedIsAsked(t *testing.T) {
	s := &settlements{}
	_, k, id := settlingServer(t, s)
	k.Answers = kongtest.AnswersOf(t, "log-chunked")
	k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, structpb.NewStringValue("0123"))
	err := k.LogEvent(id)
	assert.True(t, err == nil && len(k.Questions) == len(endQuestions), "%v, questions %q", err, k.Questions)
}

func TestOnlyANumberInKongCtxSharedIsAnAmount(t *testing.T) {
	rule, err := settle.New(schema.Settle{Sources: []schema.SettleSource{{From: "shared.tokens"}}}, nil)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		value *structpb.Value
		want  settle.Outcome
	}{
		"a number":               {structpb.NewNumberValue(7), settle.Measured},
		"a number in a text":     {structpb.NewStringValue("7"), settle.Measured},
		"nothing, or false":      {structpb.NewNullValue(), settle.Unmeasured},
		"null":                   {structpb.NewStringValue("NULL_VALUE"), settle.Unmeasured},
		"true":                   {structpb.NewBoolValue(true), settle.Unmeasured},
		"a negative number":      {structpb.NewNumberValue(-1), settle.Unmeasured},
		"no number":              {structpb.NewNumberValue(math.NaN()), settle.Unmeasured},
		"an infinite number":     {structpb.NewNumberValue(math.Inf(1)), settle.Unmeasured},
		"a number that is large": {structpb.NewNumberValue(1e300), settle.Unmeasured},
		"a table":                {structpb.NewStructValue(&structpb.Struct{}), settle.Unmeasured},
		"a list":                 {structpb.NewListValue(&structpb.ListValue{}), settle.Unmeasured},
		"an empty answer":        {&structpb.Value{}, settle.Unmeasured},
	} {
		s := &settlements{needs: rule.Needs()}
		_, k, id := settlingServer(t, s)
		k.Answers = kongtest.AnswersOf(t, "log-chunked")
		k.Answers["kong.ctx.shared.get=trl"] = kongtest.Encode(t, structpb.NewStringValue("0123"))
		k.Answers["kong.ctx.shared.get=tokens"] = kongtest.Encode(t, test.value)
		if err := k.LogEvent(id); err != nil || len(s.answers) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		actual, outcome := rule.Measure(&s.answers[0], settle.Call{})
		if outcome != test.want || outcome == settle.Measured && actual != 7 {
			t.Errorf("%s: %d, %d, want %d", name, actual, outcome, test.want)
		}
	}
}
