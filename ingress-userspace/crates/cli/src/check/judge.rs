//! Judges objects: translates them as a process of this controller would, and makes findings of the outcomes.

use std::collections::{BTreeMap, BTreeSet};

use ingress_control::{
    ObjectRef, Outcome, Reason,
    change::{Kind, ObjectName},
    translate::{Options, owns, translate},
};
use ingress_inspect::{ProblemObject, witnesses};
use ingress_model::RequestRules;
use k8s_openapi::api::networking::v1::Ingress;

use super::{
    controller::Controller,
    diff, effects, facts,
    finding::{Compared, Counts, Finding, Report, Verdict},
    fix::Snippets,
    objects::{Objects, Webhook},
    snippet::{Conversion, Place, Remark, convert},
    values,
};

/// This controller's own prefix of annotations.
pub(super) const PREFIX: &str = "xdp-ingress.io";

/// Extent of a check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent<'a> {
    /// Whether the objects are those of a directory, which has no endpoints.
    pub is_directory: bool,
    /// The namespace to report; `None` for all.
    pub namespace: Option<&'a str>,
    /// Whether to compare requests.
    pub with_requests: bool,
}

/// Judges `objects`, the whole of a cluster or of a directory.
/// With `namespace`, only its objects and those without a namespace are counted and reported. `with_requests` adds requests
/// that ingress-nginx serves by another rule.
pub(super) fn judge(
    objects: &Objects,
    controller: &Controller,
    conversions: &BTreeMap<ObjectName, Conversion>,
    Extent { is_directory, namespace, with_requests }: Extent<'_>,
) -> Report {
    let options = controller.options(objects, is_directory);
    let translation = translate(&objects.cluster, &options);
    let reported = || {
        let ingresses = objects.cluster.ingresses.iter();
        ingresses.filter(|(name, _)| namespace.is_none_or(|namespace| *name.namespace == *namespace))
    };
    let ours = || reported().filter(|(_, stored)| owns(&objects.cluster, &options, &stored.object));
    let mut verdicts: BTreeMap<&ObjectName, Verdict> = ours().map(|(name, _)| (name, Verdict::Note)).collect();
    let outcomes = translation.outcomes.keys().map(|outcome| &**outcome).chain(&objects.remarks);
    let mut findings: Vec<_> = outcomes
        .filter_map(|outcome| {
            let verdict = verdict(outcome)?;
            let ingress = ingress_of(&outcome.object, objects);
            Some(finding(outcome, verdict, ingress, &options))
        })
        .collect();
    tell(&mut findings, conversions);
    let told: BTreeSet<_> = findings
        .iter()
        .filter(|finding| finding.object.kind == "Ingress")
        .map(|finding| (ObjectName::new(&finding.object.namespace, &finding.object.name), finding.key.clone()))
        .collect();
    for (name, stored) in ours() {
        let ingress = &*stored.object;
        let object = ProblemObject::from(&name.refer(Kind::Ingress, &stored.origin));
        let value = |key: &str| annotation(ingress, key, &options).map(str::to_owned);
        let is_told = |name: &ObjectName, key: &str| told.contains(&(name.clone(), key.to_owned()));
        findings.extend(effects::of_ingress((name, ingress, object), value, is_told));
    }
    let webhooks = objects.webhooks.iter().filter(|webhook| webhook.is_of(controller.workload.as_ref()));
    findings.extend(webhooks.map(webhook));
    findings.extend(missing_settings(objects, controller));
    findings.extend(controller.findings.iter().cloned());
    let compared = with_requests.then(|| {
        // A host may have rules of Ingresses in several namespaces.
        let ingresses = objects.cluster.ingresses.iter().map(|(_, stored)| &*stored.object);
        let ours = ingresses.filter(|ingress| owns(&objects.cluster, &options, ingress));
        let comparison = witnesses(ours, &options.annotations_prefix, &translation.table);
        findings.extend(diff::findings(&comparison, objects));
        Compared { hosts: comparison.hosts, requests: comparison.requests }
    });
    if let Some(namespace) = namespace {
        findings.retain(|Finding { object, .. }| object.namespace.is_empty() || object.namespace == namespace);
    }
    for Finding { verdict, object, .. } in findings.iter().filter(|finding| finding.object.kind == "Ingress") {
        if let Some(worst) = verdicts.get_mut(&ObjectName::new(&object.namespace, &object.name)) {
            *worst = (*worst).max(*verdict);
        }
    }
    findings.sort_by(|a, b| {
        let order =
            |finding: &Finding| (std::cmp::Reverse(finding.verdict), finding.object.clone(), finding.key.clone());
        order(a).cmp(&order(b))
    });
    findings.dedup();
    let count = |wanted: Verdict| verdicts.values().filter(|verdict| **verdict == wanted).count();
    let settings = options.config_map.as_ref().and_then(|name| objects.cluster.config_maps.get(name));
    Report {
        ingresses: verdicts.len(),
        others: reported().count() - verdicts.len(),
        classes: objects.cluster.classes.len(),
        controller: controller.version(),
        settings: settings.and_then(|stored| stored.object.data.as_ref()).map_or(0, BTreeMap::len),
        flags: controller.flags.len(),
        compared,
        counts: Counts {
            ready: count(Verdict::Note),
            differs: count(Verdict::Differs),
            needs_fix: count(Verdict::Fix),
            refused: count(Verdict::Refused),
        },
        findings,
    }
}

