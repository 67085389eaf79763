package portal

import (
	"maps"
	"net/url"
	"strconv"
)

const (
	// rankedRows is the number of rows on a page of a list that has no cursor.
	rankedRows = 50
	// maxRanked bounds the rows of such a list, as the API does.
	maxRanked = 1000
)

// ranked is a page of a list that the API returns from its first row on, such as a ranking. Each page reads it again.
type ranked struct {
	First, Last int
	Next        string // the link of the next page; "": this is the last one
	More        bool   // the API may have more rows, which no page shows

	number int // from 1
}

// rankedPage returns the page in the query of the request.
func (v *visit) rankedPage() *ranked {
	number, err := strconv.Atoi(v.r.URL.Query().Get("page"))
	if err != nil {
		number = 1
	}
	return &ranked{number: min(max(number, 1), maxRanked/rankedRows)}
}

// query returns a query for the rows up to the end of the page, and one more.
func (p *ranked) query(filters url.Values) url.Values {
	query := maps.Clone(filters)
	query.Set("limit", strconv.Itoa(min(p.number*rankedRows+1, maxRanked)))
	return query
}

// cutPage returns the rows of a page, given those that its query found, and sets its numbers and links. If the list has
// become shorter, it returns the last page.
func cutPage[T any](v *visit, p *ranked, filters url.Values, rows []T) []T {
	p.number = min(p.number, max((len(rows)+rankedRows-1)/rankedRows, 1))
	first := (p.number - 1) * rankedRows
	last := min(first+rankedRows, len(rows))
	p.First, p.Last, p.More = first+1, last, last == maxRanked
	if len(rows) > last {
		query := maps.Clone(filters)
		query.Set("page", strconv.Itoa(p.number+1))
		p.Next = v.r.URL.EscapedPath() + "?" + query.Encode()
	}
	return rows[first:last]
}
