//! `kubectl xdp-ingress status` and `version`: a line for each node.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    arguments::{StatusArgs, StatusLikeArgs},
    fleet::{Answered, Fleet},
    pods::ControllerPod,
};
use crate::{
    FINDINGS,
    palette::Tone,
    print::{self, Style},
    table::{Cell, TableColumn, coloured},
};

/// A node, with what its process says of itself.
#[derive(Clone, Debug, Serialize)]
struct NodeState {
    #[serde(flatten)]
    pod: ControllerPod,
    process: Value,
}

/// Shows a line for each node.
///
/// # Errors
/// Fails if no pod answers, or standard output cannot be written.
pub(super) fn run(fleet: &Fleet, args: &StatusArgs) -> Result<ExitCode> {
    let StatusArgs { output, exit_code, installation: _ } = args;
    let states = print::show(output, || read(fleet), |states, style| style.render(states, || table(states, style)))?;
    let is_found = states.iter().any(|state| state.problem().is_some());
    Ok(if *exit_code && is_found { FINDINGS.into() } else { ExitCode::SUCCESS })
}

/// Shows the version of this program and of each process.
///
/// # Errors
/// Fails like [`run`].
pub(super) fn version(fleet: &Fleet, args: &StatusLikeArgs) -> Result<()> {
    let client = env!("CARGO_PKG_VERSION");
    print::show(
        &args.output,
        || read(fleet),
        |states, style| {
            let node = |state: &NodeState| json!({ "node": state.pod.node, "version": state.process["version"] });
            let document = json!({ "client": client, "nodes": states.iter().map(node).collect::<Value>() });
            style.render(&document, || {
                let line = |state: &NodeState| format!("{}: {}\n", state.pod.node, text(&state.process["version"]));
                format!("client: {client}\n{}", states.iter().map(line).collect::<String>())
            })
        },
    )?;
    Ok(())
}

fn read(fleet: &Fleet) -> Result<Vec<NodeState>> {
    let answers = fleet.ask(async |mut connection| connection.one("node", &[]).await)?;
    Ok(answers.into_iter().map(|(pod, process): Answered<Value>| NodeState { pod, process }).collect())
}

impl NodeState {
    /// Returns what is wrong with the process, in a few words.
    fn problem(&self) -> Option<String> {
        let reason = |name: &str| self.process[name].as_str().map(str::to_owned);
        let hangs = reason("live").map(|reason| format!("hangs: {reason}"));
        let saved = || {
            let is_saved = self.process["configuration"]["serves_saved"] == true;
            is_saved.then(|| "serves the saved configuration".to_owned())
        };
        hangs.or_else(|| reason("not_ready").map(|reason| format!("not ready: {reason}"))).or_else(saved)
    }
}

fn table(states: &[NodeState], style: Style) -> String {
    let row = |state: &NodeState| {
        let NodeState { pod, process } = state;
        let configuration = &process["configuration"];
        let number = |value: &Value| Cell::from(text(value));
        let warnings = &configuration["warnings"];
        let tone = if warnings.as_u64().unwrap_or_default() > 0 { Tone::Warning } else { Tone::Plain };
        let problem = state.problem();
        let condition = match &problem {
            None => Cell::from("ready".to_owned()),
            Some(problem) => Cell::new(problem.clone(), Tone::Error),
        };
        let contact = configuration["seconds_since_contact"].as_f64();
        [
            pod.node.clone().into(),
            text(&process["version"]).into(),
            number(&configuration["hosts"]),
            number(&configuration["upstreams"]),
            Cell::new(text(warnings), tone),
            number(&process["connections"]["open"]),
            contact.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.0} s")).into(),
            pod.restarts.to_string().into(),
            pod.name.clone().into(),
            condition,
        ]
    };
    let rows: Vec<[Cell; 10]> = states.iter().map(row).collect();
    let columns = [
        TableColumn::Words("NODE"),
        TableColumn::Words("VERSION"),
        TableColumn::Numbers("HOSTS", 5),
        TableColumn::Numbers("UPSTREAMS", 5),
        TableColumn::Numbers("WARNINGS", 5),
        TableColumn::Numbers("CONNECTIONS", 5),
        TableColumn::Numbers("CONTACT", 5),
        TableColumn::Numbers("RESTARTS", 5),
        TableColumn::Words("POD"),
        TableColumn::Words("STATE"),
    ];
    coloured(columns, &rows, style.palette)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{palette::Palette, print::Format};

    fn state(node: &str, process: Value) -> NodeState {
        let pod = ControllerPod {
            node: node.to_owned(),
            name: format!("xdp-ingress-{node}"),
            phase: "Running".to_owned(),
            is_ready: true,
            is_ending: false,
            restarts: 1,
            started: None,
            admin_port: 9110,
            container: "xdp-ingress".to_owned(),
        };
        NodeState { pod, process }
    }

    fn process(live: Value, not_ready: Value, serves_saved: bool) -> Value {
        json!({
            "version": "0.1.0", "live": live, "not_ready": not_ready,
            "configuration": {
                "hosts": 12, "upstreams": 30, "warnings": 2, "serves_saved": serves_saved,
                "seconds_since_contact": 1.4,
            },
            "connections": { "open": 7 },
        })
    }

    #[test]
    fn each_node_has_a_line() {
        let states = [
            state("a", process(Value::Null, Value::Null, false)),
            state("b", process(Value::Null, json!("draining"), true)),
        ];
        let style = Style { format: Format::Table, palette: Palette::NONE };
        let expected = "\
NODE  VERSION  HOSTS  UPSTREAMS  WARNINGS  CONNECTIONS  CONTACT  RESTARTS  POD            STATE
a     0.1.0       12         30         2            7      1 s         1  xdp-ingress-a  ready
b     0.1.0       12         30         2            7      1 s         1  xdp-ingress-b  not ready: draining
";
        assert_eq!(table(&states, style), expected);
    }

    #[test]
    fn hanging_unready_and_outdated_processes_are_problems() {
        for (process, expected) in [
            (process(Value::Null, Value::Null, false), None),
            (process(Value::Null, Value::Null, true), Some("serves the saved configuration")),
            (process(Value::Null, json!("no snapshot"), true), Some("not ready: no snapshot")),
            (process(json!("worker-1"), json!("no snapshot"), false), Some("hangs: worker-1")),
        ] {
            assert_eq!(state("a", process).problem().as_deref(), expected);
        }
    }
}
