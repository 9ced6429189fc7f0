//! The quick start of the documentation, followed to the letter: each command of docs/start/quick-start.md from the
//! installation to the removal, in the order of the page, in one shell. Only names that a reader replaces are replaced.

use std::time::{Duration, Instant};

use crate::{
    packaging::{Restored, await_nothing, deploy},
    reader::Reader,
    stage::stage,
};

/// Sections of the page that apply to every cluster, in order.
const SECTIONS: [&str; 5] = [
    "## Install with Helm",
    "## Serve your first host",
    "## Add TLS",
    "## Change settings with a ConfigMap",
    "## Remove it",
];

/// Limit of the time from the first command until the first answer of a pod, as the page promises.
const PROMISED: Duration = Duration::from_mins(5);

#[test]
fn the_quick_start_works_as_it_is_written() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("quick-start");
    let reader = Reader::open(&scope, "start/quick-start.md");
    let _restored = Restored(stage);
    stage.kubectl(&["delete", "--kustomize", &deploy("base"), "--wait"]);
    await_nothing(stage, "web.example.com");

    let image = format!("--image=localhost/echo-server:{}", env!("CARGO_PKG_VERSION"));
    let replaced = [
        ("oci://registry.example.com/xdp-ingress/charts/xdp-ingress", deploy("chart")),
        ("--image=nginx", image),
        ("web --port=80", "web --port=80 --target-port=8080".to_owned()),
    ];
    let mut script = "date +%s%N\n".to_owned();
    for section in SECTIONS {
        script += &format!("echo '{section}'\n{}", reader.commands(section));
        if section == "## Serve your first host" {
            script += "date +%s%N\n";
        }
    }
    for (text, with) in &replaced {
        assert!(script.contains(text), "the page does not contain `{text}` any more");
        script = script.replace(text, with);
    }
    println!("{script}");
    let started = Instant::now();
    let said = reader.shell(&script);
    println!("{said}\nall of it took {:.0?}", started.elapsed());

    let part = |section: &str| {
        let rest = said.split_once(section).expect("the section ran").1;
        rest.split("\n## ").next().unwrap_or(rest).to_owned()
    };
    let first = part("## Serve your first host");
    assert!(first.contains("HTTP/1.1 200 OK"), "{first}");
    let counted = first.lines().rev().find(|line| line.contains("web.example.com")).expect("a line of `top`");
    assert!(counted.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).any(|count| count > 0), "{counted}");
    let secure = part("## Add TLS");
    assert!(secure.contains(" 200"), "{secure}");
    let stamps: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).filter(|stamp| *stamp > 1 << 60).collect();
    let [begun, served] = stamps[..] else { panic!("two times: {stamps:?}") };
    let took = Duration::from_nanos(served - begun);
    println!("from the first command to the first answer and its counters: {took:.1?}");
    assert!(took < PROMISED, "{took:?}");
    await_nothing(stage, "web.example.com");
    // The page does not wait for the pods, which may drain until their grace period ends. Until then they hold the ports
    // that the manifests' pods need.
    let pods = ["wait", "--for=delete", "pods", "--selector=app.kubernetes.io/name=xdp-ingress", "--timeout=300s"];
    let started = Instant::now();
    stage.kubectl(&[&["--namespace=xdp-ingress"], &pods[..]].concat());
    println!("the pods were gone after {:.0?}", started.elapsed());
}
