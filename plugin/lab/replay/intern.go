package replay

// maxInterned bounds how many values an interner keeps, so that names that clients make up take little memory.
const maxInterned = 1 << 16

// interner returns one copy of values that come again and again, by the bytes that they are made of.
type interner[T any] struct {
	values map[string]T
	create func(text string) T
}

func newInterner[T any](create func(text string) T) *interner[T] {
	return &interner[T]{map[string]T{}, create}
}

// get returns the value of text. It allocates only for a text that is new.
func (n *interner[T]) get(text []byte) T {
	if value, ok := n.values[string(text)]; ok {
		return value
	}
	if len(n.values) == maxInterned {
		clear(n.values)
	}
	key := string(text)
	value := n.create(key)
	n.values[key] = value
	return value
}

func newNames() *interner[string] { return newInterner(func(text string) string { return text }) }
