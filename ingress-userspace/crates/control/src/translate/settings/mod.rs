//! Finds the ConfigMaps of settings and reads them into one value for all hosts. The effect of a setting is not known
//! here.
//!
//! `--configmap` comes first, and the ConfigMap in `spec.parameters` of this controller's oldest IngressClass overlays
//! it, key by key. Host sharing is set by each class separately.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::ConfigMap,
    networking::v1::{IngressClass, IngressClassParametersReference},
};

use super::{Context, claims::age, options::Classes, parsed_annotations::ParsedAnnotations, text::shorten};
use crate::{
    change::{Kind, ObjectName},
    cluster::Stored,
    outcome::{ObjectRef, Origin, Reason},
};
use globals::{Globals, Hsts, Log, Sharing};
use ingress_model::{Blocked, HeaderEdit, HeaderEdits, PathMatch, Settings, Trust, path::ACME_CHALLENGE};

mod escalation;
pub(crate) mod globals;
mod keys;
mod others;
mod row;
mod sharing;
mod traces;

use escalation::ParsedEscalation;
use others::Other;
use traces::ParsedTraces;

/// The controller with defaults for classes that are taken over from it.
const NGINX: &str = "k8s.io/ingress-nginx";

/// Reads the settings from the options and the classes of `context`. Problems are reported on the ConfigMap, or on the
/// class that names it.
pub(super) fn globals(context: &mut Context<'_>) -> Globals {
    let (mut globals, last) = read(context);
    let config_map = last.clone();
    if let Some(object) = last {
        let reports = contradictions(&globals.settings.trust).map(|(reason, message)| (reason, message.to_owned()));
        reports.for_each(|(reason, message)| context.report(&object, reason, message));
    }
    if let Some(object) = context.options.default_backend.is_none().then_some(config_map).flatten()
        && globals.parsed.error_pages.is_wanted()
    {
        let message = "`custom-http-errors` is set, but no Service makes the error pages; set \
         `--default-backend-service`, or it applies only to Ingresses with `default-backend`";
        context.report(&object, Reason::InvalidSetting, message.to_owned());
    }
    globals.settings.access_log = globals.log.made();
    globals.settings.traces = globals.traces.clone().made();
    globals.parsed.forwarding.trace = globals.parsed.traced.then(|| Arc::new(globals.parsed.trace.clone()));
    globals.forwarding = Arc::new(globals.parsed.forwarding.clone());
    globals.settings.blocked = (!globals.blocked.is_empty()).then(|| Arc::new(globals.blocked.clone()));
    globals.settings.escalation = globals.escalation.made();
    for name in globals.hidden_headers.clone() {
        globals.parsed.response_headers.push(HeaderEdit::Remove(name));
    }
    if let Some(name) = globals.add_headers.clone() {
        globals.parsed.response_headers.extend(fields("add-headers", &name, context));
    }
    if let Some(name) = globals.set_headers.clone() {
        globals.parsed.request_headers.extend(fields("proxy-set-headers", &name, context));
    }
    globals
}

/// Returns the ConfigMaps that the settings in `config_map` name.
pub(crate) fn references(config_map: &ConfigMap) -> impl Iterator<Item = ObjectName> {
    let value =
        |key| config_map.data.as_ref().and_then(|data| data.get(key)).and_then(|value| value.trim().split_once('/'));
    ["add-headers", "proxy-set-headers"]
        .into_iter()
        .filter_map(value)
        .map(|(namespace, name)| ObjectName::new(namespace, name))
}

/// Returns the header fields in the ConfigMap `name`, which `key` names; none if it cannot be read, which is reported
/// on it.
fn fields(key: &str, name: &ObjectName, context: &mut Context<'_>) -> HeaderEdits {
    let Some(stored) = context.config_map(name) else {
        let message = format!("`{key}` names it, but it does not exist; create it, its fields are missing until then");
        context.report(&name.refer(Kind::ConfigMap, &Origin::Api), Reason::ConfigMapNotFound, message);
        return HeaderEdits::default();
    };
    let ConfigMap { data, .. } = &*stored.object;
    let fields = data.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
    HeaderEdits::setting(fields).unwrap_or_else(|error| {
        let message = format!("`{key}` names it, but {error}; correct it, its fields are missing until then");
        context.report(&stored.refer(Kind::ConfigMap, name), Reason::InvalidSetting, message);
        HeaderEdits::default()
    })
}

