package wire

import "testing"

func BenchmarkDecodeConsumer(b *testing.B) {
	answer := []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme" +
		"*\x08org:acme*\x0ftier:enterprise\x10\xc8\xc7\x84\xd8\x06")
	var c Consumer
	interner := NewInterner()
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeConsumer(answer, interner, &c); err != nil {
			b.Fatal(err)
		}
	}
}