fn ingress_of<'o>(object: &ObjectRef, objects: &'o Objects) -> Option<&'o Ingress> {
    let ObjectRef { kind, namespace, name, .. } = object;
    let stored = (&**kind == "Ingress").then(|| objects.cluster.ingresses.get(&ObjectName::new(namespace, name)))??;
    Some(&stored.object)
}

/// Converts the snippets of the Ingresses of this class. Values that an Ingress has already stay in front of new lines.
pub(super) fn conversions(
    objects: &Objects,
    controller: &Controller,
    is_directory: bool,
) -> (BTreeMap<ObjectName, Conversion>, Snippets) {
    let options = controller.options(objects, is_directory);
    let (mut conversions, mut places) = (BTreeMap::new(), Snippets::new());
    for (name, stored) in objects.cluster.ingresses.iter() {
        let ingress = &*stored.object;
        let value = |key: &str| annotation(ingress, key, &options);
        // nginx runs the rules of a server before those of a location.
        let snippets: Vec<_> = [Place::Server, Place::Location, Place::Auth]
            .into_iter()
            .filter_map(|place| Some((place, value(place.annotation()).filter(|text| !text.trim().is_empty())?)))
            .collect();
        if snippets.is_empty() || !owns(&objects.cluster, &options, ingress) {
            continue;
        }
        places.insert(name.clone(), snippets.iter().map(|(place, _)| place.annotation()).collect());
        let mut conversion = convert(snippets.iter().copied(), &facts::of_ingress(name, ingress, objects, &options));
        if let Some((place, _)) = snippets.iter().find(|(place, _)| *place == Place::Server)
            && let Some(others) = facts::neighbours(name, ingress, objects)
        {
            let text = format!("it holds for the whole host, so {others} need the annotations, too");
            let subject = "the snippet".to_owned();
            conversion.differences.push(Remark { place: *place, line: 1, subject, text });
        }
        let mut clashes = Vec::new();
        for (key, new) in &mut conversion.annotations {
            let alias = if key == "allowlist-source-range" { "whitelist-source-range" } else { key.as_str() };
            let old = value(key).or_else(|| value(alias));
            let Some(old) = old.filter(|old| *old != new.as_str() && !old.is_empty()) else { continue };
            match key.as_str() {
                "request-headers" | "response-headers" => *new = format!("{old}\n{new}"),
                "deny-paths" | "redirect-rules" => {
                    let both = format!("{old}\n{new}");
                    let parse = if key == "deny-paths" { RequestRules::deny_paths } else { RequestRules::redirects };
                    match parse(&both) {
                        Ok(_rules) => *new = both,
                        // The Ingress' own rules are invalid, or together they are beyond a limit.
                        Err(_) => clashes.push((key.clone(), old.to_owned())),
                    }
                }
                // The converter has put the list of the Ingress in front.
                "denylist-source-range" => {}
                "auth-response-headers" => *new = format!("{old}, {new}"),
                _ => clashes.push((key.clone(), old.to_owned())),
            }
        }
        if !conversion.auth_fields.is_empty()
            && let Some(old) = value("auth-proxy-set-headers").filter(|old| !old.is_empty())
        {
            clashes.push(("auth-proxy-set-headers".to_owned(), old.to_owned()));
            conversion.auth_fields.clear();
        }
        for (key, old) in clashes {
            conversion.annotations.remove(&key);
            let place = snippets.first().map_or(Place::Location, |(place, _)| *place);
            let text = format!("the Ingress has `{old}` already");
            conversion.rest.push(Remark { place, line: 1, subject: key, text });
        }
        conversions.insert(name.clone(), conversion);
    }
    (conversions, places)
}

