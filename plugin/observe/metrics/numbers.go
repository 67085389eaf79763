package metrics

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// numbers collects the numbers that other packages keep in a T. The package that keeps a number declares its metric in
// the tags of its field:
//
//	metric:"name label=value"  the metric, and a label of it
//	metric:"name label"        of a map: its keys are the values of the label
//	metric:""                  of what holds numbers: their tags add to its name and labels
//	merge:"max"                of several numbers of one name and labels the largest counts; others add up
//	label:"name"               of a string: it is the value of a label of all numbers in its struct
//
// A name that ends in _total is the name of a counter, any other of a gauge. Times are in seconds, instants in
// seconds since 1970, and true is 1.
type numbers[T any] struct{ read func() T }

// Read returns a collector of what read returns at every scrape, by the tags of T.
func Read[T any](read func() T) prometheus.Collector { return numbers[T]{read} }

// Describe implements prometheus.Collector. It sends nothing: what there is depends on what read returns.
func (n numbers[T]) Describe(chan<- *prometheus.Desc) {}

func (n numbers[T]) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(to)
	samples := sampleSet{}
	samples.read(reflect.ValueOf(n.read()), declared{labels: map[string]string{}})
	for _, s := range samples {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(s.name, "_total") {
			kind = prometheus.CounterValue
		}
		labels, values := slices.Sorted(maps.Keys(s.labels)), []string(nil)
		for _, label := range labels {
			values = append(values, s.labels[label])
		}
		desc := prometheus.NewDesc(prefix+s.name, help[s.name], labels, nil)
		to <- prometheus.MustNewConstMetric(desc, kind, s.value, values...)
	}
}

// recoverSource turns the panic of a source into an error of the scrape. Collectors run on goroutines of their own,
// where a panic would end the process.
func recoverSource(to chan<- prometheus.Metric) {
	if reason := recover(); reason != nil {
		err := fmt.Errorf("read the numbers: panic: %v", reason)
		to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}

// declared is what the tags of a field, and those around it, declare.
type declared struct {
	name   string
	labels map[string]string
	byKey  string // the label whose values are keys
	max    bool
}

// field returns what is declared for a field in d, and whether it has numbers.
func (d declared) field(f reflect.StructField) (declared, bool) {
	tag, ok := f.Tag.Lookup("metric")
	for _, word := range strings.Fields(tag) {
		switch name, value, isLabel := strings.Cut(word, "="); {
		case isLabel:
			d = d.with(name, value)
		case d.name == "":
			d.name = name
		default:
			d.byKey = name
		}
	}
	d.max = f.Tag.Get("merge") == "max"
	return d, ok
}

func (d declared) with(label, value string) declared {
	d.labels = maps.Clone(d.labels)
	d.labels[label] = labelValue(value)
	return d
}

type sample struct {
	declared
	value float64
}

// sampleSet holds numbers by their names and labels.
type sampleSet map[string]*sample

func (all sampleSet) read(v reflect.Value, d declared) {
	switch kind := v.Kind(); {
	case kind == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
		all.readStruct(v, d)
	case kind == reflect.Slice:
		for i := range v.Len() {
			all.read(v.Index(i), d)
		}
	case kind == reflect.Map:
		all.readMap(v, d)
	default:
		all.add(d, toFloat(v))
	}
}

func (all sampleSet) readStruct(v reflect.Value, d declared) {
	t := v.Type()
	for i := range t.NumField() {
		if label, ok := t.Field(i).Tag.Lookup("label"); ok {
			d = d.with(label, v.Field(i).String())
		}
	}
	for i := range t.NumField() {
		if inner, ok := d.field(t.Field(i)); ok {
			all.read(v.Field(i), inner)
		}
	}
}

// readMap reads the numbers in a map. Without a label they add up from 0, so that they are there from the start.
func (all sampleSet) readMap(v reflect.Value, d declared) {
	if d.byKey == "" {
		all.read(reflect.Zero(v.Type().Elem()), d)
	}
	for entry := v.MapRange(); entry.Next(); {
		inner := d
		if d.byKey != "" {
			inner = d.with(d.byKey, fmt.Sprint(entry.Key()))
		}
		all.read(entry.Value(), inner)
	}
}

func (all sampleSet) add(d declared, value float64) {
	key := fmt.Sprintf("%s%q", d.name, d.labels)
	switch s, ok := all[key]; {
	case !ok:
		all[key] = &sample{d, value}
	case d.max:
		s.value = max(s.value, value)
	default:
		s.value += value
	}
}

// toFloat returns a number, a time in seconds, an instant in seconds since 1970 (0: none), or 1 for true.
func toFloat(v reflect.Value) float64 {
	switch {
	case v.Kind() == reflect.Struct && !v.IsZero():
		return float64(v.Interface().(time.Time).Unix())
	case v.Kind() == reflect.Struct:
		return 0
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).Seconds()
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	case v.Bool():
		return 1
	}
	return 0
}
