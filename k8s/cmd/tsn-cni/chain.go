// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// previous reads the result of the plugin before tsn-cni.
func previous(conf *cniconf.Conf) (types.Result, error) {
	var raw map[string]any
	if err := json.Unmarshal(conf.PrevResult, &raw); err != nil {
		return nil, failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	parsed := &types.PluginConf{CNIVersion: conf.CNIVersion, RawPrevResult: raw}
	if err := version.ParsePrevResult(parsed); err != nil {
		return nil, failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	return parsed.PrevResult, nil
}

// previousAs100 reads that result in the form of version 1.0.0 and later.
func previousAs100(conf *cniconf.Conf) (*types100.Result, error) {
	printed, err := previous(conf)
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(printed)
	if err != nil {
		return nil, failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	return result, nil
}

// printUntouched answers for a pod that does not ask: with the previous result.
func printUntouched(conf *cniconf.Conf) error {
	if conf.IsChained() {
		result, err := previous(conf)
		if err != nil {
			return err
		}
		return types.PrintResult(result, conf.CNIVersion)
	}
	return types.PrintResult(&types100.Result{CNIVersion: types100.ImplementedSpecVersion}, conf.CNIVersion)
}