/// Returns the value of an annotation. This controller's own prefix takes precedence.
pub(super) fn annotation<'i>(ingress: &'i Ingress, key: &str, options: &Options) -> Option<&'i str> {
    let annotations = ingress.metadata.annotations.as_ref()?;
    let prefixes = [PREFIX, options.annotations_prefix.trim_end_matches('/')];
    prefixes.iter().find_map(|prefix| annotations.get(&format!("{prefix}/{key}"))).map(|value| value.trim())
}

/// Replaces what the translation reports about snippets by what becomes of them.
fn tell(findings: &mut [Finding], conversions: &BTreeMap<ObjectName, Conversion>) {
    for Finding { verdict, object, key, what, fix } in findings {
        let conversion = conversions.get(&ObjectName::new(&object.namespace, &object.name));
        let place = Place::ALL.into_iter().find(|place| place.annotation() == key.as_str());
        let (Some(conversion), Some(place), Verdict::Refused) = (conversion, place, *verdict) else { continue };
        let rest: Vec<_> = conversion.rest.iter().filter(|remark| remark.place == place).collect();
        if conversion.is_whole() {
            let keys: Vec<_> =
                conversion.annotations.keys().chain(conversion.settings.keys()).map(String::as_str).collect();
            let differences = conversion.differences.iter().filter(|remark| remark.place == place);
            let differences: String =
                differences.map(|remark| format!("; `{}`: {}", remark.subject, remark.text)).collect();
            *verdict = Verdict::Fix;
            *what = format!("its rules answer 503 until it is converted{differences}");
            *fix = match &*keys {
                [] => "`--fix` replaces it by nothing, since it needs no counterpart".to_owned(),
                keys => format!("`--fix` writes {}", keys.join(", ")),
            };
        } else if let Some(first) = rest.first() {
            let more = if rest.len() == 1 { String::new() } else { format!(", and {} more", rest.len() - 1) };
            *what = format!("its rules answer 503; line {}, `{}`{more}: {}", first.line, first.subject, first.text);
            *fix = "convert the rest by hand; `--fix` writes what is sure".to_owned();
        }
    }
}

/// Returns the verdict about an outcome; `None` if ingress-nginx does the same with the object, as with a Service that
/// does not exist.
fn verdict(outcome: &Outcome) -> Option<Verdict> {
    match outcome.reason {
        Reason::CanaryWithoutMain
        | Reason::CatchAllRefused
        | Reason::CertHostMismatch
        | Reason::EndpointRefused
        | Reason::HealthChecksDelayed
        | Reason::HostCapacity
        | Reason::HostPathConflict
        | Reason::InvalidCertificate
        | Reason::InvalidCredentials
        | Reason::InvalidStaple
        | Reason::InvalidTicketKey
        | Reason::NoBackend
        | Reason::NoReadyEndpoints
        | Reason::PortNotFound
        | Reason::RouteConflict
        | Reason::SavedConfiguration
        | Reason::SecretNotFound
        | Reason::ServiceNotFound
        | Reason::UnknownKind
        | Reason::UnknownProtocol => None,
        Reason::IneffectiveAnnotation | Reason::IneffectiveSetting | Reason::UnknownSetting => Some(Verdict::Note),
        Reason::UnsupportedAnnotation if outcome.refuses => Some(Verdict::Refused),
        Reason::ClassMismatch | Reason::UnsupportedAnnotation | Reason::UnsupportedSetting => Some(Verdict::Differs),
        Reason::ConfigMapNotFound
        | Reason::DuplicateObject
        | Reason::ExternalNameRefused
        | Reason::HostClaimedByOther
        | Reason::HostOwnedByOther
        | Reason::InvalidAnnotation
        | Reason::InvalidHost
        | Reason::InvalidObject
        | Reason::InvalidParameters
        | Reason::InvalidPath
        | Reason::InvalidSetting
        | Reason::InvalidStreamService
        | Reason::ParametersConflict
        | Reason::RefNotPermitted
        | Reason::TooLarge
        | Reason::UnsafeSetting
        | Reason::UnsupportedBackend => Some(Verdict::Fix),
    }
}

