//! Converts values of ingress-nginx' chart. `ingress_control::migration` has the verdicts by name. This module has the
//! values that cannot be the same while both controllers are installed.

use ingress_control::migration::{self, Kind, Surface};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::check::{is_off, is_unset, refused_below};

/// Word for names that neither chart knows.
const UNKNOWN: &str = "unknown";

/// Values of this controller's chart, with the outcome for each value of ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::migrate) struct Converted {
    pub(in crate::migrate) values: Value,
    /// Rows in the order of their paths.
    pub(in crate::migrate) rows: Vec<Row>,
}

/// The verdict on one value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::migrate) struct Row {
    /// Path with dots, such as `controller.config.proxy-body-size`.
    pub(in crate::migrate) value: String,
    /// The word of docs/migrate/values.md, or `unknown`.
    pub(in crate::migrate) verdict: &'static str,
    pub(in crate::migrate) here: Here,
    /// The difference or the reason; empty if there is none.
    pub(in crate::migrate) what: String,
    /// The substitute; empty if there is no need or no substitute.
    pub(in crate::migrate) instead: String,
    /// Whether an effect of the value is lost.
    pub(in crate::migrate) is_lost: bool,
}

/// The outcome for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::migrate) enum Here {
    Copied,
    /// Another value is written.
    Changed,
    LeftOut,
    /// The file does not set it.
    NotSet,
}

/// Values that belong to the release of ingress-nginx while it is installed, with the reason and the remedy.
const TAKEN: &[(&str, &str, &str)] = &[
    ("fullnameOverride", NAMES, LATER),
    ("namespaceOverride", "the namespace of ingress-nginx goes with it", "`helm install --namespace`"),
    ("controller.image", "it names an image of ingress-nginx", "name the image of xdp-ingress"),
    ("global.image.registry", "it is the registry of images of ingress-nginx", "name the registry of xdp-ingress"),
    (
        "serviceAccount.name",
        "the account has the rights of ingress-nginx",
        "make one, and give it the rights of docs/rbac.md",
    ),
];

/// Values that name objects in the namespace of ingress-nginx.
const NAMING: &[&str] = &["controller.extraEnvs", "controller.extraVolumes", "imagePullSecrets"];
const BOTH: &str = "objects that it names must also be in the namespace of xdp-ingress";

/// Annotations by which a Service asks for an address or a name, which two Services cannot have: parts of their names.
const ASKING: &[&str] = &[
    "external-dns.alpha.kubernetes.io/hostname",
    "external-dns.alpha.kubernetes.io/internal-hostname",
    "aws-load-balancer-eip-allocations",
    "aws-load-balancer-name",
    "aws-load-balancer-private-ipv4-addresses",
    "azure-load-balancer-ipv4",
    "azure-load-balancer-ipv6",
    "azure-dns-label-name",
    "azure-pip-name",
    "azure-pip-prefix-id",
    "hcloud/load-balancer-name",
    "load-balancer.hetzner.cloud/name",
    "load-balancer-id",
    "lb-ipam-ips",
    "lbipam.cilium.io/ips",
    "loadbalancerips",
    "networking.gke.io/load-balancer-ip-addresses",
    "ip-allocated-from-pool",
];

/// Values of Services and ports that ingress-nginx holds until it is removed.
const HELD: &[&str] = &[
    "controller.metrics.port",
    "controller.metrics.service.clusterIP",
    "controller.service.clusterIP",
    "controller.service.externalIPs",
    "controller.service.internal.clusterIP",
    "controller.service.internal.externalIPs",
    "controller.service.internal.loadBalancerIP",
    "controller.service.internal.nodePorts",
    "controller.service.loadBalancerIP",
    "controller.service.nodePorts",
];
const NAMES: &str = "objects of the whole cluster have this name, and belong to ingress-nginx";
const LATER: &str = "add it after the removal of ingress-nginx";

/// Default of `controller.drainTimeout` of this chart, in seconds.
const DRAIN: u64 = 240;

/// Converts values of ingress-nginx' chart.
pub(in crate::migrate) fn convert(values: &Value) -> Converted {
    let mut conversion = Conversion::default();
    conversion.descend(values, &[]);
    conversion.finish(values)
}

/// Returns whether a name stands for a map: names of the chart are below it, or ports.
fn is_map(name: &str) -> bool {
    let below = format!("{name}.");
    let mut names = Surface::Values.names();
    ["tcp", "udp"].contains(&name)
        || names.any(|other| other.starts_with(&below)) && Surface::Values.names().all(|other| other != name)
}

#[derive(Default)]
struct Conversion {
    values: Value,
    rows: Vec<Row>,
}

// === impl Conversion ===

