// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// prefix of every metric.
const prefix = "ktsn_"

//go:embed names.txt
var namesText string

// row is one metric of names.txt. Its kind is what the collector makes of it; a test compares both.
type row struct {
	kind   string
	labels []string
	by     string
	help   string
}

// table is names.txt, which ktsnd reads too.
type table struct {
	rows map[string]row
	// bounds of all histograms, in seconds.
	bounds []float64
}

var (
	names     = mustRead(namesText)
	described []*prometheus.Desc
)

// desc describes the metric `name` as names.txt has it. It panics at the program's start for a name that is not there.
func desc(name string) *prometheus.Desc {
	row, found := names.rows[name]
	if !found {
		panic("metrics: names.txt has no " + name)
	}
	made := prometheus.NewDesc(prefix+name, row.help, row.labels, nil)
	described = append(described, made)
	return made
}

// Names is every metric of names.txt with its prefix, and the labels of each.
func Names() map[string][]string {
	all := map[string][]string{}
	for name, row := range names.rows {
		all[prefix+name] = row.labels
	}
	return all
}

func mustRead(text string) table {
	read, err := readTable(text)
	if err != nil {
		panic(err)
	}
	return read
}

// readTable reads names.txt: a metric a line, its cells between bars.
func readTable(text string) (table, error) {
	read := table{rows: map[string]row{}}
	for number, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		fault := func(what string) (table, error) {
			return table{}, fmt.Errorf("metrics: names.txt, line %d: %s", number+1, what)
		}
		if cells[0] == "bounds" && len(cells) == 2 {
			for _, text := range strings.Fields(cells[1]) {
				nanos, err := strconv.ParseUint(text, 10, 64)
				if err != nil {
					return fault(err.Error())
				}
				read.bounds = append(read.bounds, float64(nanos)/1e9)
			}
			continue
		}
		if len(cells) != 5 {
			return fault("five cells are expected")
		}
		if _, twice := read.rows[cells[0]]; twice {
			return fault("a second " + cells[0])
		}
		one := row{kind: cells[1], by: cells[3], help: cells[4]}
		if cells[2] != "" {
			one.labels = strings.Split(cells[2], ",")
		}
		read.rows[cells[0]] = one
	}
	return read, nil
}
