package api

import (
	"context"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// NamePaging selects a page of a list of names.
type NamePaging struct {
	Limit  int    `query:"limit"  minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	Cursor string `query:"cursor"                                          doc:"The next_cursor of the previous page." maxLength:"256"`
	Prefix string `query:"prefix"                                          doc:"Only names that begin with this."      maxLength:"128"`
}

// Resolve implements [huma.Resolver].
func (p *NamePaging) Resolve(huma.Context) []error {
	if name := p.after(); p.Cursor != "" && (name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0)) {
		return []error{fault("query.cursor", "must be a next_cursor returned by this list", p.Cursor)}
	}
	return nil
}

// after returns the last name of the previous page, or "" for the first page.
func (p *NamePaging) after() string {
	name, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil {
		return ""
	}
	return string(name)
}

// newNamePage returns a page of at most limit rows. rows has one more if there is a next page.
func newNamePage[T any](rows []T, limit int, name func(T) string) answers.Page[T] {
	if len(rows) <= limit {
		return answers.Page[T]{Items: rows}
	}
	rows = rows[:limit]
	return answers.Page[T]{Items: rows, NextCursor: base64.RawURLEncoding.EncodeToString([]byte(name(rows[limit-1])))}
}

type listOrgsInput struct {
	NamePaging
	Tier  string `query:"tier"  doc:"Only orgs whose row has this tier."                                maxLength:"64"`
	Usage bool   `query:"usage" doc:"Also orgs that have usage, and neither a tier nor a time zone set."`
}

type listOrgsOutput struct{ Body answers.Page[rows.Tenant] }

func (s *Server) listOrgs(ctx context.Context, in *listOrgsInput) (*listOrgsOutput, error) {
	list := []rows.Tenant{}
	for org, err := range s.Rows.EachTenant(ctx, rows.TenantFilter{
		Tier: in.Tier, Prefix: in.Prefix, After: in.after(), Max: in.Limit + 1, Usage: in.Usage,
	}) {
		if err != nil {
			return nil, s.readError("list orgs", err)
		}
		list = append(list, org)
	}
	return &listOrgsOutput{newNamePage(list, in.Limit, func(t rows.Tenant) string { return t.ID })}, nil
}

type listTiersInput struct{ NamePaging }

type listTiersOutput struct{ Body answers.Page[rows.Tier] }

func (s *Server) listTiers(ctx context.Context, in *listTiersInput) (*listTiersOutput, error) {
	list, err := s.Rows.Tiers(ctx, rows.TierFilter{Prefix: in.Prefix, After: in.after(), Max: in.Limit + 1})
	if err != nil {
		return nil, s.readError("list tiers", err)
	}
	return &listTiersOutput{newNamePage(list, in.Limit, func(t rows.Tier) string { return t.Name })}, nil
}
