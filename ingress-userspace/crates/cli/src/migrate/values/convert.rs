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
];

/// Values of Services and ports that ingress-nginx holds until it is removed.
const HELD: &[&str] = &[
    "controller.metrics.port",
    "controller.metrics.service.clusterIP",
    "controller.service.clusterIP",
    "controller.service.internal.clusterIP",
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

#[derive(Default)]
struct Conversion {
    values: Value,
    rows: Vec<Row>,
}

// === impl Conversion ===

impl Conversion {
    fn descend(&mut self, value: &Value, path: &[&str]) {
        if is_unset(value) {
            return;
        }
        let name = path.join(".");
        match &*name {
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
                self.push(&name, kind.word(), Here::Copied, verdict.text, verdict.instead);
            }
            _ => match below {
                Some(map) => {
                    for (key, value) in map {
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
        for (key, value) in map.as_object().into_iter().flatten() {
            let name = format!("{}.{key}", path.join("."));
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

    /// Writes values for the defaults of ingress-nginx' chart that differ from ours.
    fn finish(mut self, original: &Value) -> Converted {
        self.set(&["compat"], json!("ingress-nginx"));
        self.set(&["controller", "ingressClassResource", "enabled"], json!(false));
        let is = |pointer: &str| original.pointer(pointer).and_then(Value::as_bool);
        let uses_nodes =
            is("/controller/hostNetwork") == Some(true) || is("/controller/hostPort/enabled") == Some(true);
        let service = "controller.service.enabled";
        if is("/controller/service/enabled").is_none() && !uses_nodes {
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
