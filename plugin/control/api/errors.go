package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const readOnly = "the database is read-only: it is a standby, or set so"

const invalidRequest = "the request is not valid"

// writeProblem ends a request with a problem document.
func (s *Server) writeProblem(ctx huma.Context, status int, detail string, faults ...error) {
	if err := huma.WriteErr(s.api, ctx, status, detail, faults...); err != nil {
		s.Log.Debug("writing a response failed", "error", err)
	}
}

func (s *Server) writeAnswer(ctx huma.Context, answer error) {
	if with := huma.HeadersError(nil); errors.As(answer, &with) {
		for name, values := range with.GetHeaders() {
			ctx.SetHeader(name, values[0])
		}
	}
	problem := new(huma.ErrorModel)
	errors.As(answer, &problem)
	faults := mapped(problem.Errors, func(f *huma.ErrorDetail) error { return f })
	s.writeProblem(ctx, problem.Status, problem.Detail, faults...)
}

// fault returns a fault of the value at a path, such as body.limit.
func fault(path, problem string, value any) *huma.ErrorDetail {
	return &huma.ErrorDetail{Location: path, Message: problem, Value: value}
}

func faultsIn(place string, list []schema.Fault) (faults []error) {
	for _, f := range list {
		faults = append(faults, fault(place+"."+f.Path, f.Message, nil))
	}
	return faults
}

func unprocessable(faults ...*huma.ErrorDetail) error {
	errs := mapped(faults, func(f *huma.ErrorDetail) error { return f })
	return huma.Error422UnprocessableEntity(invalidRequest, errs...)
}

// writeError returns the answer to an error of the store during a write. Unexpected errors are logged, and answered
// without details.
func (s *Server) writeError(action string, err error) error {
	return s.storeError(action, "; nothing was written", err)
}

// readError returns the answer to an error of the store during a read.
func (s *Server) readError(action string, err error) error { return s.storeError(action, "", err) }

// storeError returns the answer to an error of the store. effect describes the outcome of a write.
func (s *Server) storeError(action, effect string, err error) error {
	var (
		missing  *rows.NotFoundError
		moved    *rows.MovedError
		conflict *rows.ConflictError
		value    *rows.InvalidError
		reused   *rows.KeyReusedError
		underway *rows.UnderwayError
		lost     *rows.UncertainError
		answer   huma.StatusError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return err // already an answer
	case errors.As(err, &reused):
		return unprocessable(fault("header.Idempotency-Key", "was used for another request: choose a new one", reused.Key))
	case errors.As(err, &underway):
		return retryable(http.StatusConflict, "the first request with this Idempotency-Key is still in progress, so "+
			"nothing was done: retry in a moment to get the answer of the first")
	case errors.As(err, &missing):
		return huma.Error404NotFound(missing.Error())
	case errors.As(err, &moved):
		return huma.NewError(http.StatusConflict, moved.Error(), movedPolicies(moved.Diff)...)
	case errors.As(err, &conflict):
		return huma.NewError(http.StatusConflict, conflict.Error())
	case errors.As(err, &value):
		path := "body"
		if effect == "" {
			path = "query"
		}
		if value.Field != "" {
			path += "." + value.Field
		}
		return unprocessable(fault(path, value.Problem, nil))
	case errors.As(err, &lost):
		s.Log.Error("the outcome of a write is unknown", "action", action, "error", err)
		return huma.Error503ServiceUnavailable(
			action + ": the connection to the database ended during the commit, so it is unknown whether this was written: " +
				"read the current state, or retry with the same Idempotency-Key",
		)
	}
	if rows.IsReadOnly(err) {
		s.Log.Warn("a change was denied by a read-only database", "action", action, "error", err)
		return unavailable(action + ": " + readOnly + effect)
	}
	level := slog.LevelError
	if errors.Is(err, context.Canceled) {
		level = slog.LevelInfo // the client disconnected
	}
	s.Log.Log(context.Background(), level, "database query failed", "action", action, "error", err)
	return unavailable(action + ": the database query failed" + effect)
}

// unavailable returns a 503 that the caller may retry: nothing was written.
func unavailable(detail string) error { return retryable(http.StatusServiceUnavailable, detail) }

// retryable returns an answer after which the caller may retry in a moment.
func retryable(status int, detail string) error {
	return huma.ErrorWithHeaders(huma.NewError(status, detail), http.Header{"Retry-After": {"1"}})
}

// movedPolicies returns the policies of a difference as details of an error.
func movedPolicies(d rows.Diff) (details []error) {
	add := func(p rows.Policy, how string) {
		details = append(details, fault(fmt.Sprintf("policies[%d]", len(details)), p.Key().String()+" "+how, nil))
	}
	for _, p := range d.Create {
		add(p, "is new")
	}
	for _, r := range d.Update {
		add(r.Before, "has changed: "+rows.ChangedFields(r.Before, r.After))
	}
	for _, p := range d.Delete {
		add(p, "is deleted")
	}
	return details
}
