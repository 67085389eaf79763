package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// place is where the operations on one kind of rows are, and who may use them.
type place struct {
	*Server
	path, tag     string
	reads, writes access
}

// one is the end of the path of one row.
const one = "/{id}"

// operation describes an operation at a place, with the errors that all operations have. at is the end of its path.
// text is its summary, with more about it after a line break.
func (p *place) operation(id, method, at, text string, codes ...int) huma.Operation {
	needs := p.writes
	if method == http.MethodGet {
		needs = p.reads
	}
	summary, more, _ := strings.Cut(text, "\n")
	o := huma.Operation{
		OperationID: id, Method: method, Path: p.path + at, Tags: []string{p.tag}, Summary: summary, Description: more,
		Responses: map[string]*huma.Response{}, MaxBodyBytes: maxBody, RejectUnknownQueryParameters: true,
		Metadata: map[string]any{accessKey: needs}, Security: []map[string][]string{{bearer: {}}},
	}
	if strings.Contains(o.Path, "{org}") {
		o.Parameters = []*huma.Param{p.orgParam()}
	}
	o.Errors = slices.Concat(codes, []int{
		http.StatusUnauthorized, http.StatusNotAcceptable, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusServiceUnavailable,
	})
	if needs != decideAccess || method != http.MethodGet { // a read for any role
		o.Errors = append(o.Errors, http.StatusForbidden)
	}
	if method == http.MethodPost || method == http.MethodPut {
		o.Errors = append(o.Errors, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType)
	}
	return o
}

// orgParam describes the org in a path, for inputs with an [OptionalOrg].
func (s *Server) orgParam() *huma.Param {
	field, _ := reflect.TypeFor[OrgPath]().FieldByName("Org")
	schema := huma.SchemaFromField(s.api.OpenAPI().Components.Schemas, field, "")
	return &huma.Param{Name: "org", In: "path", Required: true, Description: schema.Description, Schema: schema}
}

// OptionalOrg selects rows of the org in a path, or of none. Its operations describe the org.
type OptionalOrg struct {
	Every bool `query:"every" doc:"Where the path names no org: also the rows of orgs."`
}

// orgOf returns the org in the path of a request, or "".
func orgOf(ctx context.Context) string { return exchangeOf(ctx).org }

// includes reports whether the path is one of rows of an org.
func (o *OptionalOrg) includes(ctx context.Context, org string) bool {
	in := orgOf(ctx)
	return in == org || in == "" && o.Every
}

// RowPath names a row by its id, and by its org if the path has one.
type RowPath struct {
	OptionalOrg
	ID int64 `path:"id" minimum:"1" example:"7"`
}

type (
	bodyInput[B any]  struct{ Body B }
	bodyOutput[B any] struct{ Body B }
)

// serve registers an operation whose answer is a body alone. action names the operation in errors of the store.
func serve[In, B any](
	s *Server, o huma.Operation, action string, handle func(context.Context, *In) (B, error),
) {
	fail := s.writeError
	if o.Method == http.MethodGet {
		fail = s.readError
	}
	huma.Register(s.api, o, func(ctx context.Context, in *In) (*bodyOutput[B], error) {
		body, err := handle(ctx, in)
		if err != nil {
			return nil, fail(action, err)
		}
		return &bodyOutput[B]{body}, nil
	})
}

// serveTagged is serve for a row that a [Match] names.
func serveTagged[In, B any](
	s *Server, o huma.Operation, action string, revision func(B) int64, read func(context.Context, *In) (B, error),
) {
	huma.Register(s.api, o, func(ctx context.Context, in *In) (*getOutput[B], error) {
		row, err := read(ctx, in)
		return &getOutput[B]{tagOf(revision(row)), row}, s.readError(action, err)
	})
}

// resource is a kind of rows with ETags. K is what names a row in a path, R a row, V one as callers read it, and B the
// answer to a write.
type resource[K rowPath, R rows.Row, V, B any] struct {
	*place
	find     func(context.Context, K) (R, error) // nil: by the key in the path
	state    func(R) (tag string, revision int64)
	location func(R) string
	show     func(view, R) V
	answer   func(V, answers.Written) B
	warn     func(context.Context, R) ([]string, error) // about a row that was written; nil: none
}

// rowPath is the part of a path that names a row.
type rowPath interface{ rowKey() any }

// at returns the row at a path.
func (r *resource[K, R, V, B]) at(ctx context.Context, path K) (R, error) {
	if r.find != nil {
		return r.find(ctx, path)
	}
	return rows.Read[R](ctx, r.Rows, path.rowKey())
}

func asItIs[R any](_ view, row R) R { return row }

