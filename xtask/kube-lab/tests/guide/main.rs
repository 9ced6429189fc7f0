//! The guide docs/migrate against a real API server: each command of its pages and of a plan runs as it is written, with
//! the real `kubectl` and `helm`. Only names that a reader replaces are replaced.
//!
//! There are no nodes. A wrapper of `kubectl` therefore answers `logs` and `rollout status`, and notes `exec`. The test
//! `an_operator_leaves` of the package `ingress-userspace` runs those commands on a node, and those of shift.md. A chart of
//! the same name stands in for that of ingress-nginx.

use std::{collections::BTreeSet, fs};

use anyhow::{Result, ensure};
use serde_json::Value;
use xtask_kube_lab::programs;
use xtask_tools::workspace;

use crate::desk::Desk;

mod desk;

/// Pages with the sections to follow in this order; all of them without a list.
const PAGES: [(&str, &[&str]); 6] = [
    ("check.md", &[]),
    ("shadow.md", &[]),
    ("plan.md", &[]),
    ("gateway.md", &[]),
    ("remove.md", &[]),
    (
        "back.md",
        // From the last step of the move to the first.
        &[
            "# Go back to ingress-nginx",
            "## Bring the release back",
            "## Start ingress-nginx again",
            "## Take the share back",
            "## Point the names back",
            "## Give the statuses back",
            "## Remove xdp-ingress",
        ],
    ),
];
/// The page with commands of a node.
const ON_NODES: &str = "shift.md";
/// Kinds of ingress-nginx' workload. The pages have commands for both.
const KINDS: [&str; 2] = ["Deployment", "DaemonSet"];

fn page(name: &str) -> Result<String> {
    Ok(fs::read_to_string(workspace::root().join("docs/migrate").join(name))?)
}

/// Returns the commands of a text.
fn commands(text: &str) -> String {
    text.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect()
}

/// Returns the commands of a page in the order of `sections`.
fn ordered(page: &str, sections: &[&str]) -> Result<String> {
    if sections.is_empty() {
        return Ok(commands(page));
    }
    let mut script = String::new();
    for heading in sections {
        let section = page.split_once(&format!("{heading}\n")).map_or("", |(_, rest)| rest);
        let found = commands(section.split("\n## ").next().unwrap_or(section));
        ensure!(!found.is_empty(), "`{heading}` has no commands");
        script += &found;
    }
    Ok(script)
}

/// Leaves out the commands for another kind of workload.
fn of_kind(script: &str, kind: &str) -> String {
    let others = KINDS.iter().filter(|other| **other != kind);
    let others: Vec<_> = others.map(|other| format!("{}/ingress-nginx-controller", other.to_lowercase())).collect();
    let is_meant = |line: &&str| !others.iter().any(|other| line.contains(other));
    script.lines().filter(is_meant).map(|line| format!("{line}\n")).collect()
}

/// Returns the commands and the way back of a plan's steps.
fn steps(plan: &Value) -> Vec<(String, [String; 2])> {
    let lines = |value: &Value| -> String {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(|line| format!("{line}\n")).collect()
    };
    let steps = plan["steps"].as_array().into_iter().flatten();
    let step = |step: &Value| {
        let title = step["title"].as_str().unwrap_or_default().to_owned();
        (title, [lines(&step["commands"]), lines(&step["back"])])
    };
    steps.map(step).collect()
}

#[test]
fn each_command_of_the_guide_runs() -> Result<()> {
    if !programs::required_or_skip("the guide")? {
        return Ok(());
    }
    let mut ran = BTreeSet::new();
    for kind in KINDS {
        let desk = Desk::open("guide", kind, true)?;
        for (name, sections) in PAGES {
            println!("# {name}, {kind}");
            if name == "remove.md" {
                ensure!(desk.edit().is_err(), "the webhook without a pod refuses each change");
                let plan = desk.plan()?;
                let step = |title: &str| steps(&plan).into_iter().find(|(found, _)| found.starts_with(title));
                for title in ["Write the values", "Install xdp-ingress", "Grant the right"] {
                    let (_, [forth, _]) = step(title).unwrap_or_else(|| panic!("no step `{title}`"));
                    println!("{}", desk.follow(&forth)?);
                }
                desk.start_pod()?;
            }
            let script = of_kind(&ordered(&page(name)?, sections)?, kind);
            println!("{}", desk.follow(&script)?);
            ran.extend(script.lines().map(str::to_owned));
            if name == "remove.md" {
                desk.edit()?;
                let class = desk.shell("kubectl get ingressclass/nginx --output name")?;
                ensure!(class.contains("ingressclass.networking.k8s.io/nginx"), "Helm keeps the class: {class}");
            }
        }
        let on_nodes = desk.executed()?;
        assert_eq!(on_nodes, ["xdp-ingress migrate shift 0", "xdp-ingress unload"]);
    }
    // No page and no section is left out.
    for entry in fs::read_dir(workspace::root().join("docs/migrate"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let missing: Vec<_> =
            commands(&page(&name)?).lines().filter(|line| !ran.contains(*line)).map(str::to_owned).collect();
        ensure!(missing.is_empty() || name == ON_NODES, "{name}: {missing:?}");
    }
    Ok(())
}

#[test]
fn each_command_of_a_plan_runs_forth_and_back() -> Result<()> {
    if !programs::required_or_skip("a plan")? {
        return Ok(());
    }
    for (kind, is_on_host) in [(KINDS[0], true), (KINDS[1], true), (KINDS[0], false)] {
        let desk = Desk::open("plan", kind, is_on_host)?;
        let plan = desk.plan()?;
        let steps = steps(&plan);
        ensure!(steps.len() >= 10, "{plan}");
        for (title, [forth, _]) in &steps {
            println!("# {title}, {kind}");
            println!("{}", desk.follow(forth)?);
            if title.starts_with("Install xdp-ingress") {
                desk.start_pod()?;
            }
        }
        desk.edit()?;
        // The function of the step that moves clients, which later steps use on the way back.
        let moves = steps.iter().find(|(title, _)| title.starts_with("Move clients")).expect("a step");
        let is_call = |line: &&str| line.starts_with("shift_clients ") || line.starts_with("share_");
        let function: String = moves.1[0].split_inclusive('\n').take_while(|line| !is_call(line)).collect();
        for (title, [_, back]) in steps.iter().rev() {
            println!("# back: {title}, {kind}");
            println!("{}", desk.follow(&format!("{function}{back}"))?);
        }
        let left = desk.shell("kubectl get --all-namespaces deployments,daemonsets,ingressclasses --output name")?;
        let workload = format!("{}.apps/ingress-nginx-controller", kind.to_lowercase());
        ensure!(left.contains(&workload) && left.contains("/nginx") && !left.contains("xdp-ingress"), "{left}");
    }
    Ok(())
}
