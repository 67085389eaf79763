//go:build race

package spec

func init() { withRace = true }
