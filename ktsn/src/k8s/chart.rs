// SPDX-License-Identifier: Apache-2.0
//! The Helm chart, which is part of this program.
//!
//! In: values. Out: the objects that the chart makes of them, as `helm template` does. `k8s/deploy/check` holds the same output against
//! Helm's own engine.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::template::Templates;
use super::yaml;

/// Each file of the chart: its path, its text.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/chart_files.rs"));
/// The chart's name, which Helm puts before the names of templates.
const NAME: &str = "ktsn";
/// Helm's order of kinds; others come last.
const ORDER: [&str; 17] = [
    "Namespace",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Pod",
    "Deployment",
    "StatefulSet",
    "Job",
];

/// One object of the cluster, as text and as a value.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) text: String,
    pub(crate) value: Value,
}

impl Object {
    pub(crate) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// What a release is called.
#[derive(Clone, Debug)]
pub(crate) struct Release<'r> {
    pub(crate) namespace: &'r str,
    /// What stands in the label `app.kubernetes.io/managed-by`.
    pub(crate) service: &'r str,
}

fn file(name: &str) -> &'static str {
    FILES.iter().find(|(path, _)| *path == name).map_or("", |(_, text)| text)
}

fn one(text: &str, name: &str) -> Result<Value, String> {
    yaml::read(text)
        .map_err(|fault| format!("{name}: {fault}"))?
        .pop()
        .ok_or_else(|| format!("{name}: found nothing"))
}

/// The version that Chart.yaml states.
pub(crate) fn version() -> String {
    let chart = one(file("Chart.yaml"), "Chart.yaml").unwrap_or_default();
    chart["appVersion"].as_str().unwrap_or_default().to_owned()
}

/// The values with which the chart comes.
///
/// # Errors
/// A fault of values.yaml.
pub(crate) fn defaults() -> Result<Value, String> {
    one(file("values.yaml"), "values.yaml")
}

/// Replaces values. A value that the chart does not have is an error; `nodeSelector` and resources are open.
///
/// # Errors
/// The value's path.
pub(crate) fn override_values(values: &mut Value, with: &Value, path: &str) -> Result<(), String> {
    let is_open =
        values.as_object().is_some_and(Map::is_empty) || path.split('.').any(|name| name == "resources");
    let (Value::Object(known), Value::Object(given)) = (&mut *values, with) else {
        return match (values, with) {
            (Value::Object(_), other) => Err(format!("{path}: found {other}, expected values below it")),
            (slot, other) => {
                *slot = other.clone();
                Ok(())
            }
        };
    };
    for (key, value) in given {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match known.get_mut(key) {
            Some(slot) => override_values(slot, value, &below)?,
            None if is_open => {
                known.insert(key.clone(), value.clone());
            }
            None => {
                let names: Vec<_> = known.keys().map(String::as_str).collect();
                return Err(format!("{below}: the chart has no such value; there are {}", names.join(", ")));
            }
        }
    }
    Ok(())
}

/// `a.b=c` as a value, with Helm's types: true, false, null and whole numbers are no texts.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn assignment(text: &str) -> Result<Value, String> {
    let expected = || format!("{text:?}: expected NAME=VALUE, such as agent.log=debug");
    let (path, value) = text.split_once('=').ok_or_else(expected)?;
    if path.split('.').any(str::is_empty) {
        return Err(expected());
    }
    let typed = match yaml::scalar(value) {
        Value::Number(number) if number.is_f64() => Value::String(value.to_owned()),
        Value::Null if value.is_empty() => Value::String(String::new()),
        typed => typed,
    };
    Ok(path.rsplit('.').fold(typed, |inner, name| json!({ name: inner })))
}

/// A file of values.
///
/// # Errors
/// The line, and what is wrong there.
pub(crate) fn values_of(text: &str) -> Result<Value, String> {
    Ok(yaml::read(text)?.pop().unwrap_or_else(|| json!({})))
}

