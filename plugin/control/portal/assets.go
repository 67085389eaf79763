package portal

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed assets
var assetFiles embed.FS

const assetsPath = home + "assets/"

// assets are the files that pages load. Their names contain a hash of the content, so browsers may keep them forever.
type assets struct {
	hashed  map[string]string // the name in a URL, by the name of the file
	content map[string][]byte // by the name in a URL
}

func newAssets() (*assets, error) {
	files, err := assetFiles.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("read the assets: %w", err)
	}
	a := &assets{hashed: map[string]string{}, content: map[string][]byte{}}
	for _, file := range files {
		text, err := assetFiles.ReadFile("assets/" + file.Name())
		if err != nil {
			return nil, fmt.Errorf("read the assets: %w", err)
		}
		sum, extension := sha256.Sum256(text), path.Ext(file.Name())
		name := strings.TrimSuffix(file.Name(), extension) + "-" + hex.EncodeToString(sum[:6]) + extension
		a.hashed[file.Name()], a.content[name] = name, text
	}
	return a, nil
}

// path returns the URL of a file. The error of a file that does not exist ends the template.
func (a *assets) path(file string) (string, error) {
	name, ok := a.hashed[file]
	if !ok {
		return "", fmt.Errorf("there is no asset %s", file)
	}
	return assetsPath + name, nil
}

// serveAsset serves a file by its hashed name.
func (p *Portal) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	content, ok := p.views.assets.content[name]
	if !ok {
		p.showProblem(w, r, Caller{}, &problem{Status: http.StatusNotFound})
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}
