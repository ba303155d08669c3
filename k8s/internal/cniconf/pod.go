// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"slices"
	"strings"
)

// Environment reads CNI_ARGS: KEY=VALUE, separated by semicolons. Keys of other plugins pass.
func (c *Conf) environment(args string) error {
	for _, pair := range strings.Split(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fault("CNI_ARGS", "%.60q; expected KEY=VALUE", pair)
		}
		path := "CNI_ARGS." + key
		var err error
		switch key {
		case "K8S_POD_NAMESPACE":
			c.Pod.Namespace = value
		case "K8S_POD_NAME":
			c.Pod.Name = value
		case "K8S_POD_UID":
			c.Pod.UID = value
		case "MAC":
			err = c.hardware(path, value)
		case AskArgument:
			err = c.ask(path, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Arguments reads args.cni. What a pod may not say is refused, not passed over: nobody shall believe that it counts. Names that
// are not ours belong to other plugins (ips to IPAM's).
func (c *Conf) arguments(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	args, err := objectOf("args", raw)
	if err != nil || args["cni"] == nil {
		return err
	}
	ours := attachmentFields(c.Attachment, &c.OverlayGiven)
	known := fields{"mac": c.mac, AskAnnotation: c.annotation}
	for name, decode := range ours {
		known[name] = decode
		if !slices.Contains(podFields, name) {
			known[name] = func(path string, _ json.RawMessage) error {
				return fault(path, "a pod may not set it: the network's configuration does; a pod may set mac, %s",
					strings.Join(podFields, ", "))
			}
		}
	}
	// What the pod says replaces the network's.
	if cni, err := objectOf("args.cni", args["cni"]); err == nil && cni["take"] != nil {
		c.Attachment.TakePriorityMin = nil
	}
	return known.object("args.cni", args["cni"], func(string) bool { return true })
}

func (c *Conf) annotation(path string, raw json.RawMessage) error {
	value, err := exactly[string](path, raw, `"true" or "false"`)
	if err != nil {
		return err
	}
	return c.ask(path, value)
}

// Runtime reads what the runtime adds by capability. It goes before everything else, by the CNI conventions.
func (c *Conf) runtime(raw json.RawMessage, capabilities map[string]bool) error {
	if raw == nil {
		return nil
	}
	known := fields{}
	if capabilities["mac"] {
		known["mac"] = func(path string, raw json.RawMessage) error {
			if string(raw) == `""` { // Multus, for a pod that asks for none
				return nil
			}
			return c.mac(path, raw)
		}
	}
	if capabilities["deviceID"] {
		known["deviceID"] = text(&c.DeviceID)
	}
	if capabilities[AnnotationsCapability] {
		known[AnnotationsCapability] = func(path string, raw json.RawMessage) error {
			if string(raw) == "null" {
				return nil
			}
			return fields{AskAnnotation: c.annotation}.object(path, raw, func(string) bool { return true })
		}
	}
	return known.object("runtimeConfig", raw, func(string) bool { return true })
}
