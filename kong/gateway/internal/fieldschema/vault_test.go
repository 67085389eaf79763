package fieldschema

import (
	"reflect"
	"testing"
)

func TestVaultReferencesAreResolvedAndKept(t *testing.T) {
	s := parsed(t, everything)
	config := accepted(t, s, `{"redis": {"user": "{vault://env/u}", "password": "{vault://env/pw}"}}`)
	redis := s.Resolve(config, func(name string) string { return "<" + name + ">" })["redis"]
	want := tree(t, `{"host": null, "port": 6379, "user": "{vault://env/u}", "password": "<vault://env/pw>",
		"$refs": {"password": "{vault://env/pw}"}}`)
	if !reflect.DeepEqual(redis, any(want)) {
		t.Errorf("resolved %v", redis)
	}
}