/// Returns contradictions between the settings of trusted proxies.
fn contradictions(trust: &Trust) -> impl Iterator<Item = (Reason, &'static str)> {
    let Trust {
        trusted_proxies,
        forwarded,
        address,
        field: _,
        keeps_chain: _,
        proxy_protocol,
        proxy_protocol_timeout: _,
    } = trust;
    let (is_without_proxies, trusts_peers) = (trusted_proxies.is_empty(), *forwarded || *address);
    [
        (
            trusts_peers && is_without_proxies,
            Reason::InvalidSetting,
            "`use-forwarded-headers` or `enable-real-ip` is on, but `proxy-real-ip-cidr` is empty: no peer is trusted; list the networks of the proxies in front of this one",
        ),
        (
            trusts_peers && !proxy_protocol && trusted_proxies.holds_every_v4(),
            Reason::UnsafeSetting,
            "`proxy-real-ip-cidr` contains every address: limits and lists believe a client's own `X-Forwarded-For`; \
             list the networks of the proxies in front of this one",
        ),
        (
            *proxy_protocol && (is_without_proxies || trusted_proxies.holds_every_v4()),
            Reason::UnsafeSetting,
            "`use-proxy-protocol` is on, and `proxy-real-ip-cidr` is empty or contains every address: any client can \
             claim any address; list the networks of the load balancers",
        ),
    ]
    .into_iter()
    .filter(|(is_so, ..)| *is_so)
    .map(|(_, reason, message)| (reason, message))
}

/// Returns the settings, and the last ConfigMap that contributed to them.
fn read(context: &mut Context<'_>) -> (Globals, Option<ObjectRef>) {
    let mut globals = Globals::of(&context.options.classes);
    let mut last = None;
    let options = context.options;
    globals.sharing.mode = options.host_sharing;
    if let Some(name) = &options.config_map {
        if let Some(stored) = context.config_map(name) {
            last = Some(overlay(stored, name, |_| true, &mut globals, context));
        } else {
            let message = "`--configmap` names it, but it does not exist; create it, the defaults apply".to_owned();
            context.report(&name.refer(Kind::ConfigMap, &Origin::Api), Reason::ConfigMapNotFound, message);
        }
    }
    let named = parameters(context);
    let sharing = globals.sharing.clone();
    globals.sharing_of_classes = sharing::of_classes(&sharing, &named, context);
    let Some((_, name)) = named.into_iter().next() else { return (globals, last) };
    if options.config_map.as_ref() != Some(&name)
        && let Some(stored) = context.config_map(&name)
    {
        last = Some(overlay(stored, &name, |_| true, &mut globals, context));
        globals.sharing = sharing;
    }
    (globals, last)
}

/// Returns the ConfigMaps that the parameters of this controller's classes name, each with its class, the oldest first:
/// the first one sets the values for all hosts.
fn parameters(context: &mut Context<'_>) -> Vec<(ObjectRef, ObjectName)> {
    let options = context.options;
    let mut classes: Vec<_> =
        context.classes().iter().filter(|(_, stored)| options.classes.owns(&stored.object)).collect();
    classes.sort_by_cached_key(|(name, stored)| (age(&stored.object.metadata), *name));
    let mut named: Vec<(ObjectRef, ObjectName)> = Vec::new();
    for (name, stored) in classes {
        let Some(parameters) = reference(&stored.object) else { continue };
        let class = stored.refer(Kind::IngressClass, name);
        let name = match config_map(parameters) {
            Ok(name) => name,
            Err(message) => {
                context.report(&class, Reason::InvalidParameters, message);
                continue;
            }
        };
        let is_overruled = |stored: &Stored<ConfigMap>| !sharing::is_all_of(&stored.object);
        if let Some((older, winner)) = named.first()
            && name != *winner
            && context.config_map(&name).is_some_and(is_overruled)
        {
            let message = format!(
                "in ConfigMap `{name}`, only `host-sharing` and `host-sharing-grants` have an effect, because the \
                 older IngressClass `{}` sets `{winner}` for all hosts; remove the other keys, or name the same \
                 ConfigMap in both",
                older.name
            );
            context.report(&class, Reason::ParametersConflict, message);
        }
        named.push((class, name));
    }
    named
}

/// Returns the message about a value that cannot be read.
fn unreadable(key: &str, meaning: &str, value: &str, expected: &str) -> String {
    format!("`{key}` ({meaning}) is `{}`; write {expected}, it is as if not set", shorten(value))
}