fn finding(outcome: &Outcome, verdict: Verdict, ingress: Option<&Ingress>, options: &Options) -> Finding {
    let Outcome { object, reason, message, refuses: _ } = outcome;
    let mut object = ProblemObject::from(object);
    if object.namespace == values::NAMESPACE {
        (object.kind, object.namespace) = (values::KIND.to_owned(), String::new());
    }
    let key = key(message, ingress, options).unwrap_or_else(|| reason.to_string());
    let (what, fix) = match reason {
        // The text behind the `;` is the reason.
        Reason::IneffectiveSetting => (without_subject(message, &key).to_owned(), "remove it".to_owned()),
        _ => parts(message, &key),
    };
    Finding { verdict, object, key, what, fix }
}

/// Consequences that stand behind a remedy in messages about values that cannot be read.
const CONSEQUENCES: [&str; 3] = [", it is as if not set", ", the default, `", ", its rules answer 503 until then"];

/// Splits a message into what changes and the remedy, which stands behind the last `;` by the convention for outcomes.
/// The key is left out, since a finding has it apart.
fn parts(message: &str, key: &str) -> (String, String) {
    let (what, fix) = message.rsplit_once("; ").unwrap_or((message, ""));
    let what = without_subject(what, key);
    match CONSEQUENCES.iter().find_map(|consequence| fix.rfind(consequence)) {
        Some(at) => (format!("{what}; {}", fix[at..].trim_start_matches(", ")), fix[..at].to_owned()),
        None => (what.to_owned(), fix.to_owned()),
    }
}

/// Returns a message without its beginning ``annotation `prefix/key` (meaning)``.
fn without_subject<'m>(message: &'m str, key: &str) -> &'m str {
    let text = message.strip_prefix("annotation ").unwrap_or(message);
    let rest = text.strip_prefix('`').and_then(|text| text.split_once("` "));
    let Some((_, rest)) = rest.filter(|(name, _)| name.rsplit('/').next() == Some(key)) else { return message };
    match rest.strip_prefix('(').and_then(|meaning| meaning.rsplit_once(") is `")) {
        Some((meaning, _)) => &rest[meaning.len() + 3..],
        None => rest,
    }
}

/// Returns the annotation or setting that a message begins with. Messages quote it before any value.
fn key(message: &str, ingress: Option<&Ingress>, options: &Options) -> Option<String> {
    let quoted = || message.split('`').skip(1).step_by(2);
    match ingress {
        Some(ingress) => {
            let annotations = ingress.metadata.annotations.as_ref()?;
            let prefixes = [PREFIX, options.annotations_prefix.trim_end_matches('/')];
            quoted().find_map(|name| {
                let (prefix, key) = name.split_once('/').unwrap_or(("", name));
                let is_own = annotations.contains_key(name) && prefixes.contains(&prefix);
                let is_short = || prefixes.iter().any(|prefix| annotations.contains_key(&format!("{prefix}/{name}")));
                (is_own || is_short()).then(|| key.to_owned())
            })
        }
        // Only problems of settings begin with a key.
        None => message.strip_prefix('`').and_then(|rest| rest.split_once('`')).map(|(key, _)| key.to_owned()),
    }
}

/// Returns the finding about a webhook of ingress-nginx: it outlives its pods.
fn webhook(Webhook { name, fails_closed, services, .. }: &Webhook) -> Finding {
    let asked = services.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let kind = "ValidatingWebhookConfiguration".to_owned();
    let object = ProblemObject { kind, namespace: String::new(), name: name.clone(), file: None };
    let (verdict, what) = if *fails_closed {
        (Verdict::Fix, format!("every change of an Ingress fails once no pod of Service `{asked}` runs"))
    } else {
        (Verdict::Note, format!("changes of Ingresses wait for Service `{asked}`, which no longer answers"))
    };
    let fix = format!("delete ValidatingWebhookConfiguration `{name}` before you scale ingress-nginx down");
    Finding { verdict, object, key: "webhook".to_owned(), what, fix }
}

/// Returns the finding that the ConfigMap of settings is not in the directory.
fn missing_settings(objects: &Objects, controller: &Controller) -> Option<Finding> {
    let name = controller.settings().filter(|name| !objects.has_config_map(name))?;
    let object = ProblemObject {
        kind: "ConfigMap".to_owned(),
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        file: None,
    };
    Some(Finding {
        verdict: Verdict::Note,
        object,
        key: "configmap".to_owned(),
        what: "`--configmap` names it, but it is not there; settings have their defaults".to_owned(),
        fix: "add it to what is checked, or pass `--values`".to_owned(),
    })
}
