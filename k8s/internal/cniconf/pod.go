// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"strings"
)

// environment reads CNI_ARGS: KEY=VALUE, separated by semicolons. It ignores keys of other plugins.
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
		case "IP", "GATEWAY":
			if value != "" {
				c.chosen = path
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// arguments reads args.cni, which goes before the network's configuration.
func (c *Conf) arguments(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	args, err := objectOf("args", raw)
	if err != nil {
		return err
	}
	for key := range args {
		if key != "cni" && strings.EqualFold(key, "cni") {
			return fault("args."+key, "expected cni: plugins do not agree whether they read this name")
		}
	}
	if args["cni"] == nil {
		return nil
	}
	known := c.annotations()
	known["mac"] = c.mac
	return known.object("args.cni", args["cni"], c.asked)
}

// annotations that a pod may have.
func (c *Conf) annotations() fields {
	return fields{AskAnnotation: c.annotation, ReceiveAnnotation: word(&c.receive, "expect", "kernel"), PeriodAnnotation: c.period}
}

// period takes the annotation instead of what the network's configuration says.
func (c *Conf) period(path string, raw json.RawMessage) error {
	if _, err := exactly[string](path, raw, "a time with its unit, as in 1ms"); err != nil {
		return err
	}
	c.periodPath = path
	return c.set(path, periodField, raw)
}

func (c *Conf) annotation(path string, raw json.RawMessage) error {
	value, err := exactly[string](path, raw, `"true" or "false"`)
	if err != nil {
		return err
	}
	return c.ask(path, value)
}

// resolveReceive settles `receive`: with "asked" the pods that ask have "expect"; with "expect" all have it that do not say "kernel". A pod
// cannot widen what the network's configuration grants.
func (c *Conf) resolveReceive() {
	switch configured := string(c.Attachment["receive"]); {
	case configured == `"asked"` && c.receive == "expect":
		c.Attachment.Set("receive", "expect")
	case configured == `"asked"`, configured == `"expect"` && c.receive == "kernel":
		c.Attachment.Set("receive", "kernel")
	}
}

// runtime reads what the runtime adds by capability. By the CNI conventions it goes before everything else.
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
			return c.annotations().object(path, raw, pass)
		}
	}
	return known.object("runtimeConfig", raw, func(key string, _ json.RawMessage) error {
		if strings.EqualFold(key, "ips") && !capabilities["ips"] {
			c.ungranted = append(c.ungranted, key)
		}
		return nil
	})
}
