//! The output of `xdp-ingress top` and `status` from outside is true, whether the process serves, hangs or has died.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use aya::util::KernelVersion;
use ingress_lab::{
    client::Ask,
    maps::{Counts, Host, UNATTRIBUTED_NAME},
    topology::Family,
    until, until_within,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    generation::under,
    net::{Net, http},
};

/// Returns the capabilities needed for reading pins, as an option of setpriv(1): none. Kernels before 5.19 want CAP_BPF
/// for every bpf(2) if `kernel.unprivileged_bpf_disabled` is set (kernel commit c8644cd0efe7).
fn least() -> &'static str {
    let is_old = KernelVersion::current().expect("a release") < KernelVersion::new(5, 19, 0);
    let is_set = |value: String| value.trim() != "0";
    let wants_bpf = is_old && fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").is_ok_and(is_set);
    if wants_bpf { "--bounding-set=-all,+bpf" } else { "--bounding-set=-all" }
}

/// Runs the product in the node as root, with no more capabilities than it needs.
pub(crate) fn run(net: &Net, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    command.args(args).arg("--bpffs").arg(&net.bpffs);
    let setpriv = [least(), "--inh-caps=-all", "--no-new-privs"].map(OsString::from);
    let mut command = under("setpriv", &setpriv, &command);
    net.topology.node.run(move || Ok(command.output()?)).expect("it runs")
}

