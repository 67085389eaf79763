package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// TLSFiles names the PEM files of a server. The zero value disables TLS.
type TLSFiles struct{ Cert, Key, ClientCA string }

// config returns the TLS config of a server, or nil without TLS. It reloads the certificate when its files change, and
// reads the authorities of clients once.
func (f TLSFiles) config(log *slog.Logger) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, nil
	}
	pair := &keyPair{files: f, log: log, now: time.Now}
	if err := pair.read(); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca: %s has no certificate in PEM", f.ClientCA)
	}
	return config, nil
}

// lookEvery is how often the files of a certificate are looked at, at most: with a handshake.
const lookEvery = time.Second

// keyPair is a certificate with its key, as their files have it. What cannot be read leaves the last good one in place:
// a handshake between the writing of one file and of the other finds a pair that does not fit.
type keyPair struct {
	files TLSFiles
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	pair    *tls.Certificate
	changed [2]time.Time // of the files, when the pair was read
	checked time.Time
	warned  bool // the current failure was logged
}

// get returns the certificate of a handshake.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if age := now.Sub(k.checked); age >= 0 && age < lookEvery {
		return k.pair, nil
	}
	k.checked = now
	before := k.changed
	if err := k.read(); err != nil {
		if !k.warned {
			k.log.Warn("reading the certificate failed: the last good one is served", "error", err)
		}
		k.warned = true
		return k.pair, nil
	}
	if k.warned = false; k.changed != before {
		k.log.Info("the certificate was reloaded", "file", k.files.Cert)
	}
	return k.pair, nil
}

// read reads the files if they have changed. If it fails, the current pair stays.
func (k *keyPair) read() error {
	var changed [2]time.Time
	for i, file := range [...]string{k.files.Cert, k.files.Key} {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("check the certificate: %w", err)
		}
		changed[i] = info.ModTime()
	}
	if k.pair != nil && changed == k.changed {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", k.files.Cert, k.files.Key, err)
	}
	k.pair, k.changed = &pair, changed
	return nil
}
