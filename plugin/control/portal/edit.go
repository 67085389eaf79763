package portal

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// action is a write of the API that operators make by a form, as data. Its page has the form, then shows what the write
// would change, by a dry run, and applies it. What another operator has changed meanwhile is shown first.
//
// Names in braces in its texts stand for parts of the path of the page, values of the form, or fields of the row.
type action struct {
	At     string // the path of the page, below home
	Title  string
	Write  string // the method and the path of the operation, as the API describes it
	Read   string // the path of the API for the row that it changes; "": there is none
	Row    string // the field of the answer with the row after the write; "": it has none
	Fields string // of the form: see operation.fields
	Button string
	Done   string // the notice of the write
	To     string // the path of the page after it, below home

	Now    bool // what the write would change is shown at once, because it needs a reason only
	Danger bool
	Draft  bool // the row is a policy as the candidate {name} has it, and the write is made from the candidate's revision

	Complete func(map[string]any)      // completes the body; nil: it has what was entered
	Preview  func(*form, *visit) error // shows what would change; nil: by a dry run
}

// form is the page of an action.
type form struct {
	*action
	Title, Back string
	Fields      []*field
	Problem     *problem
	IsLate      bool          // another operator was faster
	Moved       []fieldChange // what that one has changed
	Apply       url.Values    // what the button of the preview sends; nil: there is no preview
	Revision    string        // which the write must find; "": there was no row

	Lines    []string       // what would change, in words
	Changes  []policyChange // nil: they are unknown, or in words
	Warnings []string
	Note     string // why nothing would change, or why that is unknown

	operation *operation
	values    url.Values      // as they were entered
	was       json.RawMessage // the row that the form began with
	now       json.RawMessage // the row as it is; nil: there is none
	active    json.RawMessage // the policy that a candidate has changed to now; nil: it has not
}

// Names of a form's values that are not entered, and of fields with a meaning of their own.
const (
	applies    = "apply" // the write is to be made
	began      = "was"   // the row that the form began with
	revision   = "revision"
	onceKey    = "key" // of the write, so that it counts once if it is sent twice
	kindField  = "kind"
	forceField = "force" // shown if the API asks for it
	whyField   = "reason"
	spanField  = "window" // window_size as people read it
	sizeField  = "window_size"
)

// dryReason is the reason of a dry run before one was entered.
const dryReason = "a preview"

// serve shows the form, what it would change, or what was changed meanwhile, or makes the write.
func (a *action) serve(v *visit) error {
	f, err := a.open(v)
	if err != nil {
		return err
	}
	isPost := v.r.Method == http.MethodPost
	switch {
	case isPost && (a.Now || f.values.Has(applies)):
		err = f.apply(v)
	case isPost || a.Now && f.now != nil:
		if err = f.preview(v); err == nil {
			return f.show(v, http.StatusOK)
		}
	default:
		return f.show(v, http.StatusOK)
	}
	f.Problem, f.Apply = answers.ProblemOf(err), nil
	switch {
	case f.Problem == nil || !isFault(f.Problem):
		return err
	case !isPost: // a fault of the write, not of the request for this page
		return f.show(v, http.StatusOK)
	case f.Problem.Status == http.StatusPreconditionFailed:
		if err := f.rebase(v); err != nil {
			return err
		}
		return f.show(v, http.StatusConflict)
	}
	return f.show(v, f.Problem.Status)
}

// open reads what the form is about. Its values are those that were sent, else those of the row, then of the query.
func (a *action) open(v *visit) (f *form, err error) {
	f = &form{action: a, values: url.Values{}}
	if f.operation, err = v.operation(a.Write); err != nil {
		return nil, err
	}
	isPost := v.r.Method == http.MethodPost
	if isPost {
		f.values = v.r.PostForm
	}
	spec := a.Fields
	if f.operation.parameter(forceField) != nil {
		spec = forceField + " " + spec
	}
	if err = f.read(v); err == nil {
		f.Fields, err = f.operation.fields(spec)
	}
	if err != nil {
		return nil, err
	}
	f.was = f.now
	if sent := json.RawMessage(f.values.Get(began)); isPost && json.Valid(sent) {
		f.was = sent
	}
	if isPost && f.values.Has(revision) {
		f.Revision = f.values.Get(revision)
	}
	for _, in := range f.Fields {
		if isPost {
			break
		}
		f.values[in.Name] = in.textOf(f.now)
		if f.now == nil && in.Default != nil {
			f.values.Set(in.Name, fmt.Sprint(in.Default))
		}
		if given := v.r.URL.Query(); given.Has(in.Name) {
			f.values[in.Name] = given[in.Name]
		}
	}
	if err := f.choose(v); err != nil {
		return nil, err
	}
	if v.caller.Org != "" {
		f.values.Set(whyField, ownReason)
	}
	f.Title, _ = f.fill(v, a.Title)
	f.Back, _ = f.fill(v, a.To)
	f.Back = strings.TrimSuffix(f.Back, "/") // a row that is new has no name: back to all
	return f, nil
}

