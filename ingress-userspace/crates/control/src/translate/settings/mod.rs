//! Finds the ConfigMaps of settings and reads them into one value for all hosts. The effect of a setting is not known
//! here.
//!
//! `--configmap` comes first, and the ConfigMap in `spec.parameters` of this controller's oldest IngressClass overlays
//! it, key by key. Host sharing is set by each class separately.

use k8s_openapi::api::{
    core::v1::ConfigMap,
    networking::v1::{IngressClass, IngressClassParametersReference},
};

use super::{
    Context,
    claims::age,
    features::{self, Globals, row::Key, trusted_proxies::contradictions},
    text::shorten,
};
use crate::{
    change::{Kind, ObjectName},
    cluster::Stored,
    outcome::{ObjectRef, Origin, Reason},
    verdict::Verdict,
};

mod others;
mod sharing;

use others::Other;

/// Reads the settings from the options and the classes of `context`. Problems are reported on the ConfigMap, or on the
/// class that names it.
pub(super) fn globals(context: &mut Context<'_, '_>) -> Globals {
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
    globals.settle(context);
    globals
}

/// Returns the verdict on the key `name` of ingress-nginx' ConfigMap. Settings of this controller alone have one, too;
/// `None` for unknown ones.
pub(crate) fn verdict(name: &str) -> Option<Verdict> {
    features::setting(name).map(Key::verdict).or_else(|| others::find(name).map(Other::verdict))
}

/// Returns the ConfigMaps that the settings in `config_map` name.
pub(crate) fn references(config_map: &ConfigMap) -> impl Iterator<Item = ObjectName> {
    let value = |key: &Key| config_map.data.as_ref().and_then(|data| data.get(key.name))?.trim().split_once('/');
    features::all_settings()
        .filter(|key| key.names == Some(Kind::ConfigMap))
        .filter_map(value)
        .map(|(namespace, name)| ObjectName::new(namespace, name))
}

/// Returns the Services that the settings in `config_map` lead to.
pub(crate) fn services_of(config_map: &ConfigMap) -> impl Iterator<Item = ObjectName> {
    let value = |key: &Key| Some(config_map.data.as_ref()?.get(key.name)?.trim());
    features::all_settings().filter_map(move |key| key.leads_to?(value(key)?, ""))
}

/// Returns the settings, and the last ConfigMap that contributed to them.
fn read(context: &mut Context<'_, '_>) -> (Globals, Option<ObjectRef>) {
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
fn parameters(context: &mut Context<'_, '_>) -> Vec<(ObjectRef, ObjectName)> {
    let options = context.options;
    let mut classes: Vec<_> =
        context.classes().iter().filter(|(_, stored)| options.classes.owns(&stored.object)).collect();
    classes.sort_by_cached_key(|(name, stored)| (age(stored.object.metadata.creation_timestamp.as_ref()), *name));
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
    context: &mut Context<'_, '_>,
) -> ObjectRef {
    let object = stored.refer(Kind::ConfigMap, name);
    for (key, value) in stored.object.data.iter().flatten().filter(|(key, _)| wanted(key)) {
        let value = value.trim();
        if let Some(setting) = features::setting(key) {
            if let Err(expected) = globals.read(key, value) {
                globals.parsed.ways.ext_authz.note_unreadable(key);
                let message = unreadable(key, setting.meaning, value, &expected);
                context.report(&object, Reason::InvalidSetting, message);
            } else if let Some(note) = setting.notes.and_then(|notes| notes(value)) {
                let message = format!("`{key}` is `{}`: {note}", shorten(value));
                context.report(&object, Reason::IneffectiveSetting, message);
            }
            continue;
        }
        let (reason, message) = match others::find(key) {
            Some(Other::Ineffective { because }) => {
                (Reason::IneffectiveSetting, format!("`{key}` is accepted and has no effect; {because}"))
            }
            Some(Other::Lost { same, .. } | Other::Refused { same, .. }) if same.contains(&value) => continue,
            Some(Other::Lost { loss, instead, .. }) => {
                (Reason::UnsupportedSetting, format!("`{key}` is not supported and has no effect: {loss}; {instead}"))
            }
            Some(Other::Refused { instead, .. }) => {
                (Reason::UnsupportedSetting, format!("`{key}` is refused and has no effect; {instead}"))
            }
            None => (Reason::UnknownSetting, format!("`{}` is not a known setting; remove it", shorten(key))),
        };
        context.report(&object, reason, message);
    }
    object
}
