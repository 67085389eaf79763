package answers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client calls operations of the REST API: over HTTP, or by [Served] those of this process.
type Client struct {
	Base      string // such as https://limits.example.com; "": in this process
	Token     string // "": none is sent
	Transport http.RoundTripper
}

// maxAnswer bounds an answer, in bytes. The longest is a document of all rows.
const maxAnswer = 256 << 20

var errTooLong = errors.New("the answer of the API is too long")

// answerTime bounds a request and its answer, which may be a document of all rows.
const answerTime = 10 * time.Minute

// Get decodes the answer to a GET.
func (c *Client) Get(ctx context.Context, path string, query url.Values, into any) error {
	return c.Do(ctx, http.MethodGet, path, query, nil, into)
}

// Do sends a request with a body that is encoded as JSON and pairs of header names and values, and decodes the answer.
// A nil body or answer is none. The error of an answer that is not 2xx is a *Problem. Redirects are not followed.
func (c *Client) Do(
	ctx context.Context, method, path string, query url.Values, body, into any, header ...string,
) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := c.newRequest(ctx, method, path, query, body)
	if err == nil {
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		err = c.exchange(r, into)
	}
	if err == nil || errors.As(err, new(*Problem)) {
		return err
	}
	return fmt.Errorf("%s %s: %w", method, c.Base+path, err)
}

func (c *Client) newRequest(
	ctx context.Context, method, path string, query url.Values, body any,
) (*http.Request, error) {
	content := io.Reader(http.NoBody)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the body: %w", err)
		}
		content = bytes.NewReader(text)
	}
	if len(query) > 0 {
		mark := "?"
		if strings.Contains(path, mark) {
			mark = "&"
		}
		path += mark + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, c.Base+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return r, nil
}

func (c *Client) exchange(r *http.Request, into any) error {
	response, err := c.Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(body) > maxAnswer:
		return errTooLong
	case response.StatusCode < 200 || response.StatusCode > 299, len(body) > 0 && !isJSON(response):
		return newProblem(response, body)
	case into == nil || len(body) == 0:
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

const pageSize = 1000

// Each yields at most so many items of a list, page by page; most 0: all.
func Each[T any](ctx context.Context, c *Client, path string, query url.Values, most int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for left := most; ; {
			size := pageSize
			if most > 0 {
				size = min(size, left)
			}
			query.Set("limit", strconv.Itoa(size))
			var page Page[T]
			if err := c.Get(ctx, path, query, &page); err != nil {
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			left -= len(page.Items)
			if page.NextCursor == "" || most > 0 && left <= 0 {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}

// Cursor returns the cursor of the page after an item, by its id or its name.
func Cursor(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

// PathSegment returns a name as one segment of a path. It escapes dot segments too, which would lead elsewhere.
func PathSegment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Served sends requests to a handler of this process.
type Served http.HandlerFunc

// RoundTrip implements [http.RoundTripper].
func (serve Served) RoundTrip(r *http.Request) (*http.Response, error) {
	a := &answer{Response: http.Response{Header: http.Header{}, Request: r}}
	serve(a, r)
	a.Body = io.NopCloser(&a.body)
	return &a.Response, nil
}

type answer struct {
	http.Response
	body bytes.Buffer
}

func (a *answer) Header() http.Header { return a.Response.Header }

func (a *answer) WriteHeader(status int) { a.StatusCode = cmp.Or(a.StatusCode, status) }

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > maxAnswer {
		return 0, errTooLong
	}
	return a.body.Write(b)
}

// Problem is an answer that is not 2xx (RFC 9457).
type Problem struct {
	Status  int     `json:"status"`
	Title   string  `json:"title"`
	Detail  string  `json:"detail"`
	Errors  []Fault `json:"errors"`
	Request string  `json:"-"` // the id of the request in the log of the API
	Foreign bool    `json:"-"` // what answered is another program, such as a proxy

	Diff json.RawMessage `json:"diff"` // what a document that was declined would change
}

// Fault is the fault of one value of a request.
type Fault struct {
	Location string `json:"location"` // such as body.limit
	Message  string `json:"message"`
}

func newProblem(response *http.Response, body []byte) *Problem {
	p := &Problem{}
	if err := json.Unmarshal(body, p); err != nil {
		p = &Problem{Detail: "The API answered in an unexpected way."}
	}
	p.Status = cmp.Or(response.StatusCode, http.StatusInternalServerError)
	p.Request, p.Foreign = response.Header.Get("X-Request-Id"), !isJSON(response)
	return p
}

func isJSON(response *http.Response) bool {
	kind := response.Header.Get("Content-Type")
	return strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "json")
}

// Error implements error.
func (p *Problem) Error() string {
	parts := []string{fmt.Sprintf("%d %s", p.Status, cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))}
	for _, e := range p.Errors {
		parts = append(parts, e.Location+" "+e.Message)
	}
	return strings.Join(parts, "; ")
}

// At returns the fault of a field of the body or the query: "" if it has none. Faults of its parts count.
func (p *Problem) At(field string) string {
	if p == nil {
		return ""
	}
	for _, e := range p.Errors {
		_, name, _ := strings.Cut(e.Location, ".")
		if name == field || strings.HasPrefix(name, field+".") || strings.HasPrefix(name, field+"[") {
			return e.Message
		}
	}
	return ""
}

// ProblemOf returns the problem of an error, or nil if it is another one.
func ProblemOf(err error) *Problem {
	p, _ := errors.AsType[*Problem](err)
	return p
}
