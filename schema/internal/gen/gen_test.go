package main

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestGeneratedFilesMatchTheSource(t *testing.T) {
	dir := filepath.Join("..", "..")
	files, err := generate(dir)
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from config.go: run go generate ./schema", name)
		}
	}
}

func TestEveryFieldStatesItsDefault(t *testing.T) {
	g, err := newGenerator(filepath.Join("..", ".."))
	require.NoError(t, err)
	fields := 0
	var check func(path string, record *kongField)
	check = func(path string, record *kongField) {
		for name, f := range record.each {
			at := path + "." + name
			if !strings.Contains(f.Description, "Default: ") && !strings.Contains(f.Description, "Required") {
				t.Errorf("%s: the description states no default: %s", at, f.Description)
			}
			if f.Default != nil && (f.Required == nil || !*f.Required) {
				t.Errorf("%s: has a default but may be null", at)
			}
			fields++
			check(at, cmp.Or(f.Elements, f))
		}
	}
	check("config", g.kongRecord(reflect.TypeFor[schema.Config](), ""))
	require.Greater(t, fields, 60)
}

func TestFaultsInTheSourceAreReported(t *testing.T) {
	g := &generator{docs: map[string]string{}}
	for name, test := range map[string]struct {
		record any
		want   string
	}{
		"unknown constraint": {struct {
			A string `json:"a" kong:"lt=4"`
		}{}, `unknown constraint "lt"`},
		"unknown type": {struct {
			A chan int `json:"a"`
		}{}, "no type of Kong"},
		"no json name": {struct {
			A string `kong:"required"`
		}{}, "has no json name"},
		"bad default": {struct {
			A int64 `json:"a" default:"x"`
		}{}, "invalid syntax"},
		"unknown pattern list": {struct {
			A string `json:"a" kong:"match_any=x"`
		}{}, "no //kong:patterns x"},
		"description too short": {struct {
			B string `json:"b"`
		}{}, ".B: the doc comment's first paragraph has 6 characters"},
	} {
		g.docs, g.faults = map[string]string{".A": "Long enough a text.", ".B": "Short."}, nil
		g.kongRecord(reflect.TypeOf(test.record), "")
		if err := errors.Join(g.faults...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.faults = nil
	g.directive("{")
	g.directive(`{"err": "%"}`)
	if len(g.faults) != 2 {
		t.Errorf("faults of directives: %v", g.faults)
	}
}

func TestAPageWithoutMarkersIsAFault(t *testing.T) {
	for _, page := range []string{"# Title\n" + optionsStart, "# Title\n" + optionsEnd} {
		if _, err := insertOptions([]byte(page), ""); err == nil {
			t.Errorf("%q was rewritten", page)
		}
	}
}
