// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"ktsn.io/ktsn/k8s/internal/nodefile"
)

// The parts of a CDI specification that are needed here
// (github.com/cncf-tags/container-device-interface, SPEC.md).
type (
	cdiSpec struct {
		Version        string      `json:"cdiVersion"`
		Kind           string      `json:"kind"`
		Devices        []cdiDevice `json:"devices"`
		ContainerEdits cdiEdits    `json:"containerEdits"`
	}
	cdiDevice struct {
		Name           string   `json:"name"`
		ContainerEdits cdiEdits `json:"containerEdits"`
	}
	cdiEdits struct {
		Env    []string   `json:"env,omitempty"`
		Mounts []cdiMount `json:"mounts,omitempty"`
	}
	cdiMount struct {
		HostPath      string   `json:"hostPath"`
		ContainerPath string   `json:"containerPath"`
		Options       []string `json:"options"`
	}
)

// cdiVersion is the oldest one with all that is used, so that old runtimes take it.
const cdiVersion = "0.5.0"

// WriteCDI writes the CDI specification of the slots there are, with the library in `folder`. It does nothing
// without a CDIDir. Container runtimes read the directory when a container is made, so the file is always whole.
func (p *Plugin) WriteCDI(folder string) error {
	if p.config.CDIDir == "" {
		return nil
	}
	devices, _ := p.devices()
	if err := os.MkdirAll(p.config.CDIDir, 0o755); err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	path := filepath.Join(p.config.CDIDir, strings.ReplaceAll(p.config.Resource, "/", "-")+".json")
	return nodefile.WriteJSON(path, p.cdiSpec(len(devices), folder))
}

func (p *Plugin) cdiSpec(count int, folder string) cdiSpec {
	spec := cdiSpec{Version: cdiVersion, Kind: p.config.Resource, Devices: []cdiDevice{}}
	for name, value := range p.environment() {
		spec.ContainerEdits.Env = append(spec.ContainerEdits.Env, name+"="+value)
	}
	sort.Strings(spec.ContainerEdits.Env)
	for _, mount := range mountsOf(p.config.ClientDir, folder) {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, cdiMount{
			HostPath: mount.host, ContainerPath: mount.container,
			Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
		})
	}
	for index := range count {
		// A device without edits of its own is refused by some runtimes.
		name := deviceName(index)
		spec.Devices = append(spec.Devices, cdiDevice{
			Name: name, ContainerEdits: cdiEdits{Env: []string{"KTSN_DEVICE=" + name}},
		})
	}
	return spec
}