// list registers the operation that lists rows in pages. read returns the rows of a page, and one more if there is
// another page; place returns what the cursor of a page that ends with a row has.
func list[R, V, At, In any, P interface {
	*In
	size() int
}](
	s *Server, o huma.Operation, action string, show func(view, R) V, place func(R) At,
	read func(context.Context, P) ([]R, error),
) {
	serve(s, o, action, func(ctx context.Context, in *In) (page answers.Page[V], err error) {
		found, err := read(ctx, in)
		if size := P(in).size(); len(found) > size {
			found = found[:size]
			page.NextCursor = string(newCursor(place(found[size-1])))
		}
		page.Items = make([]V, len(found))
		for i, row := range found {
			page.Items[i] = show(s.viewOf(callerOf(ctx)), row)
		}
		return page, err
	})
}

type getOutput[V any] struct {
	ETag string `header:"ETag"`
	Body V
}

func (r *RowPath) key() *RowPath { return r }
func (r *RowPath) rowKey() any   { return r.ID }

type getRow struct {
	RowPath
	IfNoneMatch
}

// get registers the operation that reads one row. It answers 304 if the caller has this revision of the row.
func get[In any, K rowPath, R rows.Row, V, B any, P interface {
	*In
	key() K
	noneMatch() *IfNoneMatch
}](r *resource[K, R, V, B], o huma.Operation, action string) {
	o.Responses["304"] = &huma.Response{Description: http.StatusText(http.StatusNotModified)}
	o.Errors = append(o.Errors, http.StatusNotFound)
	huma.Register(r.api, o, func(ctx context.Context, in *In) (*getOutput[V], error) {
		row, err := r.at(ctx, P(in).key())
		if err != nil {
			return nil, r.readError(action, err)
		}
		tag, _ := r.state(row)
		if P(in).noneMatch().matches(tag) {
			return nil, conditionalAnswer(http.StatusNotModified, tag, "")
		}
		return &getOutput[V]{tag, r.show(r.viewOf(callerOf(ctx)), row)}, nil
	})
}

// done is a write that was made.
type done[R any] struct {
	change   rows.Change
	row      R
	version  int64
	warnings []string
}

// with returns the write with what the store has returned of it.
func (d done[R]) with(row R, version int64, err error) (done[R], error) {
	d.row, d.version = row, version
	return d, err
}

// write is a write of one row, made from the state that the caller names.
type write[R any] struct {
	action string // in words
	read   func() (R, error)
	write  func(current R, revision int64) (done[R], error)
	// isSame reports that a write that creates the row if there is none would change nothing; nil: there must be a row.
	isSame func(current R) bool
}

// tries bounds how often a write starts over.
const tries = 3

// do writes the row, and returns the status of the answer. A write depends on the row that was read; if that has
// changed meanwhile, do starts over, and at last answers that it has.
func (w *write[R]) do(
	match *IfMatch, none *IfNoneMatch, state func(R) (tag string, revision int64),
) (status int, d done[R], err error) {
	for range tries {
		current, err := w.read()
		tag, held := state(current) // unused without a row
		status, revision := http.StatusOK, int64(rows.Absent)
		switch mayCreate := rows.IsMissing(err) && w.isSame != nil; {
		case mayCreate && match.isGiven():
			err = conditionalAnswer(http.StatusPreconditionFailed, "",
				"it does not exist: omit If-Match to create it")
		case mayCreate:
			status, err = http.StatusCreated, nil
		case err != nil:
		case w.isSame != nil && none.matches(tag):
			err = conditionalAnswer(http.StatusPreconditionFailed, tag, "it exists already")
		case w.isSame != nil && !match.isGiven() && w.isSame(current):
			revision = held
		default:
			revision, err = match.requiredRevision(tag, held)
		}
		if err != nil {
			return 0, d, err
		}
		d, err = w.write(current, revision)
		stale := new(rows.ConflictError)
		if !errors.As(err, &stale) || stale.Revision == 0 && w.isSame == nil {
			return status, d, err
		}
	}
	return 0, d, staleError("")
}

type rowOutput[B any] struct {
	Status   int
	ETag     string `header:"ETag"`
	Location string `header:"Location" doc:"Where it is."`
	Body     B
}

// putInput is a row to put in place of the one that its body names, if there is any.
type putInput[B any] struct {
	IfMatch
	IfNoneMatch
	Writing
	Body B
}

