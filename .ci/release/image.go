package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	title  = "tenant-rate-limiting/programs"
	source = "https://github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting"

	// authorities is where Go and most libraries look for the certificates of authorities.
	authorities = "etc/ssl/certs/ca-certificates.crt"
)

// writeImage writes an image for each ARCH=ROOT, of the files in the folder ROOT and the certificates of authorities,
// into a new folder in OCI's layout.
func writeImage(folder, version string, at time.Time, roots []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range roots {
		arch, root, _ := strings.Cut(arg, "=")
		image, err := imageOf(os.DirFS(root), arch, version, at)
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version,
	}))
}

// imageOf returns the image for one architecture: a layer that runs without a shell, as a user without a name.
func imageOf(root fs.FS, arch, version string, at time.Time) (v1.Image, error) {
	files, err := archive(root, at)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "make release"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: at}
	config.Config = v1.Config{
		User:       "65532:65532",
		Env:        []string{"PATH=/usr/local/bin"},
		Entrypoint: []string{"/usr/local/bin/ratelimit"},
		Cmd:        []string{"help"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    title,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.source":   source,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// archive returns the files of root and the certificates as a tar file, owned by root.
func archive(root fs.FS, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, mode fs.FileMode, content []byte) error {
		header := tar.Header{Name: name, Mode: int64(mode.Perm()), Size: int64(len(content)), ModTime: at}
		if mode.IsDir() {
			header.Typeflag, header.Name = tar.TypeDir, name+"/"
		}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case entry.IsDir():
			return add(name, fs.ModeDir|0o755, nil)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return add(name, 0o644|info.Mode()&0o111, content)
	})
	if err != nil {
		return nil, err
	}
	var certificates bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			if err := pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	for i, letter := range authorities {
		if letter == '/' {
			if err := add(authorities[:i], fs.ModeDir|0o755, nil); err != nil {
				return nil, err
			}
		}
	}
	if err := add(authorities, 0o644, certificates.Bytes()); err != nil {
		return nil, err
	}
	return out.Bytes(), w.Close()
}
