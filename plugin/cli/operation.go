package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// queryFlags defines a flag for each parameter that a struct has by its tags, as the REST API describes the parameter.
// It returns the query of those that are given.
func (c *call) queryFlags(parameters any, except ...string) url.Values {
	query := url.Values{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(parameters)) {
		if name := f.Tag.Get("query"); name != "" && name != "cursor" && !slices.Contains(except, name) {
			c.queryFlag(query, name, f)
		}
	}
	return query
}

// sets returns what a flag does with its text: the text is a parameter of a query.
func sets(query url.Values, name string) func(string) error {
	return func(text string) error {
		query.Set(name, text)
		return nil
	}
}

func (c *call) queryFlag(query url.Values, name string, f reflect.StructField) {
	flag, usage := strings.ReplaceAll(name, "_", "-"), fieldUsage(f.Tag.Get("doc"))
	if enum := f.Tag.Get("enum"); enum != "" {
		usage += ": " + strings.ReplaceAll(enum, ",", ", ")
	}
	if otherwise := f.Tag.Get("default"); otherwise != "" {
		usage += " (default " + otherwise + ")"
	}
	set := sets(query, name)
	switch {
	case f.Type.Kind() == reflect.Bool:
		c.flags.BoolFunc(flag, usage, set)
		return
	case f.Type == reflect.TypeFor[time.Time]():
		usage = withPlaceholder(usage, "time")
		set = func(text string) error {
			var at time.Time
			err := c.parsePast(text, &at)
			query.Set(name, at.Format(time.RFC3339Nano))
			return err
		}
	case f.Tag.Get("enum") != "":
		values := strings.Split(f.Tag.Get("enum"), ",")
		set = func(text string) error {
			query.Set(name, text)
			return oneOf(text, values)
		}
	case f.Type.Kind() == reflect.Int:
		set = func(text string) error {
			query.Set(name, text)
			return parseCount(text, new(int64))
		}
	}
	c.flags.Func(flag, withPlaceholder(usage, cmp.Or(f.Tag.Get("value"), name)), set)
	if enum := f.Tag.Get("enum"); enum != "" {
		c.complete(flag, strings.Split(enum, ",")...)
	}
}

// pages are those of a list that a command shows.
type pages struct {
	query url.Values
	most  int // rows; 0: all
}

// listFlags defines the flags of a list: its filter, and which rows of it.
func (c *call) listFlags(filter any, except ...string) *pages {
	p := &pages{query: c.queryFlags(filter, except...)}
	c.flags.Func("max", "show at most this `number` of rows (default: all)",
		func(text string) error { return process.ParseInt(text, 1, &p.most) })
	c.flags.Func("after", "only rows after this `id`, to show the next page", func(last string) error {
		p.query.Set("cursor", answers.Cursor(last))
		return nil
	})
	return p
}

func each[T any](ctx context.Context, rest *answers.Client, path string, p *pages) iter.Seq2[T, error] {
	return answers.Each[T](ctx, rest, path, p.query, p.most)
}

// lists returns what a command does that lists the rows of an operation, page by page.
func lists[T any](path string, filter any) func(*call) action {
	return func(c *call) action {
		p := c.listFlags(filter)
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			return showRows(c, each[T](ctx, rest, path, p))
		})
	}
}

// gets returns what a command does that shows the row of its argument.
func gets[T any](path string) func(*call) action {
	return func(c *call) action { return shows[T](c, path, nil) }
}

// shows defines the flags of a command that shows an answer, and returns what it does.
func shows[T any](c *call, path string, query url.Values) action {
	return c.asks(func(ctx context.Context, rest *answers.Client) error {
		var answer T
		if err := rest.Get(ctx, c.path(path), query, &answer); err != nil {
			return err
		}
		return c.print(&answer, nil)
	})
}

// showsItems is shows for an answer that is a list in one page.
func showsItems[T any](c *call, path string, query url.Values) action {
	return c.asks(func(ctx context.Context, rest *answers.Client) error {
		var found answers.Page[T]
		if err := rest.Get(ctx, c.path(path), query, &found); err != nil {
			return err
		}
		return c.print(listed(found.Items), nil)
	})
}

// every selects a row by its id, whichever org it is of.
const every = "?every=true"

// path returns a path with the first argument in place of {}.
func (c *call) path(path string) string {
	return strings.Replace(path, "{}", answers.PathSegment(c.arg()), 1)
}

