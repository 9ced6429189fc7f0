//! Judges objects: translates them as a process of this controller would, and makes findings of the outcomes.

use std::collections::BTreeMap;

use ingress_control::{
    ObjectRef, Outcome, Reason,
    change::ObjectName,
    translate::{Options, owns, translate},
};
use ingress_inspect::{ProblemObject, witnesses};
use k8s_openapi::api::networking::v1::Ingress;

use super::{
    controller::Controller,
    diff,
    finding::{Compared, Counts, Finding, Report, Verdict},
    objects::{Objects, Webhook},
    values,
};

/// This controller's own prefix of annotations.
const PREFIX: &str = "xdp-ingress.io";

/// Judges `objects`, the whole of a cluster or of a directory.
/// `with_requests` adds requests that ingress-nginx serves by another rule.
pub(super) fn judge(objects: &Objects, controller: &Controller, is_directory: bool, with_requests: bool) -> Report {
    let options = controller.options(objects, is_directory);
    let translation = translate(&objects.cluster, &options);
    let ingresses = &objects.cluster.ingresses;
    let ours = || ingresses.iter().filter(|(_, stored)| owns(&objects.cluster, &options, &stored.object));
    let mut verdicts: BTreeMap<&ObjectName, Verdict> = ours().map(|(name, _)| (name, Verdict::Note)).collect();
    let outcomes = translation.outcomes.keys().map(|outcome| &**outcome).chain(&objects.remarks);
    let mut findings: Vec<_> = outcomes
        .filter_map(|outcome| {
            let verdict = verdict(outcome)?;
            let ingress = ingress_of(&outcome.object, objects);
            Some(finding(outcome, verdict, ingress, &options))
        })
        .collect();
    findings.extend(objects.webhooks.iter().map(webhook));
    findings.extend(missing_settings(objects, controller));
    let compared = with_requests.then(|| {
        let ours = ours().map(|(_, stored)| &*stored.object);
        let comparison = witnesses(ours, &options.annotations_prefix, &translation.table);
        findings.extend(diff::findings(&comparison, objects));
        Compared { hosts: comparison.hosts, requests: comparison.requests }
    });
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
        others: ingresses.len() - verdicts.len(),
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

/// Returns the verdict about an outcome; `None` if ingress-nginx does the same with the object, as with a Service that
/// does not exist.
fn verdict(outcome: &Outcome) -> Option<Verdict> {
    let refuses = outcome.message.contains("answer 503");
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
        | Reason::SavedConfiguration
        | Reason::SecretNotFound
        | Reason::ServiceNotFound
        | Reason::UnknownKind
        | Reason::UnknownProtocol => None,
        Reason::IneffectiveAnnotation | Reason::IneffectiveSetting | Reason::UnknownSetting => Some(Verdict::Note),
        Reason::UnsupportedAnnotation if refuses => Some(Verdict::Refused),
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
    let Outcome { object, reason, message } = outcome;
    let mut object = ProblemObject::from(object);
    if object.namespace == values::NAMESPACE {
        (object.kind, object.namespace) = ("Values".to_owned(), String::new());
    }
    let key = key(message, ingress, options).unwrap_or_else(|| reason.to_string());
    let (what, fix) = match reason {
        // What stands behind the `;` is the reason.
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
fn webhook(Webhook { name, fails_closed, services }: &Webhook) -> Finding {
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