impl Conversion {
    fn descend(&mut self, value: &Value, path: &[&str]) {
        let name = path.join(".");
        if value.is_null() && !path.is_empty() {
            let what = "`null` takes a default from ingress-nginx' chart";
            return self.push(&name, "differs", Here::LeftOut, what, "set the value, if the default here is another");
        }
        if is_unset(value) {
            return;
        }
        match &*name {
            "serviceAccount.create" if is_off(value) => {
                let what = "the account of ingress-nginx has other rights";
                return self.push(&name, "differs", Here::LeftOut, what, "");
            }
            "controller.service.annotations" | "controller.service.internal.annotations" if value.is_object() => {
                return self.annotations(value, path);
            }
            "controller.config" => return self.each(value, path, Surface::Settings),
            "controller.extraArgs" => return self.each(value, path, Surface::Flags),
            "controller.ingressClassResource.enabled" => {
                let what = "the class belongs to ingress-nginx, and is shared";
                return self.push(&name, "differs", Here::Changed, what, "");
            }
            "controller.lifecycle" if value.to_string().contains("/wait-shutdown") => {
                return self.push(&name, "no effect", Here::LeftOut, "the process drains by itself", "");
            }
            "controller.terminationGracePeriodSeconds" if value.as_u64().is_some_and(|seconds| seconds <= DRAIN) => {
                let seconds = value.as_u64().unwrap_or_default();
                self.set(&["controller", "drainTimeout"], json!(seconds.saturating_sub(10).max(1)));
                self.set(path, value.clone());
                let what = "`controller.drainTimeout` is written with it, since it must be shorter";
                return self.push(&name, "differs", Here::Copied, what, "");
            }
            _ => {}
        }
        if let Some((_, what, instead)) = TAKEN.iter().find(|(taken, ..)| *taken == name) {
            return self.push(&name, "differs", Here::LeftOut, what, instead);
        }
        if HELD.contains(&&*name) {
            self.push(&name, "differs", Here::LeftOut, "ingress-nginx holds it until its removal", LATER);
            return;
        }
        let verdict = if path.is_empty() { None } else { Surface::Values.verdict(&name) };
        let below = value.as_object().filter(|map| !map.is_empty());
        let is_read = !verdict.is_some_and(|verdict| matches!(verdict.kind, Kind::NoEffect | Kind::Refused));
        if below.is_none() && is_read && is_map(&name) {
            return self.push_lost(&name, UNKNOWN, "it is a map of further values, and this is none", "correct it");
        }
        match verdict.map(|verdict| (verdict, verdict.kind)) {
            Some((_, Kind::Refused)) if is_off(value) => {}
            Some((verdict, Kind::Refused)) => self.lose(&name, verdict),
            Some((verdict, Kind::NoEffect)) => {
                self.push(&name, verdict.kind.word(), Here::LeftOut, verdict.text, verdict.instead);
                for (name, verdict) in refused_below(value, &name) {
                    self.lose(&name, verdict);
                }
            }
            // A map of any names is one value.
            Some((verdict, kind)) if below.is_none() || Surface::Values.verdict(&format!("{name}.?")).is_some() => {
                self.set(path, value.clone());
                if NAMING.contains(&&*name) {
                    return self.push(&name, Kind::Differs.word(), Here::Copied, BOTH, "");
                }
                self.push(&name, kind.word(), Here::Copied, verdict.text, verdict.instead);
            }
            _ => match below {
                Some(map) => {
                    for (key, value) in map {
                        // Helm reads a dot as a part of the name, and no value has one.
                        if key.contains('.') {
                            let name = [path, &[key]].concat().join(".");
                            self.push_lost(&name, UNKNOWN, "no name of a value holds a dot", "write maps within maps");
                            continue;
                        }
                        self.descend(value, &[path, &[key]].concat());
                    }
                }
                None => {
                    let what = "neither chart has such a value";
                    self.push_lost(&name, UNKNOWN, what, "remove it");
                }
            },
        }
    }

    /// Converts a map of settings or flags, which have their own verdicts.
    fn each(&mut self, map: &Value, path: &[&str], surface: Surface) {
        let Some(entries) = map.as_object() else {
            return self.push_lost(
                &path.join("."),
                UNKNOWN,
                "it is a map of further values, and this is none",
                "correct it",
            );
        };
        for (key, value) in entries.iter().filter(|(_, value)| !value.is_null()) {
            let name = format!("{}.{key}", path.join("."));
            if value.is_object() || value.is_array() {
                self.push_lost(&name, UNKNOWN, "its value is no text", "write one text");
                continue;
            }
            match surface.verdict(key) {
                None => {
                    self.push_lost(&name, UNKNOWN, "it is unknown to ingress-nginx and to xdp-ingress", "remove it")
                }
                Some(verdict) => match verdict.kind {
                    Kind::Refused if is_off(value) => {}
                    Kind::Refused => self.lose(&name, verdict),
                    kind @ Kind::NoEffect => {
                        self.push(&name, kind.word(), Here::LeftOut, verdict.text, verdict.instead);
                    }
                    kind @ (Kind::Full | Kind::Differs) => {
                        self.set(&[path, &[key]].concat(), value.clone());
                        self.push(&name, kind.word(), Here::Copied, verdict.text, verdict.instead);
                    }
                },
            }
        }
    }

