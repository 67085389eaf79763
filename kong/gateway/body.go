package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
)

// bodyBuffer is nginx's client_body_buffer_size in Kong: a longer body is
// handed to plugins as a file.
const bodyBuffer = 8 << 10

// requestBody is a client's body, read when somebody first asks for it. The
// zero value is an empty one.
type requestBody struct {
	source  io.ReadCloser
	tempDir string
	read    bool
	data    []byte
	err     error
	file    string
}

func (b *requestBody) load() ([]byte, error) {
	if !b.read && b.source != nil {
		b.data, b.err = io.ReadAll(b.source)
	}
	b.read = true
	return b.data, b.err
}

// result is the answer of kong.request.get_raw_body.
func (b *requestBody) result() *pb.RawBodyResult {
	data, err := b.load()
	if err == nil && len(data) > bodyBuffer && b.file == "" {
		b.file, err = writeTemp(b.tempDir, data)
	}
	switch {
	case err != nil:
		return &pb.RawBodyResult{Kind: &pb.RawBodyResult_Error{Error: err.Error()}}
	case b.file != "":
		return &pb.RawBodyResult{Kind: &pb.RawBodyResult_BodyFilepath{BodyFilepath: b.file}}
	}
	return &pb.RawBodyResult{Kind: &pb.RawBodyResult_Content{Content: data}}
}

// reader gives the body for the upstream, whether or not it was read before.
func (b *requestBody) reader() io.ReadCloser {
	if !b.read {
		return b.source
	}
	return io.NopCloser(bytes.NewReader(b.data))
}

// discard removes the file, if there is one.
func (b *requestBody) discard() error {
	if b.file == "" {
		return nil
	}
	if err := os.Remove(b.file); err != nil {
		return fmt.Errorf("remove request body file: %w", err)
	}
	b.file = ""
	return nil
}

func writeTemp(dir string, data []byte) (string, error) {
	file, err := os.CreateTemp(dir, "client_body_*")
	if err != nil {
		return "", fmt.Errorf("buffer request body: %w", err)
	}
	_, err = file.Write(data)
	return file.Name(), errors.Join(err, file.Close())
}
