package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// readOnly is why nothing can be written.
const readOnly = "the database is read-only: it is a standby, or set so"

// invalidRequest is what a problem document says that has faults.
const invalidRequest = "the request is not valid"

// writeProblem ends a request with a problem document.
func (s *Server) writeProblem(ctx huma.Context, status int, detail string, faults ...error) {
	if err := huma.WriteErr(s.api, ctx, status, detail, faults...); err != nil {
		s.Log.Debug("writing a response failed", "error", err)
	}
}

// fault is something wrong with the value at a path, such as body.limit.
func fault(path, problem string, value any) *huma.ErrorDetail {
	return &huma.ErrorDetail{Location: path, Message: problem, Value: value}
}

// unprocessable is the answer to a request whose values are wrong: all of the faults.
func unprocessable(faults ...*huma.ErrorDetail) error {
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return huma.Error422UnprocessableEntity(invalidRequest, errs...)
}

// writeError is the answer to an error of the repository in a write. What it does not know is logged, and told without
// details.
func (s *Server) writeError(doing string, err error) error {
	return s.storeError(doing, "; nothing was written", err)
}

// readError is problem in a read.
func (s *Server) readError(doing string, err error) error { return s.storeError(doing, "", err) }

func (s *Server) storeError(doing, effect string, err error) error {
	var (
		missing  *pgstore.NotFoundError
		conflict *pgstore.ConflictError
		value    *pgstore.InvalidError
		reused   *pgstore.KeyReusedError
		underway *pgstore.UnderwayError
		lost     *pgstore.UncertainError
		answer   huma.StatusError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return err // it is an answer already
	case errors.As(err, &reused):
		return unprocessable(fault("header.Idempotency-Key", "was used for another request: choose a new one", reused.Key))
	case errors.As(err, &underway):
		return huma.ErrorWithHeaders(huma.NewError(http.StatusConflict, "the first request with this Idempotency-Key is still in progress, "+
			"so nothing was done: retry in a moment to get the answer of the first"), http.Header{"Retry-After": {"1"}})
	case errors.As(err, &missing):
		return huma.Error404NotFound(missing.Error())
	case errors.As(err, &conflict):
		return huma.NewError(http.StatusConflict, conflict.Error())
	case errors.As(err, &value):
		path := "body"
		if value.Field != "" {
			path += "." + value.Field
		}
		return unprocessable(fault(path, value.Problem, nil))
	case errors.As(err, &lost):
		s.Log.Error("the outcome of a write is unknown", "doing", doing, "error", err)
		return huma.Error503ServiceUnavailable(doing + ": the connection to the database ended during the commit, so it is unknown " +
			"whether this was written: read the current state, or retry with the same Idempotency-Key")
	}
	if pgstore.IsReadOnly(err) {
		s.Log.Warn("a change was denied by a read-only database", "doing", doing, "error", err)
		return huma.Error503ServiceUnavailable(doing + ": " + readOnly + effect)
	}
	level := slog.LevelError
	if errors.Is(err, context.Canceled) {
		level = slog.LevelInfo // whoever asked has gone
	}
	s.Log.Log(context.Background(), level, "database query failed", "doing", doing, "error", err)
	return huma.Error503ServiceUnavailable(doing + ": the database query failed" + effect)
}
