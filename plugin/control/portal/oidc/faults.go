package oidc

import (
	"errors"
	"net/http"
	"strings"
	"unicode"

	"golang.org/x/oauth2"
)

// fault is the reason why a person was not signed in.
type fault struct {
	status int
	text   string // for the person
	err    error  // for the log
}

const (
	unavailableText = "The identity provider is not available at the moment. Try again in a minute, or sign in with a " +
		"token."
	busyText  = "Too many people are signing in at the moment. Try again in a minute, or sign in with a token."
	setupText = "Sign-in with the identity provider is not set up correctly: an operator finds the cause in the log " +
		"of this process. Until then, sign in with a token."
	invalidText = "The answer of the identity provider is not valid. Start again; if it happens again, an operator " +
		"finds the cause in the log of this process."
	usedText = "The identity provider does not accept this sign-in: it was used already, or took too long. Start again."
	// maxReported bounds what is shown of an error that the provider reports, in characters.
	maxReported = 300
)

// invalid returns the fault of an answer that must not be trusted.
func invalid(err error) *fault { return &fault{http.StatusBadGateway, invalidText, err} }

// discoveryFault returns the fault of a failure to fetch the provider's configuration.
func discoveryFault(err error) *fault {
	if errors.Is(err, errUnavailable) {
		return &fault{http.StatusServiceUnavailable, unavailableText, err}
	}
	return &fault{http.StatusServiceUnavailable, setupText, err}
}

// exchangeFault returns the fault of a failure to exchange a code.
func exchangeFault(err error) *fault {
	denied := new(oauth2.RetrieveError)
	if !errors.As(err, &denied) {
		return &fault{http.StatusServiceUnavailable, unavailableText, err}
	}
	switch denied.ErrorCode {
	case "invalid_grant":
		return &fault{http.StatusBadRequest, usedText, err}
	case "invalid_client", "unauthorized_client", "invalid_scope", "unsupported_grant_type":
		return &fault{http.StatusServiceUnavailable, setupText, err}
	}
	if denied.Response.StatusCode >= http.StatusInternalServerError {
		return &fault{http.StatusServiceUnavailable, unavailableText, err}
	}
	return invalid(err)
}

// shorten returns a text of the provider for a page: on one line, and not long.
func shorten(text string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "�"))
	if runes := []rune(clean); len(runes) > maxReported {
		return string(runes[:maxReported]) + "…"
	}
	return clean
}
