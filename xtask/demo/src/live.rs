//! The demo that keeps running: shows how to reach it, and reports when an edit of the examples has taken effect.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    page::Page,
    stage::{Scene, Stage},
};
use ingress_lab::{
    topology::{NODE_V4, NODE_V6},
    until_within,
};

/// Interval between checks of the examples and the log.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for an edit to take effect.
const TAKES_EFFECT: Duration = Duration::from_secs(5);

/// Prints commands to try.
pub(super) fn invite(page: Page, stage: &Stage) {
    page.title("Try it (from another terminal)");
    let home = stage.lab.home().display();
    match &stage.scene {
        Scene::Kernel { topology, bpffs } => {
            let client = format!("nsenter --net={}", topology.client.path().display());
            let node = format!("nsenter --net={}", topology.node.path().display());
            page.line(format_args!("  {client} \\\n    curl -H 'Host: shop.example.com' http://{NODE_V4}/"));
            page.line(format_args!("  {client} \\\n    curl -H 'Host: docs.example.com' 'http://[{NODE_V6}]/guide'"));
            page.line(format_args!(
                "  {client} \\\n    curl --cacert {home}/ca.pem --resolve account.example.com:443:{NODE_V4} https://account.example.com/"
            ));
            page.line(format_args!("  {node} curl -s http://127.0.0.1:9110/hosts"));
            page.line(format_args!("  bpftool map dump pinned {}/v1/maps/host_net", bpffs.display()));
        }
        Scene::Loopback(loopback) => {
            let (http, https, admin) = (loopback.http, loopback.https, loopback.admin);
            page.line(format_args!("  curl -H 'Host: shop.example.com' http://127.0.0.1:{http}/"));
            page.line(format_args!(
                "  curl --cacert {home}/ca.pem --resolve account.example.com:{https}:127.0.0.1 \\\n    https://account.example.com:{https}/"
            ));
            page.line(format_args!("  curl -s http://127.0.0.1:{admin}/hosts"));
        }
    }
}

/// Follows the examples until the proxy ends.
pub(super) fn follow(page: Page, stage: &mut Stage, examples: &Path) -> anyhow::Result<()> {
    let mut log = File::open(stage.controller.process.log_path())?;
    log.seek(SeekFrom::End(0))?;
    let (copy, original) = (stage.mirror.dir().display().to_string(), examples.display().to_string());
    let mut unfinished = String::new();
    loop {
        if let Some(status) = stage.controller.process.exited() {
            anyhow::bail!("`xdp-ingress` ended ({status}):\n{}", stage.controller.process.log_tail(20));
        }
        let before = stage.controller.generation()?;
        match stage.mirror.sync() {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => effect(page, stage, &changed.join(", "), before),
            Err(error) => page.line(format_args!("  {} {error:#}", page.mark(false))),
        }
        log.read_to_string(&mut unfinished)?;
        while let Some((line, rest)) = unfinished.split_once('\n') {
            if line.contains("WARN") || line.contains("ERROR") || line.contains("resolved:") {
                // The proxy names its copy; the reader edits the original.
                page.note(&format!("  {}", line.replace(&copy, &original)));
            }
            unfinished = rest.to_owned();
        }
        thread::sleep(INTERVAL);
    }
}

fn effect(page: Page, stage: &Stage, files: &str, before: u64) {
    let began = Instant::now();
    let live = until_within(TAKES_EFFECT, "a new snapshot", || {
        stage.controller.generation().ok().filter(|generation| *generation > before)
    });
    match live {
        Ok(generation) => {
            let took = began.elapsed().as_millis();
            page.line(format_args!("  {} {files}: live after {took} ms, generation {generation}", page.mark(true)));
        }
        Err(_late) => {
            page.line(format_args!("  · {files}: nothing changed for any route, or the file is faulty (see below)"))
        }
    }
}
