//go:build !nokafka

package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// mechanism returns how a client authenticates. It must not be called without SASL.
func (o *Options) mechanism() sasl.Mechanism {
	if o.SASL == "PLAIN" {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := o.password()
			return plain.Auth{User: o.User, Pass: password}, err
		})
	}
	authenticate := func(context.Context) (scram.Auth, error) {
		password, err := o.password()
		return scram.Auth{User: o.User, Pass: password}, err
	}
	if o.SASL == "SCRAM-SHA-256" {
		return scram.Sha256(authenticate)
	}
	return scram.Sha512(authenticate)
}

// client returns the options of a client.
func (o *Options) client() ([]kgo.Opt, error) {
	encryption, err := o.tlsConfig()
	if err != nil {
		return nil, err
	}
	all := []kgo.Opt{kgo.SeedBrokers(o.Brokers...)}
	if encryption != nil {
		all = append(all, kgo.DialTLSConfig(encryption))
	}
	if o.SASL != "" {
		all = append(all, kgo.SASL(o.mechanism()))
	}
	if o.dial != nil {
		all = append(all, kgo.Dialer(o.dial))
	} else {
		all = append(all, kgo.DialTimeout(dialTime))
	}
	return all, nil
}
