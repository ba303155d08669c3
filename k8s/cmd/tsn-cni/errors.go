// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// Codes of STATUS, by the specification's version 1.1.
const (
	codeUnavailable = 50 // no ADD can succeed
	codeLimited     = 51 // containers that are there may be short of something, too
)

// Error codes of our own (CNI leaves 100 and above to plugins).
const (
	codeRefused  = 100 // ktsnd refuses the attachment for a reason of the node
	codeCapacity = 101 // the node's TSN capacity is spent
	codePolicy   = 102 // a network policy selects the pod
	codeSkew     = 103 // tsn-cni and ktsnd are of different versions
	codeLink     = 104 // the kernel refuses the link, an address or a route
	codeExists   = 105 // the interface is there already
	codeState    = 106 // the state directory cannot be used
	codeMissing  = 107 // CHECK found less than ADD made
)

func failure(code uint, format string, values ...any) error {
	return types.NewError(code, fmt.Sprintf(format, values...), "")
}

// coded translates an error into CNI's form.
func coded(err error) *types.Error {
	var cni *types.Error
	var conf *cniconf.Error
	var daemon *nodeapi.Error
	switch {
	case errors.As(err, &cni):
		return cni
	case errors.As(err, &conf):
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid network configuration: "+conf.Error(), "")
	case errors.As(err, &daemon):
		return types.NewError(codeOf(daemon), daemon.Error(), "")
	case errors.Is(err, podlink.ErrExists):
		return types.NewError(codeExists, err.Error(), "")
	case errors.Is(err, cnistate.ErrBusy):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

func codeOf(err *nodeapi.Error) uint {
	switch {
	case nodeapi.IsAbsent(err):
		return types.ErrTryAgainLater
	case err.Method == "Version":
		return codeSkew
	case err.Code == codes.InvalidArgument:
		return types.ErrInvalidNetworkConfig
	case err.Code == codes.ResourceExhausted:
		return codeCapacity
	}
	return codeRefused
}
