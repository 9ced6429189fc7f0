use std::{collections::BTreeMap, io::Read as _};

use anyhow::bail;
use flate2::read::GzDecoder;
use serde_json::json;

use super::*;

/// A process with a client's address wherever it has one.
struct Process;

impl Resources for Process {
    fn one(&self, name: &str) -> Result<Value> {
        match name {
            "deny" => Ok(json!({ "rules": [{ "rule": "192.0.2.7/32" }] })),
            "workers" => bail!("192.0.2.7 does not answer"),
            _ => Ok(json!({ "name": name })),
        }
    }

    fn list(&self, name: &str) -> Result<Vec<Value>> {
        Ok(match name {
            "clients" => vec![json!({ "client": "192.0.2.7/32" })],
            _ => vec![json!({ "name": name })],
        })
    }

    fn metrics(&self) -> Result<String> {
        Ok("xdp_ingress_denied_packets_total{network=\"192.0.2.7/32\"} 3\n".to_owned())
    }
}

/// Returns the files of an archive by their names.
fn files(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let read = |entry: io::Result<tar::Entry<'_, _>>| {
        let mut entry: tar::Entry<'_, GzDecoder<&[u8]>> = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        let (_, name) = path.split_once('/').expect("a directory for all");
        (name.to_owned(), text)
    };
    archive.entries().expect("an archive").map(read).collect()
}

fn bundle(with_addresses: bool) -> BTreeMap<String, String> {
    let home = tempfile::tempdir().expect("a directory");
    let mut bundle = Bundle::new(with_addresses);
    bundle.collect("nodes/a", &Process);
    let line = "{\"timestamp\":\"1\",\"level\":\"INFO\",\"target\":\"x\",\"client\":\"192.0.2.7:1\"}\n";
    bundle.log("nodes/a/log.txt", Ok(line.to_owned() + "192.0.2.7 - hunter2 \"GET /?token=hunter2\"\n"));
    let place = home.path().join("bundle.tar.gz");
    let (written, missing) = bundle.write(Some(&place)).expect("written");
    assert_eq!((written, missing), (place.clone(), vec!["nodes/a/workers.json: 192.0.2.7 does not answer".to_owned()]));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(place.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    files(&fs::read(place).expect("read"))
}

#[test]
fn no_client_and_no_secret_is_in_a_bundle() {
    let files = bundle(false);
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "missing.txt",
            "nodes/a/certificates.json",
            "nodes/a/changes.json",
            "nodes/a/drops.json",
            "nodes/a/hosts.json",
            "nodes/a/interfaces.json",
            "nodes/a/log.txt",
            "nodes/a/metrics.txt",
            "nodes/a/node.json",
            "nodes/a/problems.json",
            "nodes/a/routes.json",
            "nodes/a/upstreams.json",
        ]
    );
    for (name, text) in &files {
        assert!(!text.contains("192.0.2.7") && !text.contains("hunter2"), "{name}: {text}");
    }
    assert_eq!(files["nodes/a/metrics.txt"], "xdp_ingress_denied_packets_total{network=\"address-1/32\"} 3\n");
    assert!(files["nodes/a/log.txt"].contains("\"client\":\"address-1:1\""), "the same name in all files");
}

#[test]
fn addresses_are_kept_on_demand() {
    let files = bundle(true);
    for name in ["deny.json", "clients.json", "metrics.txt", "log.txt"] {
        assert!(files[&format!("nodes/a/{name}")].contains("192.0.2.7"), "{name}");
    }
    assert!(files.values().all(|text| !text.contains("hunter2")), "the access log is never in it");
}
