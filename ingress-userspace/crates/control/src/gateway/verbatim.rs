//! Values that are written back as they were read, including fields that this release does not know.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::Value;

/// A value of another controller, which may have to be written back.
///
/// Lists such as `status.parents` of a route are written as a whole, with the entries of all controllers. A later
/// release may give the entries further fields. Serialization gives the same JSON as was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Verbatim<T> {
    value: T,
    /// The JSON, if it has more than `value` holds.
    original: Option<Box<Value>>,
}

// === impl Verbatim ===

impl<T> From<T> for Verbatim<T> {
    fn from(value: T) -> Self {
        Self { value, original: None }
    }
}

impl<T> Deref for Verbatim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize> Serialize for Verbatim<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.original {
            Some(original) => original.serialize(serializer),
            None => self.value.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned + Serialize> Deserialize<'de> for Verbatim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let original = Value::deserialize(deserializer)?;
        let value = T::deserialize(&original).map_err(serde::de::Error::custom)?;
        let is_complete = serde_json::to_value(&value).is_ok_and(|written| written == original);
        Ok(Self { value, original: (!is_complete).then(|| Box::new(original)) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gateway::ParentStatus;

    #[test]
    fn foreign_fields_survive() {
        let known = json!({"parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"},
            "controllerName": "a.test/c", "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted",
            "message": "", "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let mut later = known.clone();
        later["parentRef"]["shard"] = json!({"of": [1, null]});
        let mut bare = known.clone();
        bare["parentRef"] = json!({"name": "g"});
        for (entry, is_complete) in [(known, true), (later, false), (bare, false)] {
            let read: Verbatim<ParentStatus> = serde_json::from_value(entry.clone()).expect("an entry");
            assert_eq!((&*read.parent_ref.name, &*read.controller_name), ("g", "a.test/c"));
            assert_eq!(read.original.is_none(), is_complete, "{entry}");
            assert_eq!(serde_json::to_value(&read).expect("JSON"), entry);
        }
    }
}
