package promtest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
)

// Sample holds one series of a query's result, at the instant of the query.
type Sample struct {
	Labels map[string]string // with its name as __name__, where it has one
	Value  float64           // may be NaN
}

// Query evaluates an expression now. A scalar is one sample without labels. A faulty expression returns the error of
// Prometheus.
func (s *Server) Query(expression string) ([]Sample, error) {
	var answer struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	}
	if err := s.get("query?query="+url.QueryEscape(expression), &answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	var series []struct {
		Metric map[string]string `json:"metric"`
		Value  point             `json:"value"`
	}
	switch answer.Type {
	case "vector":
		if err := json.Unmarshal(answer.Result, &series); err != nil {
			return nil, fmt.Errorf("query %s: %w", expression, err)
		}
	case "scalar":
		var value point
		if err := json.Unmarshal(answer.Result, &value); err != nil {
			return nil, fmt.Errorf("query %s: %w", expression, err)
		}
		return []Sample{{Value: float64(value)}}, nil
	default:
		return nil, fmt.Errorf("query %s: the result is a %s, want a vector or a scalar", expression, answer.Type)
	}
	samples := make([]Sample, len(series))
	for i, one := range series {
		samples[i] = Sample{one.Metric, float64(one.Value)}
	}
	return samples, nil
}

// point holds a value, which Prometheus writes as [instant, "value"].
type point float64

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(text []byte) error {
	var pair [2]any
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	word, ok := pair[1].(string)
	if !ok {
		return fmt.Errorf("%s is not [instant, value]", text)
	}
	value, err := strconv.ParseFloat(word, 64)
	*p = point(value)
	return err
}

// Rule holds one rule that a server evaluates.
type Rule struct {
	Name   string `json:"name"`
	Query  string `json:"query"`
	State  string `json:"state"`     // inactive, pending or firing; "" of a recording rule
	Health string `json:"health"`    // unknown before the first evaluation, ok or err
	Error  string `json:"lastError"` // of the last evaluation
}

// Rules returns the rules of all files, in their order there, with the results of the last evaluation.
func (s *Server) Rules() ([]Rule, error) {
	var answer struct {
		Groups []struct {
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := s.get("rules", &answer); err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	var rules []Rule
	for _, group := range answer.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, nil
}

// get reads the data of an answer of Prometheus's HTTP API.
func (s *Server) get(path string, data any) error {
	response, err := s.client.Get("http://" + s.Address + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status string          `json:"status"`
		Data   json.RawMessage `json:"data"`
		Error  string          `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", response.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}