// overFlag defines the optimistic lock of a write that needs one or overwrite, and returns the query with it.
func (c *call) overFlag() url.Values {
	return c.revisionFlag(url.Values{"overwrite": {"true"}})
}

// revisionFlag defines the optimistic lock of a write, and returns the query, which gets it.
func (c *call) revisionFlag(query url.Values) url.Values {
	c.flags.Func("revision", "fail unless the row still has this `revision` (default: any)", func(text string) error {
		query.Del("overwrite")
		query.Set("revision", text)
		return parseCount(text, new(int64))
	})
	return query
}

// deletes returns what a command does that deletes the row of its argument.
func deletes(path, what string) func(*call) action {
	return func(c *call) action {
		query := c.overFlag()
		return c.writes(func() change {
			return change{method: http.MethodDelete, path: c.path(path), query: query, what: what + " " + c.arg()}
		})
	}
}

type object map[string]any

// changes defines the flags of a command that changes what nodes need not know, and connects the REST API for do.
func (c *call) changes(do func(ctx context.Context, rest *answers.Client) error) action {
	c.changeFlag()
	return c.asks(do)
}

// sends defines the flags of a command that sends a change, of which nodes need not know, and shows the answer. text
// returns what people read of it.
func sends[T any](c *call, r func() change, text func(T) string) action {
	return c.changes(func(ctx context.Context, rest *answers.Client) error {
		var done T
		if _, err := c.send(ctx, rest, r(), &done); err != nil {
			return err
		}
		return c.print(done, func(out *page) { out.line("%s", text(done)) })
	})
}

func post(path string, body object) change {
	return change{method: http.MethodPost, path: path, body: body}
}

// writes defines the flags of a command that changes what nodes enforce, and returns what it does.
func (c *call) writes(r func() change) action {
	return c.writesFound(func(context.Context, *answers.Client) (change, error) { return r(), nil })
}

// writesFound is writes for a change that depends on what is there.
func (c *call) writesFound(find func(ctx context.Context, rest *answers.Client) (change, error)) action {
	c.waitFlags()
	return c.changes(func(ctx context.Context, rest *answers.Client) error {
		r, err := find(ctx, rest)
		if err != nil {
			return err
		}
		done, err := c.write(ctx, rest, r)
		if err != nil && r.fault != nil {
			err = r.fault(err)
		}
		if err != nil {
			return err
		}
		if c.change.wait > 0 {
			if done.Fleet, err = c.await(ctx, rest, done.Version); err != nil {
				return fmt.Errorf("%s (version %d), but checking which nodes enforce it failed: %w", done.What, done.Version,
					err)
			}
		}
		err = c.print(done, done.writeTo)
		if err == nil && done.Fleet != nil {
			return done.Fleet.exit()
		}
		return err
	})
}

// write sends a change, and returns what it has written.
func (c *call) write(ctx context.Context, rest *answers.Client, r change) (done written, err error) {
	answer := map[string]json.RawMessage{}
	if done.Version, err = c.send(ctx, rest, r, &answer); err != nil {
		return done, err
	}
	done.What = r.what
	if row, found := answer[r.row]; found {
		done.Row = row
	}
	if diff, found := answer["diff"]; found {
		err = json.Unmarshal(diff, &done.Diff)
	}
	if err == nil && r.read != nil {
		err = r.read(answer, &done)
	}
	if err != nil {
		return done, fmt.Errorf("decode the answer: %w", err)
	}
	return done, nil
}

// change is a request that changes something, and what people read of it.
type change struct {
	method, path string
	query        url.Values
	body         any    // encoded as an object; nil: the reason is in the query
	reason       string // its field or parameter; "": reason

	what  string                                                     // it does, in words
	row   string                                                     // the field of the answer with the row; "": none
	read  func(answer map[string]json.RawMessage, to *written) error // what else there is in the answer; nil: nothing
	fault func(error) error                                          // tells more about an error; nil: nothing
}

