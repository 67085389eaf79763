package grafana

import "strings"

// object is a JSON object. Its keys are encoded in alphabetical order, so that a file changes only where its page does.
type object = map[string]any

const (
	columns   = 24 // of Grafana's grid
	statRows  = 4
	otherRows = 8
)

// source is the Prometheus that the user chose at the top of the page.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// page returns the dashboard as Grafana reads it.
func (d *dashboard) page() object {
	variables := []object{{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.variables {
		variables = append(variables, v.render())
	}
	return object{
		"uid":           "rate-limiter-" + d.name,
		"title":         d.title,
		"description":   d.description,
		"tags":          []string{"rate-limiter"},
		"schemaVersion": 39,
		"editable":      true,
		"refresh":       "30s",
		"time":          object{"from": "now-6h", "to": "now"},
		"timezone":      "browser",
		"links": []object{{
			"title": "Rate limiter", "type": "dashboards", "tags": []string{"rate-limiter"},
			"asDropdown": true, "includeVars": true, "keepTime": true,
		}},
		"templating": object{"list": variables},
		"panels":     layOut(d.panels),
	}
}

func (v *variable) render() object {
	if v.label == "" {
		first, _, _ := strings.Cut(v.choices, ",")
		return object{
			"name": v.name, "label": v.title, "type": "custom", "query": v.choices,
			"current": object{"text": first, "value": first},
		}
	}
	return object{
		"name": v.name, "label": v.title, "type": "query", "datasource": source,
		"query":   object{"query": "label_values(" + v.metric + ", " + v.label + ")", "refId": v.name},
		"refresh": 2, // whenever the time range changes
		"sort":    1, // by name
		"multi":   true, "includeAll": true, "allValue": ".*",
		"current": object{"text": []string{"All"}, "value": []string{"$__all"}},
	}
}

// layOut places panels side by side, and starts a new row when one is full. All panels of a row have its first's
// height.
func layOut(panels []panel) []object {
	rendered := make([]object, len(panels))
	x, y, height := 0, 0, 0
	for i, p := range panels {
		if x+p.width > columns {
			x, y = 0, y+height
		}
		if x == 0 {
			height = otherRows
			if p.kind == stat {
				height = statRows
			}
		}
		rendered[i] = p.render()
		rendered[i]["id"] = i + 1
		rendered[i]["gridPos"] = object{"x": x, "y": y, "w": p.width, "h": height}
		x += p.width
	}
	return rendered
}

func (p *panel) render() object {
	o := object{
		"type": p.kind, "title": p.title, "description": p.description, "datasource": source,
		"fieldConfig": object{"defaults": p.defaults(), "overrides": []object{}},
		"options":     p.options(),
		"targets":     p.targets(),
	}
	if p.kind == table {
		p.joinRows(o)
	}
	return o
}

// defaults returns how numbers are shown.
func (p *panel) defaults() object {
	steps := []object{{"color": "green", "value": nil}}
	defaults := object{"unit": p.unit, "min": 0}
	if p.warnAt > 0 {
		steps = append(steps, object{"color": "red", "value": p.warnAt})
	}
	defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	if p.kind == timeseries && p.warnAt > 0 {
		defaults["custom"] = object{"thresholdsStyle": object{"mode": "dashed"}}
	}
	if p.unit == share && p.kind == bargauge {
		defaults["max"] = 1
	}
	return defaults
}

func (p *panel) options() object {
	last := object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}
	switch p.kind {
	case stat:
		return object{"reduceOptions": last, "colorMode": "value", "graphMode": "area"}
	case bargauge:
		return object{"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic"}
	case table:
		return object{"showHeader": true, "sortBy": []object{{"displayName": p.queries[0].legend, "desc": true}}}
	}
	return object{
		"legend": object{
			"displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": []string{"lastNotNull", "max"},
		},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}
}

func (p *panel) targets() []object {
	targets := make([]object, len(p.queries))
	for i, q := range p.queries {
		target := object{"refId": p.queryName(i), "expr": q.expression, "datasource": source, "legendFormat": q.legend}
		instant := p.kind == table || p.kind == bargauge
		target["instant"], target["range"] = instant, !instant
		if p.kind == table {
			target["format"] = "table"
		}
		targets[i] = target
	}
	return targets
}

// queryName returns the name of a query inside its panel.
func (p *panel) queryName(i int) string { return string(rune('A' + i)) }

// joinRows joins the answers of all queries for the same labels into one row, and names the columns.
func (p *panel) joinRows(o object) {
	names := object{"org_id": "Tenant", "endpoint": "Endpoint", "policy": "Policy", "tier": "Tier"}
	overrides := make([]object, len(p.queries))
	for i, q := range p.queries {
		value := "Value #" + p.queryName(i)
		if len(p.queries) == 1 {
			value = "Value"
		}
		names[value] = q.legend
		overrides[i] = object{
			"matcher":    object{"id": "byName", "options": q.legend},
			"properties": []object{{"id": "unit", "value": q.unit}},
		}
	}
	o["fieldConfig"].(object)["overrides"] = overrides
	o["transformations"] = []object{
		{"id": "merge", "options": object{}},
		{"id": "organize", "options": object{"excludeByName": object{"Time": true}, "renameByName": names}},
	}
}