    /// Converts annotations of a Service, without those that ask for what ingress-nginx has.
    fn annotations(&mut self, map: &Value, path: &[&str]) {
        let name = path.join(".");
        let (mut kept, mut left) = (Map::new(), Vec::new());
        for (key, value) in map.as_object().into_iter().flatten() {
            let lower = key.to_ascii_lowercase();
            if ASKING.iter().any(|part| lower.contains(part)) {
                left.push(key.as_str());
            } else {
                kept.insert(key.clone(), value.clone());
            }
        }
        if !kept.is_empty() {
            self.set(path, Value::Object(kept));
            self.push(&name, Kind::Full.word(), Here::Copied, "", "");
        }
        for key in left {
            let what = "it asks for an address or a name that the Service of ingress-nginx has";
            self.push(&format!("{name}.{key}"), "differs", Here::LeftOut, what, LATER);
        }
    }

    /// Writes values for the defaults of ingress-nginx' chart that differ from ours.
    fn finish(mut self, original: &Value) -> Converted {
        self.set(&["compat"], json!("ingress-nginx"));
        self.set(&["controller", "ingressClassResource", "enabled"], json!(false));
        let is = |pointer: &str| original.pointer(pointer).and_then(Value::as_bool);
        let uses_nodes =
            is("/controller/hostNetwork") == Some(true) || is("/controller/hostPort/enabled") == Some(true);
        let text = |pointer: &str| original.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if is("/controller/scope/enabled") == Some(true) && text("/controller/scope/namespace").is_empty() {
            let what = "without a name, the scope is the namespace of the release, which is another for xdp-ingress";
            self.push_lost("controller.scope.namespace", "differs", what, "name the namespace of ingress-nginx");
        }
        let service = "controller.service.enabled";
        // Without its default, Helm reads the value as false.
        let is_null = original.pointer("/controller/service/enabled").is_some_and(Value::is_null);
        if is("/controller/service/enabled").is_none() && !is_null && !uses_nodes {
            self.set(&["controller", "service", "enabled"], json!(true));
            let what = "clients reach ingress-nginx by its Service, which its chart makes by default";
            self.push(service, "differs", Here::Changed, what, "");
        }
        self.rows.sort_by(|a, b| a.value.cmp(&b.value));
        Converted { values: self.values, rows: self.rows }
    }

    fn set(&mut self, path: &[&str], value: Value) {
        let mut place = &mut self.values;
        for name in path {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            place = &mut place[*name];
        }
        *place = value;
    }

    fn lose(&mut self, name: &str, verdict: migration::Verdict) {
        self.push_lost(name, verdict.kind.word(), verdict.text, verdict.instead);
    }

    fn push_lost(&mut self, name: &str, verdict: &'static str, what: &str, instead: &str) {
        self.push(name, verdict, Here::LeftOut, what, instead);
        if let Some(row) = self.rows.last_mut() {
            row.is_lost = true;
        }
    }

    fn push(&mut self, name: &str, verdict: &'static str, here: Here, what: &str, instead: &str) {
        let (value, what, instead) = (name.to_owned(), what.to_owned(), instead.to_owned());
        self.rows.push(Row { value, verdict, here, what, instead, is_lost: false });
    }
}

// === impl Converted ===

impl Converted {
    /// Adds a row for each value of ingress-nginx' chart that is not set.
    pub(in crate::migrate) fn with_all(mut self) -> Self {
        let is_told = |name: &str| {
            let contains = |outer: &str, inner: &str| {
                inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            self.rows.iter().any(|row| contains(&row.value, name) || contains(name, &row.value))
        };
        let not_set: Vec<_> = Surface::Values
            .names()
            .filter(|name| !is_told(name))
            .filter_map(|name| {
                let migration::Verdict { kind, text, instead } = Surface::Values.verdict(name)?;
                let (value, what, instead) = (name.to_owned(), text.to_owned(), instead.to_owned());
                Some(Row { value, verdict: kind.word(), here: Here::NotSet, what, instead, is_lost: false })
            })
            .collect();
        self.rows.extend(not_set);
        self.rows.sort_by(|a, b| a.value.cmp(&b.value));
        self
    }
}

// === impl Here ===

impl Here {
    pub(in crate::migrate) const fn words(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Changed => "changed",
            Self::LeftOut => "left out",
            Self::NotSet => "not set",
        }
    }
}
