// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// required says what an object lacks that the API server would ask for, and what of it refers to nothing.
func required(object runtime.Object) error {
	switch typed := object.(type) {
	case *corev1.Pod:
		return podSpec(typed.Spec)
	case *appsv1.DaemonSet:
		return workload(typed.Spec.Selector, typed.Spec.Template)
	case *appsv1.Deployment:
		return workload(typed.Spec.Selector, typed.Spec.Template)
	case *rbacv1.ClusterRole:
		return rules(typed.Rules)
	case *rbacv1.Role:
		return rules(typed.Rules)
	case *rbacv1.ClusterRoleBinding:
		return binding(typed.RoleRef, typed.Subjects)
	case *rbacv1.RoleBinding:
		return binding(typed.RoleRef, typed.Subjects)
	}
	return nil
}

func workload(selector *metav1.LabelSelector, template corev1.PodTemplateSpec) error {
	chosen, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return err
	}
	if chosen.Empty() || !chosen.Matches(labels.Set(template.Labels)) {
		return fmt.Errorf("spec.selector: does not select its own pods")
	}
	if rights := template.Spec.SecurityContext; rights == nil || rights.SeccompProfile == nil || rights.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		return fmt.Errorf("spec.template.spec.securityContext.seccompProfile: RuntimeDefault is expected")
	}
	return podSpec(template.Spec)
}

func podSpec(spec corev1.PodSpec) error {
	volumes := map[string]bool{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = true
	}
	if len(spec.Containers) == 0 {
		return fmt.Errorf("spec.containers: none")
	}
	for _, container := range spec.Containers {
		if err := goMemory(container); err != nil {
			return err
		}
		if container.Name == "" || container.Image == "" {
			return fmt.Errorf("container %q: name and image: one is missing", container.Name)
		}
		for _, mount := range container.VolumeMounts {
			if !volumes[mount.Name] || mount.MountPath == "" {
				return fmt.Errorf("container %s: volume mount %q: no such volume, or no path", container.Name, mount.Name)
			}
		}
		if rights := container.SecurityContext; rights == nil || rights.Privileged != nil && *rights.Privileged || rights.Capabilities == nil {
			return fmt.Errorf("container %s: a security context without `privileged` that lists capabilities is expected", container.Name)
		}
	}
	return nil
}

// goMemory checks GOMEMLIMIT, where a container has it: at most 90 % of the container's memory limit. Its units are B, KiB, MiB and GiB.
func goMemory(container corev1.Container) error {
	for _, variable := range container.Env {
		if variable.Name != "GOMEMLIMIT" {
			continue
		}
		limit, err := resource.ParseQuantity(strings.TrimSuffix(variable.Value, "B"))
		if err != nil {
			return fmt.Errorf("container %s: GOMEMLIMIT %q: %w", container.Name, variable.Value, err)
		}
		if most := container.Resources.Limits.Memory(); !most.IsZero() && limit.Value() > most.Value()*9/10 {
			return fmt.Errorf("container %s: GOMEMLIMIT %s: at most 90 %% of limits.memory, %s, is expected", container.Name, variable.Value, most)
		}
	}
	return nil
}

// rules of a role: each one by name, nothing by "*".
func rules(rules []rbacv1.PolicyRule) error {
	for index, rule := range rules {
		// A rule is about resources, or about paths.
		isOfPaths := len(rule.NonResourceURLs) > 0 && len(rule.Resources) == 0 && len(rule.APIGroups) == 0
		if len(rule.Verbs) == 0 || !isOfPaths && (len(rule.Resources) == 0 || len(rule.APIGroups) == 0) {
			return fmt.Errorf("rules[%d]: verbs, resources or apiGroups: one is missing", index)
		}
		for _, words := range [][]string{rule.Verbs, rule.Resources, rule.APIGroups, rule.NonResourceURLs} {
			for _, word := range words {
				if word == "*" {
					return fmt.Errorf("rules[%d]: %q: least privilege has names", index, word)
				}
			}
		}
	}
	return nil
}

func binding(role rbacv1.RoleRef, subjects []rbacv1.Subject) error {
	if role.Name == "" || role.Kind == "" || len(subjects) == 0 {
		return fmt.Errorf("roleRef or subjects: missing")
	}
	for _, subject := range subjects {
		if subject.Name == "" || subject.Namespace == "" {
			return fmt.Errorf("subjects: name and namespace: one is missing")
		}
	}
	return nil
}
