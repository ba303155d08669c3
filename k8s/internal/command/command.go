// SPDX-License-Identifier: Apache-2.0

// Package command is what the cluster's programs have in common: how their command lines are read, how they begin and end.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Exit statuses, as ktsn's.
const (
	failed     = 1
	wrongUsage = 2
)

// ErrVersion asks for nothing but the version, as flag.ErrHelp for nothing but help.
var ErrVersion = errors.New("the version is asked for")

// Line is a program's command line: its own flags, and --log-level and --version of all programs.
type Line struct {
	*flag.FlagSet
	environment func(string) string
	level       *string
	version     *bool
}

// NewLine without flags of its own yet. The help stands above the list of flags.
func NewLine(program, help string, environment func(string) string, output io.Writer) *Line {
	l := &Line{FlagSet: flag.NewFlagSet(program, flag.ContinueOnError), environment: environment}
	l.SetOutput(output)
	l.Usage = func() {
		fmt.Fprint(output, help)
		l.PrintDefaults()
	}
	l.level = l.String("log-level", "info", "debug, info, warn or error")
	l.version = l.Bool("version", false, "print the version")
	return l
}

// Read reads the arguments, and from the environment what they leave out: --run-dir from KTSN_RUN_DIR. It gives the
// program's log.
func (l *Line) Read(arguments []string) (*slog.Logger, error) {
	if err := l.Parse(arguments); err != nil {
		return nil, err
	}
	if l.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: all arguments are flags, see --help", l.Arg(0))
	}
	if err := l.fromEnvironment(); err != nil {
		return nil, err
	}
	if *l.version {
		return nil, ErrVersion
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(*l.level)); err != nil {
		return nil, fmt.Errorf("--log-level: found %q, expected debug, info, warn or error", *l.level)
	}
	return slog.New(slog.NewTextHandler(l.Output(), &slog.HandlerOptions{Level: level})), nil
}

func (l *Line) fromEnvironment() error {
	given := map[string]bool{}
	l.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var fault error
	l.VisitAll(func(f *flag.Flag) {
		name := "KTSN_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := l.environment(name); value != "" && !given[f.Name] && fault == nil {
			if err := l.Set(f.Name, value); err != nil {
				fault = fmt.Errorf("%s: found %q: %w", name, value, err)
			}
		}
	})
	return fault
}

// Begin ends the program here where its command line asks for no work, or for what cannot be.
func Begin(program string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.Is(err, ErrVersion):
		fmt.Println(program, nodeapi.Version)
		os.Exit(0)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(wrongUsage)
	}
}

// Run works until SIGINT or SIGTERM, or until the work fails.
func Run(log *slog.Logger, work func(context.Context) error) {
	klog.SetSlogLogger(log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := work(ctx)
	stop()
	if err != nil {
		log.Error("ended", "error", err)
		os.Exit(failed)
	}
}
