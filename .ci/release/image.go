package main

import (
	"encoding/pem"
	"fmt"
	"io"
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
)

// writeImage writes an image for each ARCH=FILE, of the files in the tar file FILE, into a new folder in OCI's layout.
func writeImage(folder, version string, at time.Time, files []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range files {
		arch, file, _ := strings.Cut(arg, "=")
		image, err := imageOf(file, arch, version, at)
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
func imageOf(file, arch, version string, at time.Time) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
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

// writeCertificates writes the certificates of authorities that may vouch for every name.
func writeCertificates(to io.Writer) error {
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			if err := pem.Encode(to, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}); err != nil {
				return err
			}
		}
	}
	return nil
}
