// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	statusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
	resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
	// checkpoint is where kubelet keeps which pod has which device.
	checkpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
)

// podArgs are the arguments that the runtime gives in CNI_ARGS.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE          types.UnmarshallableString //nolint:revive // the names are the protocol's
	K8S_POD_NAME               types.UnmarshallableString //nolint:revive
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString //nolint:revive
	K8S_POD_UID                types.UnmarshallableString //nolint:revive
}

// selection is one element of the annotation (section 4.1.2 of the standard).
type selection struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Interface string         `json:"interface"`
	IPs       []string       `json:"ips"`
	MAC       string         `json:"mac"`
	CNIArgs   map[string]any `json:"cni-args"`
}

// delegate is one network of a pod. What is exported is what DEL still knows.
type delegate struct {
	Name         string         `json:"name"`
	Types        []string       `json:"types"`
	CNIVersion   string         `json:"cniVersion"`
	ListName     string         `json:"listName"`
	IfName       string         `json:"ifName"`
	Capabilities map[string]any `json:"-"`
	list         *libcni.NetworkConfigList
}

// networkStatus is one element of the status annotation (section 5).
type networkStatus struct {
	Name      string    `json:"name"`
	Interface string    `json:"interface"`
	IPs       []string  `json:"ips"`
	MAC       string    `json:"mac"`
	Default   bool      `json:"default,omitempty"`
	DNS       types.DNS `json:"dns"`
}

// parseNetworks reads the annotation in either of its two forms.
func parseNetworks(text, namespace string) ([]selection, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var chosen []selection
	if strings.HasPrefix(text, "[") {
		if err := json.Unmarshal([]byte(text), &chosen); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
		}
	} else {
		for word := range strings.SplitSeq(text, ",") {
			var one selection
			rest, device, _ := strings.Cut(strings.TrimSpace(word), "@")
			one.Interface = device
			if before, after, found := strings.Cut(rest, "/"); found {
				one.Namespace, one.Name = before, after
			} else {
				one.Name = rest
			}
			chosen = append(chosen, one)
		}
	}
	for index := range chosen {
		if chosen[index].Name == "" {
			return nil, fmt.Errorf("annotation %s: element %d has no name", networksAnnotation, index+1)
		}
		if chosen[index].Namespace == "" {
			chosen[index].Namespace = namespace
		}
		if chosen[index].Interface == "" {
			chosen[index].Interface = fmt.Sprintf("net%d", index+1)
		}
	}
	return chosen, nil
}

