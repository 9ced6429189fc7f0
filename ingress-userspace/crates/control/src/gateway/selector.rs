//! Decides whether labels fit a selector.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Returns `true` if `labels` meet all demands of `selector`. A selector without demands fits all labels. Returns `None`
/// if an operator is unknown, or has values where it must have none or none where it must have some.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Option<bool> {
    let LabelSelector { match_labels, match_expressions } = selector;
    let mut fits = match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    for LabelSelectorRequirement { key, operator, values } in match_expressions.iter().flatten() {
        let label = labels.get(key);
        let values = values.as_deref().unwrap_or_default();
        let is_listed = label.is_some_and(|label| values.contains(label));
        fits &= match (&**operator, values.is_empty()) {
            ("In", false) => is_listed,
            ("NotIn", false) => !is_listed,
            ("Exists", true) => label.is_some(),
            ("DoesNotExist", true) => label.is_none(),
            _ => return None,
        };
    }
    Some(fits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_demands_must_be_met() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned()), ("tier".to_owned(), String::new())]);
        let demand = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, fits) in [
            (json!({}), Some(true)),
            (json!({"matchLabels": {"team": "a"}}), Some(true)),
            (json!({"matchLabels": {"team": "a", "tier": "x"}}), Some(false)),
            (json!({"matchLabels": {"other": ""}}), Some(false)),
            (demand("team", "In", &["b", "a"]), Some(true)),
            (demand("team", "In", &["b"]), Some(false)),
            (demand("other", "In", &["a"]), Some(false)),
            (demand("team", "NotIn", &["a"]), Some(false)),
            (demand("other", "NotIn", &["a"]), Some(true)),
            (demand("tier", "Exists", &[]), Some(true)),
            (demand("other", "Exists", &[]), Some(false)),
            (demand("other", "DoesNotExist", &[]), Some(true)),
            (demand("team", "DoesNotExist", &[]), Some(false)),
            (demand("team", "In", &[]), None),
            (demand("team", "Exists", &["a"]), None),
            (demand("team", "Gt", &["1"]), None),
        ] {
            let read = serde_json::from_value(selector.clone()).expect("a selector");
            assert_eq!(selects(&read, &labels), fits, "{selector}");
        }
    }
}