fn reference(class: &IngressClass) -> Option<&IngressClassParametersReference> {
    class.spec.as_ref()?.parameters.as_ref()
}

/// Returns the ConfigMap that `parameters` refer to, or a description of the problem.
fn config_map(parameters: &IngressClassParametersReference) -> Result<ObjectName, String> {
    let IngressClassParametersReference { api_group, kind, name, namespace, scope } = parameters;
    let group = api_group.as_deref().unwrap_or_default();
    if !group.is_empty() || kind != "ConfigMap" {
        let (group, kind) = (shorten(group), shorten(kind));
        return Err(format!(
            "`spec.parameters` is of kind `{kind}` of group `{group}`; name a ConfigMap, without `apiGroup`"
        ));
    }
    // The API server fills in `Cluster` as the default.
    if scope.as_deref() != Some("Namespace") {
        return Err("`spec.parameters` names a ConfigMap, which lives in a namespace; set `scope: Namespace`".into());
    }
    match namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => Ok(ObjectName::new(namespace, name)),
        None => Err("`spec.parameters` has `scope: Namespace` but no namespace; set `namespace`".into()),
    }
}

/// Overlays `globals` with the data of one ConfigMap, as far as its keys are `wanted`. Returns the ConfigMap.
fn overlay(
    stored: &Stored<ConfigMap>,
    name: &ObjectName,
    wanted: impl Fn(&str) -> bool,
    globals: &mut Globals,
    context: &mut Context<'_>,
) -> ObjectRef {
    let object = stored.refer(Kind::ConfigMap, name);
    for (key, value) in stored.object.data.iter().flatten().filter(|(key, _)| wanted(key)) {
        let value = value.trim();
        if let Some(setting) = keys::find(key) {
            if let Err(expected) = (setting.apply)(value, globals) {
                globals.parsed.authentication.global_is_unreadable |= key.starts_with("global-auth-");
                let message = unreadable(key, setting.meaning, value, &expected);
                context.report(&object, Reason::InvalidSetting, message);
            }
            continue;
        }
        let (reason, message) = match others::find(key) {
            Some(Other::Ineffective { because }) => {
                (Reason::IneffectiveSetting, format!("`{key}` is accepted and has no effect; {because}"))
            }
            Some(Other::Later { default }) if value == default => continue,
            Some(Other::Later { default: _ }) => {
                (Reason::UnsupportedSetting, format!("`{key}` is not supported and has no effect; remove it"))
            }
            Some(Other::Refused { .. }) if matches!(value, "" | "false") => continue,
            Some(Other::Refused { instead }) => {
                (Reason::UnsupportedSetting, format!("`{key}` is refused and has no effect; {instead}"))
            }
            None => (Reason::UnknownSetting, format!("`{}` is not a known setting; remove it", shorten(key))),
        };
        context.report(&object, reason, message);
    }
    object
}

// === impl Globals ===

impl Globals {
    /// Returns the defaults for `classes`: those of ingress-nginx if they are taken over from it.
    pub(super) fn of(classes: &Classes) -> Self {
        let mut globals = Self {
            settings: Settings::default(),
            parsed: ParsedAnnotations::default(),
            forwarding: Arc::default(),
            redirect_status: 308,
            redirect_except: [].into(),
            hsts: Hsts { enabled: false, max_age: 31_536_000, include_subdomains: true, preload: false },
            unauthenticated: [PathMatch::Prefix(ACME_CHALLENGE.into())].into(),
            allowed_headers: Vec::new(),
            sharing: Sharing::default(),
            sharing_of_classes: BTreeMap::new(),
            traces: ParsedTraces::default(),
            blocked: Blocked::default(),
            escalation: ParsedEscalation::default(),
            log: Log { disabled: true, format: String::new(), escapes_json: false, skip: [].into() },
            hidden_headers: Vec::new(),
            add_headers: None,
            set_headers: None,
        };
        if classes.controller == NGINX {
            keys::apply_nginx_defaults(&mut globals);
        }
        globals.forwarding = Arc::new(globals.parsed.forwarding.clone());
        globals
    }

    /// Returns the sharing for hosts with owners of this class.
    pub(super) fn sharing_of(&self, class: Option<&str>) -> &Sharing {
        class.and_then(|class| self.sharing_of_classes.get(class)).unwrap_or(&self.sharing)
    }
}