// delegates are the default network and those that the pod asks for, in this order.
func (c *call) delegates(ctx context.Context, api *api) ([]*delegate, error) {
	list, err := libcni.ConfListFromFile(c.conf.ClusterNetwork)
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	found := []*delegate{describe(&delegate{Name: list.Name, IfName: c.args.IfName, list: list})}
	var own struct {
		RuntimeConfig map[string]any `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(c.args.StdinData, &own); err != nil {
		return nil, err
	}
	found[0].Capabilities = own.RuntimeConfig
	namespace := string(c.pod.K8S_POD_NAMESPACE)
	pod, err := api.pod(ctx, namespace, string(c.pod.K8S_POD_NAME))
	if err != nil {
		return nil, err
	}
	if uid := string(c.pod.K8S_POD_UID); uid != "" && uid != pod.Metadata.UID {
		return nil, fmt.Errorf("pod %s/%s is another one by now (%s, not %s)", namespace, c.pod.K8S_POD_NAME, pod.Metadata.UID, uid)
	}
	chosen, err := parseNetworks(pod.Metadata.Annotations[networksAnnotation], namespace)
	if err != nil {
		return nil, err
	}
	devices := map[string][]string{}
	for _, one := range chosen {
		definition, err := api.definition(ctx, one.Namespace, one.Name)
		if err != nil {
			return nil, err
		}
		device := ""
		if resource := definition.Metadata.Annotations[resourceAnnotation]; resource != "" {
			if devices[resource] == nil {
				devices[resource] = allocated(checkpoint, pod.Metadata.UID, resource)
			}
			if len(devices[resource]) > 0 { // one device for each network, as Multus gives them out
				device, devices[resource] = devices[resource][0], devices[resource][1:]
			}
		}
		made, err := newDelegate(one, definition.Spec.Config, device)
		if err != nil {
			return nil, err
		}
		found = append(found, made)
	}
	return found, nil
}

// newDelegate makes the configuration that a network's plugins get.
func newDelegate(one selection, text, device string) (*delegate, error) {
	name := one.Namespace + "/" + one.Name
	var raw map[string]any
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("network %s: spec.config: %w", name, err)
	}
	if raw["name"] == nil {
		raw["name"] = one.Name
	}
	plugins, isList := raw["plugins"].([]any)
	if !isList {
		plugins = []any{raw}
	}
	for _, plugin := range plugins {
		fields, ok := plugin.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("network %s: spec.config: plugins: expected objects", name)
		}
		if device != "" {
			fields["deviceID"], fields["pciBusID"] = device, device
		}
		if len(one.CNIArgs) > 0 {
			fields["args"] = map[string]any{"cni": one.CNIArgs}
		}
	}
	if !isList {
		raw = map[string]any{"cniVersion": raw["cniVersion"], "name": raw["name"], "plugins": plugins}
	}
	whole, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	list, err := libcni.ConfListFromBytes(whole)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", name, err)
	}
	capabilities := map[string]any{}
	if len(one.IPs) > 0 {
		capabilities["ips"] = one.IPs
	}
	if one.MAC != "" {
		capabilities["mac"] = one.MAC
	}
	return describe(&delegate{Name: name, IfName: one.Interface, Capabilities: capabilities, list: list}), nil
}

func describe(d *delegate) *delegate {
	d.CNIVersion, d.ListName = d.list.CNIVersion, d.list.Name
	for _, plugin := range d.list.Plugins {
		d.Types = append(d.Types, plugin.Network.Type)
	}
	return d
}

// stripped is the configuration that DEL gets: name, version and types, nothing of the plugin's own.
func (d *delegate) stripped() (*libcni.NetworkConfigList, error) {
	if len(d.Types) == 0 {
		return nil, nil
	}
	plugins := make([]map[string]string, len(d.Types))
	for index, kind := range d.Types {
		plugins[index] = map[string]string{"type": kind}
	}
	text, err := json.Marshal(map[string]any{"cniVersion": d.CNIVersion, "name": d.ListName, "plugins": plugins})
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromBytes(text)
}

// allocated reads which devices of a resource kubelet has given to a pod; none when it does not say.
func allocated(file, uid, resource string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var kept struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID       string
				ResourceName string
				DeviceIDs    map[string][]string
			}
		}
	}
	if json.Unmarshal(text, &kept) != nil {
		return nil
	}
	found := []string{}
	for _, entry := range kept.Data.PodDeviceEntries {
		if entry.PodUID == uid && entry.ResourceName == resource {
			for _, devices := range entry.DeviceIDs {
				found = append(found, devices...)
			}
		}
	}
	return found
}

func statusOf(d *delegate, result types.Result, isDefault bool) (networkStatus, error) {
	status := networkStatus{Name: d.Name, Interface: d.IfName, Default: isDefault, IPs: []string{}}
	got, err := current.NewResultFromResult(result)
	if err != nil {
		return status, fmt.Errorf("network %s: result: %w", d.Name, err)
	}
	for _, address := range got.IPs {
		status.IPs = append(status.IPs, address.Address.IP.String())
	}
	for _, device := range got.Interfaces {
		if device.Name == d.IfName && device.Sandbox != "" {
			status.MAC = device.Mac
		}
	}
	status.DNS = got.DNS
	return status, nil
}