/// Returns its output, as JSON.
fn json_of(net: &Net, args: &[&str]) -> Value {
    let output = run(net, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn top(net: &Net, args: &[&str]) -> Value {
    json_of(net, &[&["top", "--once", "--output", "json"], args].concat())
}

pub(crate) fn status(net: &Net) -> Value {
    json_of(net, &["status", "--output", "json"])
}

/// Returns the sentences under `attention`, joined.
pub(crate) fn attention(net: &Net) -> String {
    status(net)["attention"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

fn by_name(hosts: &Value) -> BTreeMap<String, Value> {
    let hosts = hosts.as_array().expect("a list of hosts");
    hosts.iter().map(|host| (host["host"].as_str().expect("a name").to_owned(), host.clone())).collect()
}

/// Returns the counters in the same form, read from the maps by another reader.
fn witnessed(counts: &Counts) -> BTreeMap<String, Value> {
    let host = |(name, Host { id, net, l7 }): (&String, &Host)| {
        let [success, redirect, client_error, server_error, aborted] = l7.requests.to_array();
        let value = json!({
            "host": name, "id": id,
            "requests": {
                "2xx": success, "3xx": redirect, "4xx": client_error, "5xx": server_error, "aborted": aborted,
            },
            "bytes_in": l7.bytes_in, "bytes_out": l7.bytes_out, "active": l7.active,
            "rx_packets": net.rx_packets, "rx_bytes": net.rx_bytes,
            "tx_packets": net.tx_packets, "tx_bytes": net.tx_bytes,
        });
        (name.clone(), value)
    };
    counts.hosts.iter().map(host).collect()
}

#[test]
fn top_is_exact_for_serving_hung_and_dead_processes() {
    let Some((net, mut proxy)) = Net::serving("top") else { return };
    let ask = |ask: &Ask| net.ask(&net.topology.client, http(Family::V4), ask).0;
    let (mut sent, mut received) = (0, 0);
    for bytes in [0, 1448, 100_000] {
        let answer = ask(&Ask::upload("web.test", "/upload", bytes));
        assert_eq!(answer.status, 200);
        sent += bytes;
        received += answer.body.received();
    }
    assert_eq!(ask(&Ask::get("nobody.test", "/")).status, 404);
    until("every request to be counted", || {
        let counts = net.maps().read().ok()?;
        let done = counts.hosts["web.test"].l7.requests.success == 3
            && counts.hosts[UNATTRIBUTED_NAME].l7.requests.client_error == 1
            && counts.hosts.values().all(|host| host.l7.active == 0);
        done.then_some(())
    })
    .expect("they are");
    let hosts = || by_name(&top(&net, &[])["hosts"]);
    // A late packet of a closing connection may come in between.
    let shown = until("both to say the same", || {
        let expected = witnessed(&net.settled());
        let shown = hosts();
        (shown == expected).then_some(shown)
    })
    .expect("they do");
    let web = &shown["web.test"];
    assert_eq!(web["requests"], json!({ "2xx": 3, "3xx": 0, "4xx": 0, "5xx": 0, "aborted": 0 }));
    assert_eq!((&web["bytes_in"], &web["bytes_out"]), (&json!(sent), &json!(received)), "what the client counted");
    assert_eq!(shown[UNATTRIBUTED_NAME]["requests"]["4xx"], 1);
    assert_eq!(by_name(&proxy.admin("/hosts").expect("answers").json().expect("JSON")), shown, "as the admin address");
    let metrics = proxy.admin("/metrics").expect("answers").text;
    let metric = format!("xdp_ingress_host_response_body_bytes_total{{host=\"web.test\"}} {received}\n");
    assert!(String::from_utf8_lossy(&metrics).contains(&metric), "{metric}");
    let accepted = top(&net, &[])["totals"]["accepted"]["packets"].as_u64();
    let sum = shown.values().map(|host| host["rx_packets"].as_u64()).sum::<Option<u64>>();
    assert_eq!(accepted, sum, "each packet counts for one host");

    let names = |args: &[&str]| -> Vec<Value> {
        let hosts = top(&net, args);
        hosts["hosts"].as_array().expect("a list").iter().map(|host| host["host"].clone()).collect()
    };
    assert_eq!(names(&["--sort", "in", "--limit", "1"]), ["web.test"]);
    assert_eq!(names(&["--sort", "4xx"]), [UNATTRIBUTED_NAME, "web.test"]);
    assert_eq!(names(&["--filter", "WEB"]), ["web.test"]);
    let rates = top(&net, &["--interval", "0.1"]);
    assert!(rates["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.1), "{rates}");
    assert_eq!(rates["hosts"][0]["per_second"]["requests"], 0.0, "nobody asks meanwhile");

    let state = status(&net);
    assert_eq!((&state["processes"][0]["role"], &state["processes"][0]["lives"]), (&json!("owner"), &json!(true)));
    let links: Vec<_> =
        state["links"].as_array().expect("a list").iter().map(|link| (&link["hook"], &link["mode"])).collect();
    let (native, none) = (json!("native"), Value::Null);
    assert_eq!(links, [(&json!("sk_lookup"), &none), (&json!("xdp"), &native), (&json!("tcx"), &none)]);
    assert_eq!(
        state["ports"][0],
        json!({ "port": 80, "proto": "tcp", "first_slot": 0, "slots": 2, "rewritten_to": null, "quic_sockets": 0 })
    );
    assert_eq!(state["attention"], json!([]), "all is well");

    proxy.process.signal(Signal::SIGSTOP).expect("it is stopped");
    until_within(Duration::from_secs(30), "a stale heartbeat", || {
        attention(&net).contains("has given no heartbeat for").then_some(())
    })
    .expect("it hangs");
    assert_eq!(status(&net)["processes"][0]["lives"], true);
    assert_eq!(hosts(), shown, "beside a process that hangs");
    proxy.process.signal(Signal::SIGCONT).expect("it goes on");
    until_within(Duration::from_secs(30), "a heartbeat", || attention(&net).is_empty().then_some(()))
        .expect("it beats");

    proxy.process.kill().expect("the proxy is killed");
    assert_eq!(hosts(), shown, "after the process");
    assert_eq!(status(&net)["processes"][0]["lives"], false);
    assert!(attention(&net).contains("has ended; new connections are refused"), "{}", attention(&net));
    let text = String::from_utf8(run(&net, &["status"]).stdout).expect("text");
    assert!(text.contains("\nowner      process 1, heartbeat ") && text.contains("\nattention  the process"), "{text}");
}

#[test]
fn errors_of_top_name_the_remedy() {
    let Some((net, proxy)) = Net::serving("top-none") else { return };
    let refused = |args: &[&str]| {
        let output = run(&net, args);
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, said) = refused(&["top"]);
    assert!(code == Some(1) && said.contains("use `top --once` for one table"), "{said}");
    let (code, said) = refused(&["top", "--output", "json"]);
    assert!(code == Some(2) && said.contains("--once"), "{said}");
    drop(proxy);
    assert!(run(&net, &["unload"]).status.success());
    for command in [&["top", "--once"][..], &["status"]] {
        let (code, said) = refused(command);
        assert!(code == Some(1) && said.contains("nothing of xdp-ingress is pinned below"), "{said}");
        assert!(said.contains("start `xdp-ingress run`") && said.contains("--bpffs"), "{said}");
    }
}

/// A program on a terminal of its own, by script(1).
struct OnTerminal {
    child: Child,
    shown: Arc<Mutex<String>>,
    reader: thread::JoinHandle<()>,
}

impl OnTerminal {
    fn start(net: &Net, command: &str) -> Self {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = net.topology.node.run(move || Ok(script.spawn()?)).expect("`script` of util-linux runs");
        let mut output = child.stdout.take().expect("a pipe");
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                all.lock().expect("no panic").push_str(&String::from_utf8_lossy(&piece[..count]));
            }
        });
        Self { child, shown, reader }
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    fn wait_for(&self, text: &str) {
        until(text, || self.shown().contains(text).then_some(()))
            .unwrap_or_else(|error| panic!("{error:#}: {:?}", self.shown()));
    }

    fn press(&mut self, key: &[u8]) {
        self.child.stdin.as_mut().expect("a pipe").write_all(key).expect("a key is pressed");
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn top_draws_on_a_terminal_and_restores_it() {
    let Some((net, _proxy)) = Net::serving("top-tty") else { return };
    assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/")).0.status, 200);
    let program = env!("CARGO_BIN_EXE_xdp-ingress");
    // `stty` prints the terminal's settings before and after.
    let command = format!("stty -g; '{program}' top --interval 0.1 --bpffs '{}' && stty -g", net.bpffs.display());
    let mut terminal = OnTerminal::start(&net, &command);
    terminal.wait_for("web.test");
    terminal.wait_for("REQ/s");
    terminal.press(b"s");
    terminal.wait_for("hosts by 4xx");
    terminal.press(b"/web\r");
    terminal.wait_for("1 of 2 hosts by 4xx, with `web`");
    terminal.press(b"q");
    let ended = until("its end", || terminal.child.try_wait().ok().flatten()).expect("it ends");
    assert!(ended.success(), "{:?}", terminal.shown());
    until("all that it said", || terminal.reader.is_finished().then_some(())).expect("the terminal is closed");
    let shown = terminal.shown();
    let (before, rest) = shown.split_once("\x1b[?1049h").expect("it uses the other screen");
    let (_, after) = rest.rsplit_once("\x1b[?1049l").expect("and gives it back");
    assert_eq!(before.trim(), after.trim(), "the terminal is as it was");
    assert!(before.contains(':'), "`stty` has said something");
}
