//! Options that say which objects are read and how they are translated. `run` has them, and the commands about a
//! configuration, so that these show what a process with the same options would serve.

mod routing;
mod selector;
mod source;
mod translate;

use ingress_control::{change::ObjectName, migration};

pub use routing::RoutingArgs;
pub use source::SourceArgs;
pub use translate::{read_only, source_config, translate_options};

/// Parses a boolean in each spelling that ingress-nginx accepts: `true`, `1`, `t` and the like.
///
/// # Errors
/// Names the expected form.
pub fn boolean(text: &str) -> Result<bool, String> {
    migration::boolean(text).ok_or_else(|| format!("`{text}` is neither `true` nor `false`"))
}

/// Parses `namespace/name`.
///
/// # Errors
/// Names the expected form.
pub fn object_name(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName::new(namespace, name))
        }
        _ => Err(format!("`{text}` is not of the form `namespace/name`")),
    }
}