// send sends a change with its reason, shows the warnings about it, and decodes the answer. The version is that of the
// policies that include the change.
func (c *call) send(ctx context.Context, rest *answers.Client, r change, into any) (version int64, err error) {
	var sent any // without a type if there is no body
	if r.query == nil {
		r.query = url.Values{}
	}
	if r.body == nil || r.reason != "" {
		r.query.Set(cmp.Or(r.reason, "reason"), c.change.reason)
	}
	if r.body != nil {
		var body map[string]json.RawMessage
		text, err := json.Marshal(r.body)
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil {
			return 0, fmt.Errorf("encode the body: %w", err)
		}
		if r.reason == "" {
			body["reason"], _ = json.Marshal(c.change.reason) // a text
		}
		sent = body
	}
	var answer json.RawMessage
	var done answers.Written
	err = rest.Do(ctx, r.method, r.path, r.query, sent, &answer)
	if err != nil || len(answer) == 0 {
		return 0, err
	}
	if err = errors.Join(json.Unmarshal(answer, into), json.Unmarshal(answer, &done)); err != nil {
		return 0, fmt.Errorf("decode the answer: %w", err)
	}
	for _, warning := range done.Warnings.Warnings {
		c.warn("%s", warning)
	}
	return done.Version, nil
}

// maxWait is the longest time that a server waits for nodes in one request.
const maxWait = 30 * time.Second

// await waits until all live nodes enforce a version or the time is over, and returns how far it has come.
func (c *call) await(ctx context.Context, rest *answers.Client, version int64) (*enforcing, error) {
	start, query := c.now(), c.fleetQuery()
	query.Set("version", strconv.FormatInt(version, 10))
	for left := c.change.wait; ; left -= maxWait {
		query.Set("wait", min(left, maxWait).String())
		var fleet answers.Fleet
		if err := rest.Get(ctx, fleetPath, query, &fleet); err != nil {
			return nil, err
		}
		if reach := fleet.Fleet.Reach(version); left <= maxWait || len(reach.Behind) == 0 {
			took := c.now().Sub(start)
			return &enforcing{Reach: reach, Took: &took, Millis: took.Milliseconds()}, nil
		}
	}
}

// changeFlags holds the flags of every command that writes.
type changeFlags struct {
	actor, reason string
	wait          time.Duration
	within        time.Duration
}

// written is the result of a command that writes.
type written struct {
	What    string        `json:"-"`               // in words, without the version
	Version int64         `json:"version"`         // in which it is in force
	Row     any           `json:"row,omitempty"`   // as it is then
	Diff    *rows.SetDiff `json:"diff,omitempty"`  // of apply, and of candidates
	Fleet   *enforcing    `json:"fleet,omitempty"` // with --wait
}

// changeFlag defines the flags of a command that writes.
func (c *call) changeFlag() {
	c.flags.StringVar(&c.change.reason, "reason", "", "the `reason` for the change, for the audit log (required)")
	c.wrongIf(func() bool { return strings.TrimSpace(c.change.reason) == "" },
		"--reason is required: why are you making this change?")
	c.flags.StringVar(&c.change.actor, "actor", "",
		"the `name` of who makes the change, for the audit log (default $"+actorVariable+", user@host or the database user)")
}

// waitFlags defines --wait and what it counts as live.
func (c *call) waitFlags() {
	c.flags.Func("wait", "wait up to this `duration` until all live nodes enforce the change (5s if no duration is given)",
		reads(process.ParseDuration, &c.change.wait))
	c.flags.Lookup("wait").NoOptDefVal = defaultWait.String()
	c.liveFlag()
}

func (c *call) liveFlag() {
	c.change.within = rows.LiveWithin
	c.flags.Func("live-within",
		"treat nodes as live if they reported within this `duration` (default "+rows.LiveWithin.String()+")",
		reads(parseSpan, &c.change.within))
}

// newChange returns a change by the person who calls the program.
func (c *call) newChange(config *pgxpool.Config) (rows.Change, error) {
	by := rows.Change{Actor: c.actor(config.ConnConfig), Reason: c.change.reason}
	name := strings.ToLower(strings.TrimSpace(by.Actor)) // it must not look like a caller of the REST API
	if strings.HasPrefix(name, "token:") || strings.HasPrefix(name, "oidc:") {
		return by, wrong("actor %q: names that begin with token: or oidc: are reserved for the REST API; "+
			"set --actor or %s to another name", by.Actor, actorVariable)
	}
	return by, nil
}

// writeTo writes what was done, its version and, with --wait, how far that has come.
func (w *written) writeTo(out *page) {
	if w.Diff != nil {
		writeDiff(out, w.Diff)
	}
	out.line("%s; version %d", w.What, w.Version)
	if w.Fleet != nil {
		w.Fleet.writeTo(out, "")
	}
}
