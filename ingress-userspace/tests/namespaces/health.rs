//! Self-reports of a process, and that it needs no more than it is given: probes, privileges, switches of the metrics.

use std::{collections::BTreeMap, ffi::OsString, fs, process::Command, time::Duration};

use ingress_lab::{client::Ask, topology::Family, until, until_within};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use crate::{
    generation::{Generation, under},
    net::{Net, http},
};

/// Bits of capabilities(7): `CAP_NET_ADMIN`, `CAP_PERFMON`, `CAP_BPF`.
const THREE: u64 = 1 << 12 | 1 << 38 | 1 << 39;

/// Returns thread id, effective capabilities and number of seccomp filters by thread name.
fn threads(pid: i32) -> BTreeMap<String, (i32, u64, u32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let thread = |task: std::io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        let id = field("Pid:")?.parse().ok()?;
        let filters = field("Seccomp_filters:")?.parse().ok()?;
        Some((field("Name:")?, (id, u64::from_str_radix(&field("CapEff:")?, 16).ok()?, filters)))
    };
    tasks.filter_map(thread).collect()
}

#[test]
fn a_hung_thread_is_detected() {
    let Some(net) = Net::build("hang") else { return };
    net.write("web.yaml", &net.site("web", &[0]));
    let process = Generation::start(&net, "hang", &[]);
    process.probe("live").expect("all is well");
    let threads = threads(process.process.pid());
    // Stops one thread and leaves the others running.
    let stopped = |name: &str, probe: &mut dyn FnMut() -> Option<()>| {
        let thread = Pid::from_raw(threads[name].0);
        ptrace::attach(thread).expect("the thread is stopped");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("the thread is stopped");
        let found = until_within(Duration::from_secs(20), "the probe to find it", probe);
        ptrace::detach(thread, None).expect("the thread goes on");
        found.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        until("the process to live again", || process.probe("live").ok()).expect("what comes back is well again");
    };
    stopped("worker-1", &mut || {
        let said = process.probe("live").err()?;
        assert!(said.contains("thread `worker-1` has made no progress for 1"), "{said}");
        process.probe("started").expect("it has started nevertheless");
        Some(())
    });
    let main = threads
        .keys()
        .find(|name| name.starts_with("xdp-ingress"))
        .expect("the main thread has the program's name")
        .clone();
    stopped(&main, &mut || {
        let said = process.probe("live").expect_err("the main thread is stopped");
        assert!(said.contains("within 1s; the process hangs or is still starting"), "{said}");
        Some(())
    });
}

/// A dead process's socket is taken over; a live one's is not shared.
#[test]
fn a_probe_socket_belongs_to_one_process() {
    let Some(net) = Net::build("socket") else { return };
    net.write("web.yaml", &net.site("web", &[0]));
    let mut first = Generation::start(&net, "pod", &[]);
    let mut second = Generation::spawn(&net, "pod", &[]);
    assert_eq!(second.ended().code(), Some(1));
    let said = second.process.log();
    assert!(said.contains("belongs to a running process"), "{said}");
    first.probe("ready").expect("the first is not disturbed");
    first.process.kill().expect("it crashes");
    let said = first.probe("live").expect_err("nobody answers");
    assert!(said.contains("is `xdp-ingress run --probe-socket` running?"), "{said}");
    assert!(first.socket.exists());
    let third = Generation::start(&net, "pod", &[]);
    third.probe("live").expect("a restarted container finds its socket's file");
}

#[test]
fn three_capabilities_and_a_read_only_root_suffice() {
    let Some(net) = Net::build("least") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let web = Ask::get("web.test", "/");
    // Twice: the first makes pins, the second adopts them.
    for (number, name) in ["maker", "adopter"].into_iter().enumerate() {
        let pod = net.lab.home().join(name);
        fs::create_dir_all(&pod).expect("a directory for the pod");
        // As in a container: everything read-only except the directory of the socket and the BPF file system.
        let confined = |command: Command| {
            let script = "set -e; mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro /; for m in /tmp /run /dev/shm /work; do \
                          if mountpoint -q $m; then mount -o remount,bind,ro $m; fi; done; shift; exec \"$@\"";
            let three = "--bounding-set=-all,+net_admin,+perfmon,+bpf";
            let mut args: Vec<OsString> =
                ["--mount", "--propagation=private", "sh", "-c", script, "sh"].map(OsString::from).into();
            args.push(pod.clone().into());
            args.extend(["setpriv", three, "--inh-caps=-all", "--no-new-privs"].map(OsString::from));
            under("unshare", &args, &command)
        };
        let mut process = Generation::spawn_in(&net, name, &[], confined);
        let socket = process.socket.clone();
        let pid = process.process.pid();
        process
            .process
            .wait_until(Duration::from_secs(30), "readiness", || {
                socket.exists() && threads(pid).contains_key("worker-1")
            })
            .expect("it runs");
        until("readiness", || process.probe("ready").ok()).expect("it becomes ready");
        let denied = Command::new("nsenter")
            .args(["--target", &pid.to_string(), "--mount", "touch", "/read-only"])
            .output()
            .expect("nsenter runs");
        assert!(String::from_utf8_lossy(&denied.stderr).contains("Read-only"), "the test's own premise");
        for _ in 0..10 {
            assert_eq!(net.ask(&net.topology.client, http(Family::V4), &web).0.status, 200);
        }
        let counts = net.settled();
        let host = counts.hosts["web.test"];
        assert_eq!(host.l7.requests.success, 10 * (number as u64 + 1));
        assert!(host.net.rx_packets > 0, "workers write flows without a capability");
        assert!(host.net.tx_packets > 0, "and the transmit program is attached with these three");
        let threads = threads(pid);
        let (_, _, before) = threads["control"];
        for (name, (_, capabilities, filters)) in threads {
            let bound = name == "health-checks" || name.starts_with("worker-");
            assert_eq!(filters - before, if bound { 3 } else { 0 }, "filters of system calls of thread `{name}`");
            let expected = match name.as_str() {
                "access-log" | "health-checks" | "traces" => 0,
                name if name.starts_with("worker-") => 0,
                name if name.starts_with("xdp-ingress") => THREE,
                // The control thread, and the thread that it has started to watch a directory.
                _ => 1 << 39,
            };
            assert_eq!(capabilities, expected, "thread `{name}`: {capabilities:#x}");
        }
        // The main thread's capabilities suffice for a change while it runs, and for the end.
        net.topology.node.ip("addr add 192.0.2.77/32 dev lo").expect("an address");
        net.topology.node.ip("addr del 192.0.2.77/32 dev lo").expect("no address");
        assert!(process.process.terminate(Duration::from_secs(30)).expect("it ends").success());
        let log = process.process.log();
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    }
}

#[test]
fn metrics_can_be_disabled_or_reduced() {
    let Some(net) = Net::build("metrics") else { return };
    net.write("web.yaml", &net.site("web", &[0]));
    for (switch, expected) in [
        ("--enable-metrics=true", Some(true)),
        ("--metrics-per-host=false", Some(false)),
        ("--enable-metrics=false", None),
    ] {
        let process = Generation::start(&net, "switch", &[switch]);
        let metrics = until("the admin address", || net.admin("/metrics").ok()).expect("it answers");
        let metrics = metrics.status.is_success().then(|| String::from_utf8_lossy(&metrics.text).into_owned());
        let by_host = metrics.as_ref().map(|text| text.contains("host=\"web.test\""));
        assert_eq!(by_host, expected, "{switch}");
        assert!(metrics.is_none_or(|text| text.contains("xdp_ingress_ready 1")));
        drop(process);
    }
}