func put[K rowPath, R rows.Row, V, B, In any, P interface {
	*In
	ifMatch() *IfMatch
	wait() time.Duration
}](r *resource[K, R, V, B], o huma.Operation, plan func(context.Context, P) *write[R]) {
	o.Errors = append(o.Errors, conditional...)
	huma.Register(r.api, o, func(ctx context.Context, in *In) (*rowOutput[B], error) {
		none := &IfNoneMatch{}
		if has, ok := any(in).(interface{ noneMatch() *IfNoneMatch }); ok {
			none = has.noneMatch()
		}
		w := plan(ctx, in)
		status, d, err := w.do(P(in).ifMatch(), none, r.state)
		if err != nil {
			return nil, r.writeError(w.action, err)
		}
		tag, _ := r.state(d.row)
		return &rowOutput[B]{status, tag, r.location(d.row), r.written(ctx, d, P(in).wait())}, nil
	})
	if _, mayCreate := any(new(In)).(interface{ noneMatch() *IfNoneMatch }); mayCreate {
		created := *o.Responses["200"]
		created.Description = http.StatusText(http.StatusCreated)
		o.Responses["201"] = &created
	}
}

// written finishes a write of a row, and returns the body of its answer.
func (r *resource[K, R, V, B]) written(ctx context.Context, d done[R], wait time.Duration) B {
	if r.warn != nil {
		d.warnings = r.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) { return r.warn(ctx, d.row) })
	}
	return r.answer(r.show(view{}, d.row), r.finishWrite(ctx, d.version, wait, d.warnings))
}

type createdOutput[B any] struct {
	ETag     string `header:"ETag"`
	Location string `header:"Location"            doc:"Where it is."`
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was done, because this is a retry of an answered request."`
	Body     B
}

func create[K rowPath, R rows.Row, V, B, In any, P waiting[In]](
	r *resource[K, R, V, B], o huma.Operation, action string, add func(context.Context, P) (done[R], error),
) {
	o.DefaultStatus = http.StatusCreated
	o.Errors = append(o.Errors, http.StatusConflict)
	huma.Register(r.api, o, func(ctx context.Context, in *In) (*createdOutput[B], error) {
		d, err := add(ctx, in)
		if err != nil {
			return nil, r.writeError(action, err)
		}
		tag, _ := r.state(d.row)
		return &createdOutput[B]{tag, r.location(d.row), replayedHeader(d.change), r.written(ctx, d, P(in).wait())}, nil
	})
}

// onceOutput is the answer to what happens once, also if it is sent again.
type onceOutput[B any] struct {
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was done, because this is a retry of an answered request."`
	Body     B
}

// once registers an operation that an Idempotency-Key makes happen once.
func once[In, B any](
	s *Server, o huma.Operation, action string, do func(context.Context, *In) (B, rows.Change, error),
) {
	huma.Register(s.api, o, func(ctx context.Context, in *In) (*onceOutput[B], error) {
		body, c, err := do(ctx, in)
		if err != nil {
			return nil, s.writeError(action, err)
		}
		return &onceOutput[B]{replayedHeader(c), body}, nil
	})
}

// change registers an operation that writes, and whose answer is what it has written.
func change[R, B, In any, P waiting[In]](
	s *Server, o huma.Operation, action string, answer func(R, answers.Written) B,
	write func(context.Context, P) (done[R], error),
) {
	once(s, o, action, func(ctx context.Context, in *In) (body B, _ rows.Change, err error) {
		d, err := write(ctx, in)
		if err == nil {
			body = answer(d.row, s.finishWrite(ctx, d.version, P(in).wait(), d.warnings))
		}
		return body, d.change, err
	})
}

type deleteRow struct {
	RowPath
	IfMatch
	Writing
	Reason
}

// remove registers the operation that deletes one row.
func remove[In any, K rowPath, R rows.Row, V, B any, P interface {
	*In
	key() K
	ifMatch() *IfMatch
	wait() time.Duration
	why() string
}](
	r *resource[K, R, V, B], o huma.Operation, action string,
) {
	o.Errors = append(o.Errors, http.StatusNotFound)
	huma.Register(r.api, o, func(ctx context.Context, in *In) (*bodyOutput[answers.Written], error) {
		w := write[R]{
			read: func() (R, error) { return r.at(ctx, P(in).key()) },
			write: func(_ R, revision int64) (d done[R], err error) {
				d.version, err = rows.Delete[R](ctx, r.Rows, newChange(ctx, P(in).why()), P(in).key().rowKey(), revision)
				return d, err
			},
		}
		_, d, err := w.do(P(in).ifMatch(), nil, r.state)
		if err != nil {
			return nil, r.writeError(action, err)
		}
		return &bodyOutput[answers.Written]{r.finishWrite(ctx, d.version, P(in).wait(), nil)}, nil
	})
}