/// The objects of the chart with these values, in the order in which they are made.
///
/// # Errors
/// The template, and what it asked for.
pub(crate) fn render(values: &Value, release: &Release<'_>, apis: &[String]) -> Result<Vec<Object>, String> {
    let chart = one(file("Chart.yaml"), "Chart.yaml")?;
    let texts: Vec<(String, &str)> = FILES
        .iter()
        .filter(|(path, _)| path.starts_with("templates/"))
        .map(|(path, text)| (format!("{NAME}/{path}"), *text))
        .collect();
    let others: BTreeMap<String, String> = FILES
        .iter()
        .filter(|(path, _)| !path.starts_with("templates/") && !path.starts_with("crds/"))
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    let templates = Templates::new(&texts, others)?;
    let root = json!({
        "Values": values,
        "Release": {"Name": NAME, "Namespace": release.namespace, "Service": release.service},
        "Chart": {"Name": NAME, "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Template": {"BasePath": format!("{NAME}/templates")},
        "Capabilities": {"APIVersions": apis},
    });
    let mut objects = Vec::new();
    for (path, text) in FILES.iter().filter(|(path, _)| path.starts_with("crds/")) {
        objects.extend(documents(text, path, false)?);
    }
    let mut rendered = Vec::new();
    for (name, _) in texts.iter().filter(|(name, _)| !name.contains("/_") && !name.ends_with("NOTES.txt")) {
        for object in documents(&templates.render(name, &root)?, name, true)? {
            let place = ORDER.iter().position(|kind| *kind == object.kind()).unwrap_or(ORDER.len());
            let other = if place == ORDER.len() { object.kind().to_owned() } else { String::new() };
            rendered.push(((place, name.clone(), other), object));
        }
    }
    rendered.sort_by(|(left, _), (right, _)| left.cmp(right));
    objects.extend(rendered.into_iter().map(|(_, object)| object));
    Ok(objects)
}

/// The documents of a text, without those that only comment; of templates without the licence line.
fn documents(text: &str, name: &str, without_licence: bool) -> Result<Vec<Object>, String> {
    let mut found = Vec::new();
    for part in format!("\n{text}").split("\n---") {
        let kept: Vec<&str> = part
            .lines()
            .filter(|line| !(without_licence && line.contains("SPDX-License-Identifier")))
            .collect();
        let text = kept.join("\n").trim_matches(['\n', '-', ' ']).to_owned();
        for value in yaml::read(&text).map_err(|fault| format!("{name}: {fault}"))? {
            found.push(Object { text: text.clone(), value });
        }
    }
    Ok(found)
}

/// Objects as one text that `kubectl apply -f -` takes.
pub(crate) fn text_of<'o>(objects: impl IntoIterator<Item = &'o Object>) -> String {
    objects.into_iter().map(|object| format!("---\n{}\n", object.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::installed::KINDS;

    const HELM: Release<'static> = Release { namespace: "kube-system", service: "Helm" };

    fn deploy(path: &str) -> String {
        let path = format!("{}/../k8s/deploy/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn after_licence(text: &str) -> &str {
        text.split_once("---\n").map_or("", |(_, rest)| rest)
    }

    /// `scripts/manifests.sh check` (make lint) holds the same files against Helm's engine.
    #[test]
    fn the_chart_is_rendered_as_helm_renders_it() {
        let rendered = text_of(&render(&defaults().unwrap(), &HELM, &[]).unwrap());
        let plain = deploy("manifests/ktsn.yaml");
        pretty(after_licence(&rendered), after_licence(&plain));
        for variant in ["dual-stack", "pinned", "other", "monitoring"] {
            let mut values = defaults().unwrap();
            let with = values_of(&deploy(&format!("check/variants/{variant}.values.yaml"))).unwrap();
            override_values(&mut values, &with, "").unwrap();
            let objects = render(&values, &HELM, &[]).unwrap();
            let rendered =
                text_of(objects.iter().filter(|object| object.kind() != "CustomResourceDefinition"));
            pretty(
                after_licence(&rendered),
                after_licence(&deploy(&format!("check/variants/{variant}.yaml"))),
            );
        }
    }

    #[test]
    fn the_dashboard_is_whole_and_every_kind_is_known_to_uninstall() {
        let mut values = defaults().unwrap();
        for text in ["monitoring.rules=true", "monitoring.dashboard=true"] {
            override_values(&mut values, &assignment(text).unwrap(), "").unwrap();
        }
        let objects = render(&values, &HELM, &[]).unwrap();
        let dashboard = objects.iter().find(|object| object.name() == "ktsn-dashboard").unwrap();
        let shown: Value =
            serde_json::from_str(dashboard.value["data"]["ktsn.json"].as_str().unwrap()).unwrap();
        let file: Value = serde_json::from_str(&deploy("helm/ktsn/monitoring/dashboard.json")).unwrap();
        assert_eq!(shown, file);
        for object in objects {
            let kind = object.kind().to_lowercase();
            let is_known = KINDS.iter().any(|(known, ..)| *known == kind);
            assert!(is_known || kind == "customresourcedefinition", "{kind}");
        }
    }

    /// The first line that differs, instead of two long texts.
    fn pretty(found: &str, expected: &str) {
        for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
            assert_eq!(found, expected, "line {number}");
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn values_that_the_chart_does_not_have_are_refused() {
        let mut values = defaults().unwrap();
        for (text, word) in [
            ("network.cidr=10.0.0.0/8", "network.cidr: the chart has no such value; there are cidrs"),
            ("network=3", "network: found 3"),
        ] {
            let fault = override_values(&mut values, &assignment(text).unwrap(), "").unwrap_err();
            assert!(fault.starts_with(word), "{fault}");
        }
        for wrong in ["x", "=1", "a..b=1"] {
            assert!(assignment(wrong).unwrap_err().contains("NAME=VALUE"), "{wrong}");
        }
        for (text, expected) in [
            ("nodeSelector.tsn=yes", json!({"nodeSelector": {"tsn": "yes"}})),
            ("resource.capacity=16", json!({"resource": {"capacity": 16}})),
            ("ktsnd.wakeUps=true", json!({"ktsnd": {"wakeUps": true}})),
            ("network.uplink=", json!({"network": {"uplink": ""}})),
        ] {
            let assigned = assignment(text).unwrap();
            assert_eq!(assigned, expected);
            override_values(&mut values, &assigned, "").unwrap();
        }
        assert_eq!(
            (&values["nodeSelector"]["tsn"], &values["resource"]["name"]),
            (&json!("yes"), &json!("ktsn.io/tsn"))
        );
    }
}
