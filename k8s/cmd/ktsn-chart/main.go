// SPDX-License-Identifier: Apache-2.0

// Command ktsn-chart renders KTSN's Helm chart, which is part of it, for `ktsn k8s`: `ktsn-chart --help`.
//
// In: values of the chart. Out: one JSON document, or a fault and exit status 2 (wrong values) or 1. It must never ask a cluster.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

const help = `Renders KTSN's Helm chart, which is part of this program. ktsn k8s runs it.

Usage: ktsn-chart [--values FILE]... [--set NAME=VALUE]... [--namespace NAME] [--service NAME]

Prints one JSON document: the chart's version, its defaults, its values with the given ones, and the objects.
Exit status: 0 done; 1 failed; 2 wrong usage or values.

`

// document is what is printed; ktsn/src/k8s/chart.rs reads it.
type document struct {
	Version  string         `json:"version"`
	Defaults map[string]any `json:"defaults"`
	Values   map[string]any `json:"values"`
	Objects  []helm.Object  `json:"objects"`
}

var errUsage = errors.New("wrong usage")

func main() {
	err := run(os.Args[1:], os.Stdout)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return
	case errors.Is(err, errUsage):
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func run(arguments []string, out io.Writer) error {
	var files, assignments []string
	var release helm.Release
	line := flag.NewFlagSet("ktsn-chart", flag.ContinueOnError)
	line.Usage = func() {
		fmt.Fprint(line.Output(), help)
		line.PrintDefaults()
	}
	more := func(list *[]string) func(string) error {
		return func(text string) error {
			*list = append(*list, text)
			return nil
		}
	}
	line.Func("values", "a file with values, in YAML", more(&files))
	line.Func("set", "a value, as NAME=VALUE", more(&assignments))
	line.StringVar(&release.Namespace, "namespace", "kube-system", "namespace of the objects")
	line.StringVar(&release.Service, "service", "ktsn", "the program that installs them, for the label app.kubernetes.io/managed-by")
	if err := line.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag package has said it
	}
	if line.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unexpected argument %q: all arguments are flags, see --help\n", line.Arg(0))
		return errUsage
	}
	chart, err := helm.Load()
	if err != nil {
		return err
	}
	values, err := chart.Values(files, assignments)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return errUsage
	}
	objects, err := chart.Render(values, release)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(document{chart.Version(), chart.Defaults(), values, objects})
}
