//! Tests of the laboratory alone: pods reached directly, the small-MTU link, and removal after a crash.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use super::{
    Lab, capability,
    client::{Answer, Ask, Connection, Protocol, Trust, block_on},
    topology::{Family, POD_PORT, PODS, Topology},
};

fn ask(topology: &Topology, addr: SocketAddr, ask: &Ask) -> Answer {
    let exchange = || {
        block_on(async {
            let mut connection = Connection::open(addr, Protocol::Http1, "pod", &Trust::none()).await?;
            let answer = connection.send(ask).await?;
            connection.close().await?;
            Ok(answer)
        })
    };
    topology.client.run(exchange).expect("the pod answers")
}

#[test]
fn the_client_reaches_every_pod_across_the_small_link() {
    if !capability::required_or_skip("lab").expect("the machine has what is required") {
        return;
    }
    let lab = Lab::open("xd-lab").expect("lab opens");
    let topology = Topology::build(&lab).expect("topology is built");
    for (pod, name) in topology.pods.iter().zip(PODS) {
        for family in [Family::V4, Family::V6] {
            for port in [POD_PORT, 80] {
                let addr = match family {
                    Family::V4 => SocketAddr::from((pod.v4, port)),
                    Family::V6 => SocketAddr::from((pod.v6, port)),
                };
                assert_eq!(ask(&topology, addr, &Ask::get("pod", "/")).pod(), Some(name), "{addr}");
                let download = ask(&topology, addr, &Ask::get("pod", "/bytes/3000000"));
                assert!(download.body.intact() && download.body.received() == 3_000_000, "{addr}: {:?}", download.body);
                let upload = ask(&topology, addr, &Ask::upload("pod", "/upload", 3_000_000));
                let receipt = upload.json().expect("the pod answers with JSON");
                assert_eq!((receipt["received"].as_u64(), receipt["intact"].as_bool()), (Some(3_000_000), Some(true)));
            }
        }
    }
}

#[test]
fn the_next_run_removes_leftovers_of_a_crash() {
    if !capability::required_or_skip("lab").expect("the machine has what is required") {
        return;
    }
    let lab = Lab::open("xd-crash").expect("lab opens");
    let namespace = lab.namespace("node").expect("namespace is made");
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000");
    let process = lab.spawn(&namespace, "sleeper", sleeper).expect("process starts");
    let (pid, path, bpffs) = (process.pid(), namespace.path(), lab.bpffs().expect("bpffs is mounted"));
    assert!(path.exists() && bpffs.join("maps.debug").exists());
    assert!(Lab::open("xd-crash").is_err(), "an open lab is left alone");

    // A crash leaves the state file without a process to act on it.
    let copy = fs::read(lab.home().join("state")).expect("state file is there");
    let home = lab.home().to_owned();
    lab.registry.forget();
    drop(lab);
    assert!(path.exists(), "forgotten, not removed");
    assert_eq!(fs::read(home.join("state")).expect("state file stays"), copy);

    let next = Lab::open("xd-crash").expect("the next run opens the lab");
    assert!(!path.exists() && !bpffs.exists());
    let state = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "the process has ended: {state}");
    drop(next);
    assert!(!home.exists());
}