// read reads the row that the form is about, and its revision.
func (f *form) read(v *visit) error {
	f.now, f.active = nil, nil
	err := f.readRow(v)
	f.Revision = jsonText(fieldsOf(f.now)[revision])
	if err != nil || !f.Draft {
		return err
	}
	var found answers.CandidateDiff
	path, _ := f.fill(v, candidateAPI+"/diff")
	if err := v.get(path, nil, &found); err != nil {
		return notFound(err)
	}
	f.Revision = strconv.FormatInt(found.Candidate.Revision, 10)
	for _, changed := range found.Diff.Update {
		if jsonText(fieldsOf(f.now)["id"]) == strconv.FormatInt(changed.Before.ID, 10) {
			f.active = f.now
			f.now, err = json.Marshal(changed.After)
		}
	}
	return err
}

// readRow reads the row, or the first one of a list. Where the write makes rows there may be none.
func (f *form) readRow(v *visit) error {
	path, isKnown := f.fill(v, f.Read)
	if path == "" || !isKnown {
		return nil
	}
	mayCreate := f.operation.parameter("If-None-Match") != nil && !strings.Contains(f.At, "{id}")
	var row json.RawMessage
	if err := v.get(path, nil, &row); err != nil {
		if mayCreate && isStatus(err, http.StatusNotFound) {
			return nil
		}
		return notFound(err)
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	_ = json.Unmarshal(row, &list) // a row has no items
	if list.Items == nil {
		f.now = row
		return nil
	}
	wanted, _ := f.fill(v, "{name}")
	for _, item := range list.Items {
		if name := jsonText(fieldsOf(item)["name"]); name == "" || name == wanted {
			f.now = item
			return nil
		}
	}
	if !mayCreate {
		return &problem{Status: http.StatusNotFound}
	}
	return nil
}

// rebase moves the form to the row that another operator has changed since the form began. Fields that were not edited
// get the new values.
func (f *form) rebase(v *visit) (err error) {
	if err = f.read(v); err != nil {
		return err
	}
	f.Moved, err = diffRows(f.was, f.now)
	for _, in := range f.Fields {
		if f.entered(in) == strings.Join(in.textOf(f.was), "\n") {
			f.values[in.Name] = in.textOf(f.now)
		}
	}
	f.was, f.IsLate = f.now, f.now != nil
	return err
}

// written is the answer to a write, which has some of this.
type written struct {
	answers.Written
	Diff   *answers.Diff `json:"diff"`
	Secret string        `json:"secret"`

	row json.RawMessage // after the write; nil: the answer has none
}

// send makes the write, or tries it.
func (f *form) send(v *visit, dry bool) (done written, err error) {
	method, path, _ := strings.Cut(f.Write, " ")
	path, _ = f.fill(v, path)
	query, header := url.Values{}, []string{"Idempotency-Key", cmp.Or(f.values.Get(onceKey), rand.Text())}
	for _, p := range f.operation.Parameters {
		entered := strings.TrimSpace(f.values.Get(p.Name))
		switch {
		case p.Name == revision && f.Revision != "":
			query.Set(p.Name, f.Revision)
		case p.Name == "dry_run" && dry, p.Name == "every":
			query.Set(p.Name, "true")
		case p.Name == "wait" && !dry:
			query.Set(p.Name, waitForNodes)
		case p.Name == "If-None-Match" && f.Revision == "":
			header = append(header, p.Name, "*")
		case p.In == "query" && p.Name == whyField && dry:
			query.Set(p.Name, cmp.Or(entered, dryReason))
		case p.In == "query" && f.field(p.Name) != nil && entered != "":
			query.Set(p.Name, entered)
		}
	}
	var body any
	if f.operation.Body != nil {
		fields := f.body()
		if _, isGiven := fields[whyField]; !isGiven && dry && f.Now {
			fields[whyField] = dryReason
		}
		body = fields
	}
	var answer json.RawMessage
	if err = v.send(method, path+"?"+query.Encode(), body, &answer, header...); err != nil || len(answer) == 0 {
		return done, err
	}
	var parts map[string]json.RawMessage
	if err = cmp.Or(json.Unmarshal(answer, &done), json.Unmarshal(answer, &parts)); err != nil {
		return done, fmt.Errorf("decode the answer to %s: %w", f.Write, err)
	}
	done.row = parts[f.Row]
	return done, nil
}

// body returns the body of the write: what was entered, over the row if the write replaces it.
func (f *form) body() map[string]any {
	body, row := map[string]any{}, fieldsOf(f.now)
	for name := range f.operation.Body {
		if value, isHeld := row[name]; isHeld && name != whyField && strings.HasPrefix(f.Write, http.MethodPut) {
			body[name] = value
		}
	}
	for _, in := range f.Fields {
		if f.operation.Body[in.Name] == nil {
			continue
		}
		if in.Name == spanField {
			delete(body, sizeField)
		}
		entered := f.entered(in)
		if _, isHeld := body[in.Name]; isHeld && entered == strings.Join(in.textOf(f.now), "\n") {
			continue // a picker has fewer digits than an instant
		}
		delete(body, in.Name)
		if entered != "" && in.isOf(f.values.Get(kindField)) {
			body[in.Name] = in.typed(entered)
		}
	}
	if f.Complete != nil {
		f.Complete(body)
	}
	return body
}

// preview finds out what the write would change, if the API can try it.
func (f *form) preview(v *visit) error {
	if f.Preview == nil && f.operation.parameter("dry_run") == nil {
		return nil
	}
	f.Apply = maps.Clone(f.values)
	f.Apply.Set(onceKey, rand.Text())
	f.Apply.Set(began, f.Was())
	f.Apply.Set(revision, f.Revision)
	if f.Preview != nil {
		return f.Preview(f, v)
	}
	done, err := f.send(v, true)
	if err != nil {
		return err
	}
	isDelete := strings.HasPrefix(f.Write, http.MethodDelete)
	f.Warnings = done.Warnings.Warnings
	if f.active != nil { // and if nothing is changed any more
		done.row = f.active
		for _, changed := range done.Diff.Update {
			done.row, err = json.Marshal(changed.After)
		}
		done.Diff = nil
	}
	switch {
	case err != nil:
	case done.Diff != nil:
		if f.Changes, err = changesOf(done.Diff); f.Changes == nil && !isDelete { // which may undo something
			f.Changes = []policyChange{}
		}
	case f.Row != "" || f.active != nil || isDelete:
		changes, failed := diffRows(f.now, done.row)
		f.Changes, err = []policyChange{{Changes: changes}}, failed
	}
	return err
}

// IsEmpty reports whether the write would change nothing.
func (f *form) IsEmpty() bool {
	changes := func(c policyChange) bool { return len(c.Changes) > 0 }
	return f.Changes != nil && len(f.Lines) == 0 && !slices.ContainsFunc(f.Changes, changes)
}

// apply makes the write, and waits a moment for the nodes. A secret in the answer is shown once.
func (f *form) apply(v *visit) error {
	done, err := f.send(v, false)
	if err != nil {
		return err
	}
	if done.row != nil {
		f.now = done.row
	}
	text, _ := f.fill(v, f.Done)
	switch {
	case done.Secret != "":
		return v.render("operator_secret", f.Title, map[string]any{
			"Title": f.Title, "Shown": shownSecret{text, done.Secret}, "Back": home + f.Back,
		})
	case done.Version == 0: // nodes need not follow it
		return v.redirect(home+f.Back, notice{Text: text + "."})
	}
	return v.redirect(home+f.Back, noticeOf(&done.Written, text))
}

// show answers with the page of the form.
func (f *form) show(v *visit, status int) error {
	f.Fields = slices.DeleteFunc(f.Fields, func(in *field) bool {
		in.Values, in.Fault = f.values[in.Name], f.Problem.At(in.Name)
		return in.Name == forceField && in.Fault == "" && f.values.Get(forceField) == "" ||
			in.Name == whyField && v.caller.Org != ""
	})
	return v.renderStatus(status, "operator_form", f.Title, f)
}

// Was returns the row that the form continues with.
func (f *form) Was() string { return cmp.Or(string(f.was), "null") }
