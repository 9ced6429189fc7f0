//! Dashboards for Grafana: their queries, ids and data source.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use super::names::Metrics;

/// Version of Grafana's schema of dashboards: the first of Grafana 11.
const SCHEMA_MIN: u64 = 39;
/// The variable that selects the data source.
const DATASOURCE: &str = "${datasource}";

/// Returns the faults of all boards, each with its name.
///
/// # Errors
/// Fails if one is not JSON.
pub(super) fn objections(boards: &[(String, String)], metrics: &Metrics) -> Result<Vec<String>> {
    let mut objections = Vec::new();
    let mut uids = BTreeSet::new();
    for (name, text) in boards {
        let board: Value = serde_json::from_str(text).with_context(|| format!("`{name}.json` is no JSON"))?;
        let mut object = |text: String| objections.push(format!("board `{name}`: {text}"));
        let uid = board["uid"].as_str().unwrap_or_default();
        if uid.is_empty() || !uids.insert(uid.to_owned()) {
            object(format!("its uid `{uid}` is empty, or that of another board"));
        }
        if board["title"].as_str().is_none_or(str::is_empty) {
            object("it has no title".to_owned());
        }
        if board["schemaVersion"].as_u64().is_none_or(|version| version < SCHEMA_MIN) {
            object(format!("its schemaVersion is {}, not {SCHEMA_MIN} or later", board["schemaVersion"]));
        }
        let variables = board.pointer("/templating/list").and_then(Value::as_array);
        if variables.is_none_or(|all| !all.iter().any(|v| v["type"] == "datasource" && v["name"] == "datasource")) {
            object("it has no variable `datasource`".to_owned());
        }
        let mut ids = BTreeSet::new();
        for panel in panels(&board) {
            let title = panel["title"].as_str().unwrap_or_default();
            if panel["id"].as_u64().is_none_or(|id| !ids.insert(id)) {
                object(format!("panel `{title}`: its id {} is none, or that of another panel", panel["id"]));
            }
            if title.is_empty() {
                object(format!("panel {} has no title", panel["id"]));
            }
            if panel["type"] != "row" && panel.pointer("/datasource/uid").and_then(Value::as_str) != Some(DATASOURCE) {
                object(format!("panel `{title}`: its data source is not `{DATASOURCE}`"));
            }
        }
        for query in queries(&board) {
            metrics.objections(&query).into_iter().for_each(|text| object(format!("query `{query}`: {text}")));
        }
    }
    Ok(objections)
}

/// Returns all panels, those in rows included.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    board["panels"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()))
}

/// Returns the queries of panels, and those of variables without the function of Grafana around them.
pub(super) fn queries(board: &Value) -> Vec<String> {
    let targets = panels(board).flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut queries: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap_or_default().to_owned()).collect();
    let variables = board.pointer("/templating/list").and_then(Value::as_array).into_iter().flatten();
    queries.extend(variables.filter_map(|variable| {
        let call = variable.pointer("/query/query")?.as_str()?.strip_prefix("label_values(")?;
        Some(call.rsplit_once(',')?.0.to_owned())
    }));
    queries
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOARD: &str = r#"{
        "uid": "u", "title": "t", "schemaVersion": 39,
        "templating": {"list": [
            {"type": "datasource", "name": "datasource"},
            {"type": "query", "name": "host", "query": {"query": "label_values(xdp_ingress_a, host)"}}
        ]},
        "panels": [
            {"id": 1, "type": "stat", "title": "p", "datasource": {"uid": "${datasource}"}, "targets": [{"expr": "xdp_ingress_a{host=\"$host\"}"}]},
            {"id": 2, "type": "row", "title": "r", "panels": [
                {"id": 3, "type": "stat", "title": "q", "datasource": {"uid": "${datasource}"}, "targets": [{"expr": "sum(xdp_ingress_a)"}]}
            ]}
        ]
    }"#;

    #[test]
    fn a_board_has_existing_metrics_unique_ids_and_a_variable_for_its_source() {
        let metrics = Metrics::of("| `xdp_ingress_a` | gauge | `host` | |");
        for (change, expect) in [
            (("", ""), &[][..]),
            (("sum(xdp_ingress_a)", "sum(xdp_ingress_b)"), &["`xdp_ingress_b` does not exist"]),
            (("label_values(xdp_ingress_a", "label_values(xdp_ingress_c"), &["`xdp_ingress_c` does not exist"]),
            (("\"id\": 3", "\"id\": 1"), &["that of another panel"]),
            (("\"schemaVersion\": 39", "\"schemaVersion\": 30"), &["schemaVersion is 30"]),
            (("\"name\": \"datasource\"", "\"name\": \"source\""), &["no variable `datasource`"]),
            (("\"uid\": \"${datasource}\"", "\"uid\": \"prom\""), &["is not `${datasource}`"]),
            (("\"title\": \"q\"", "\"title\": \"\""), &["has no title"]),
            (("\"uid\": \"u\"", "\"uid\": \"\""), &["its uid"]),
        ] {
            assert!(BOARD.contains(change.0));
            let board = ("b".to_owned(), BOARD.replacen(change.0, change.1, 1));
            let found = objections(&[board], &metrics).unwrap();
            assert_eq!(found.len(), expect.len(), "{found:?}");
            assert!(found.iter().zip(expect).all(|(found, expect)| found.contains(expect)), "{found:?}");
        }
        let twice = [("a".to_owned(), BOARD.to_owned()), ("b".to_owned(), BOARD.to_owned())];
        assert_eq!(objections(&twice, &metrics).unwrap().len(), 1, "both have one uid");
        assert!(objections(&[("a".to_owned(), "{".to_owned())], &metrics).is_err());
    }
}
