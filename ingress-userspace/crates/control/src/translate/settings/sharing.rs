//! Host sharing by IngressClass: the only settings that each class has separately. It reads no other key.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    Context,
    features::{self, Globals, host_sharing::Sharing},
    overlay,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
};

/// Returns the sharing of the classes in `named`, each with the ConfigMap of its parameters. `common` holds for keys
/// that they do not set.
pub(super) fn of_classes(
    common: &Sharing,
    named: &[(ObjectRef, ObjectName)],
    context: &mut Context<'_, '_>,
) -> BTreeMap<Arc<str>, Sharing> {
    let mut of_classes = BTreeMap::new();
    for (class, name) in named {
        let Some(stored) = context.config_map(name) else {
            let message = format!("`spec.parameters` names ConfigMap `{name}`, which does not exist; create it");
            context.report(class, Reason::ConfigMapNotFound, message);
            continue;
        };
        let mut globals = Globals { sharing: common.clone(), ..Globals::of(&context.options.classes) };
        overlay(stored, name, is_of_class, &mut globals, context);
        of_classes.insert(Arc::clone(&class.name), globals.sharing);
    }
    of_classes
}

/// Returns `true` if each class has this key separately.
fn is_of_class(key: &str) -> bool {
    features::setting(key).is_some_and(|key| key.is_per_class)
}

/// Returns `true` if a ConfigMap has no other keys.
pub(super) fn is_all_of(config_map: &ConfigMap) -> bool {
    config_map.data.iter().flatten().all(|(key, _)| is_of_class(key))
}
