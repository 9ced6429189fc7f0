//! A share of the clients beside another server on the same ports: `migrate shift` under load, and without a process.
//!
//! The other server is a plain one, or nginx for `XDP_INGRESS_SHIFTS=1000`, which also sets the number of shifts. The
//! latter adds clients over TLS.

use std::{
    fs,
    net::SocketAddr,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ingress_common::Total;
use ingress_lab::{
    Process,
    client::{Ask, Protocol, Trust},
    credentials::{Authority, Signed},
    echo::Echo,
    load::{Connections, Load, Target},
    topology::{Family, node_addr},
    until_within,
};
use nix::sys::signal::Signal;
use rcgen::KeyPair;

use crate::{
    generation::Generation,
    net::{Net, http, stop_all},
};

/// Shifts from 0 to 100 % and back in a usual run.
const SHIFTS: usize = 8;
/// Number of shifts beside nginx.
const BESIDE_NGINX: &str = "XDP_INGRESS_SHIFTS";
/// Answers of all loads between two changes, beside nginx: a million for a thousand shifts.
const ANSWERS: u64 = 500;
/// Longest wait for a shift or its end.
const LIMIT: Duration = Duration::from_secs(60);
/// Ways back that are timed, and the longest time of the middle one until new connections reach the other server.
const WAYS_BACK: usize = 5;
const BACK: Duration = Duration::from_secs(1);
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// The pod of our routes, and that behind the other server.
const OURS: &str = "pod-a";
const OTHER: &str = "pod-c";

/// The other server on the node's ports.
enum Other {
    Plain(#[expect(dead_code, reason = "runs until it is dropped")] Echo),
    Nginx(#[expect(dead_code, reason = "runs until it is dropped")] Process),
}

/// A network in which the other server serves `web.test` on ports 80 and 443 of the node.
fn beside_other(name: &str, is_nginx: bool) -> Option<(Net, Other, Trust)> {
    let net = Net::build(name)?;
    let authority = Authority::generate().expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let signed = authority.sign(&["web.test"], &key).expect("a certificate");
    let secret = signed.secret("default", "web");
    net.write_tls_site(&[0], &secret);
    let other = if is_nginx { nginx(&net, &signed) } else { plain(&net) };
    Some((net, other, authority.trust().expect("a usable authority")))
}

fn plain(net: &Net) -> Other {
    let listen = ["[::]:80", "[::]:443"].map(|addr| addr.parse::<SocketAddr>().expect("an address"));
    Other::Plain(Echo::start(&net.topology.node, OTHER, &listen).expect("it listens"))
}

/// Starts the nginx of the distribution as a proxy of the last pod.
fn nginx(net: &Net, signed: &Signed) -> Other {
    let home = net.lab.home().join("nginx");
    fs::create_dir(&home).expect("a directory");
    fs::write(home.join("tls.crt"), signed.certificate()).expect("written");
    fs::write(home.join("tls.key"), signed.key()).expect("written");
    let (home, pod) = (home.display(), net.topology.pods[2].v4);
    let conf = format!(
        "daemon off; user root; worker_processes 1; pid {home}/pid; error_log stderr warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
           access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;\n\
           map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}\n\
           upstream pods {{ server {pod}:8080; keepalive 32; }}\n\
           server {{\n\
             listen 80; listen [::]:80; listen 443 ssl; listen [::]:443 ssl;\n\
             ssl_certificate {home}/tls.crt; ssl_certificate_key {home}/tls.key; keepalive_requests 100;\n\
             location / {{\n\
               proxy_pass http://pods; proxy_http_version 1.1; proxy_set_header Host $host;\n\
               proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;\n\
             }}\n\
           }}\n\
         }}\n"
    );
    let path = net.lab.home().join("nginx/nginx.conf");
    fs::write(&path, conf).expect("written");
    let mut command = Command::new("nginx");
    command.arg("-c").arg(path);
    Other::Nginx(net.lab.spawn(&net.topology.node, "nginx", command).expect("nginx starts"))
}

/// Runs `migrate shift` on the node. Returns its output, or as an error its complaint.
fn try_shift(net: &Net, arguments: &[&str]) -> Result<String, String> {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
        command.args(["migrate", "shift"]).args(arguments).arg("--bpffs").arg(&net.bpffs);
        Ok(command.env_remove("KUBERNETES_SERVICE_HOST").output()?)
    };
    let output = net.topology.node.run(run).expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[track_caller]
fn shift(net: &Net, share: &str) -> String {
    try_shift(net, &[share]).unwrap_or_else(|said| panic!("{said}"))
}

/// Checks that a new connection of each family reaches `pod`.
#[track_caller]
fn reaches(net: &Net, pod: &str) {
    for family in FAMILIES {
        let (answer, _) = net.ask(&net.topology.client, http(family), &Ask::get("web.test", "/"));
        assert_eq!(answer.pod(), Some(pod), "{family:?}");
    }
}

/// Sets the share. Returns the time until new connections of both families reach `pod`, with that of the command.
#[track_caller]
fn moved(net: &Net, share: &str, pod: &str) -> Duration {
    let started = Instant::now();
    shift(net, share);
    reaches(net, pod);
    started.elapsed()
}

/// Sorts the times, and returns the middle one.
fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn spread(times: &mut [Duration]) -> String {
    let median = median(times);
    let at = |part: usize| times.get(times.len() * part / 100).or(times.last()).copied().unwrap_or_default();
    format!("p50 {median:.0?}, p99 {:.0?}, slowest {:.0?}", at(99), at(100))
}

fn loads(net: &Net, trust: &Trust, is_nginx: bool) -> Vec<(&'static str, Load)> {
    let tls = || Target { addr: (node_addr(Family::V6), 443).into(), protocol: Protocol::Https1, trust: trust.clone() };
    let plain = |family| Target::from(http(family));
    let mut kinds = vec![
        ("kept", plain(Family::V4), "/", Connections::Kept),
        ("new", plain(Family::V4), "/", Connections::New),
        ("new, IPv6", plain(Family::V6), "/", Connections::New),
        ("WebSockets", plain(Family::V4), "/websocket", Connections::WebSockets),
    ];
    if is_nginx {
        kinds.push(("TLS, new", tls(), "/", Connections::New));
        kinds.push(("TLS, kept", tls(), "/", Connections::Kept));
    }
    let start = |(name, target, path, connections)| {
        let load = Load::start(&net.topology.client, target, Ask::get("web.test", path), 2, connections);
        (name, load.unwrap_or_else(|error| panic!("{name}: {error:#}")))
    };
    kinds.into_iter().map(start).collect()
}

fn answered(loads: &[(&str, Load)]) -> u64 {
    loads.iter().map(|(_, load)| load.answered()).sum()
}

#[test]
fn shifts_fail_no_request() {
    let shifts = std::env::var(BESIDE_NGINX).ok().map(|count| count.parse::<usize>().expect("a number"));
    let is_nginx = shifts.is_some();
    let Some((net, _other, trust)) = beside_other("shifts", is_nginx) else { return };
    let _process = Generation::start(&net, "beside", &["--initial-share", "0%"]);
    reaches(&net, OTHER);
    let loads = loads(&net, &trust, is_nginx);
    let (shifts, answers) = shifts.map_or((SHIFTS, 40), |shifts| (shifts, ANSWERS));
    let (mut forth, mut back, began) = (Vec::new(), Vec::new(), Instant::now());
    for number in 1..=shifts {
        for (share, pod, times) in [("100%", OURS, &mut forth), ("0", OTHER, &mut back)] {
            times.push(moved(&net, share, pod));
            let goal = answered(&loads) + answers;
            until_within(LIMIT, "the loads to go on", || (answered(&loads) >= goal).then_some(())).expect("they do");
        }
        if number % 100 == 0 {
            let failed: u64 = loads.iter().map(|(_, load)| load.failed()).sum();
            println!("{number} shifts, {} requests, {failed} failed, {:.0?}", answered(&loads), began.elapsed());
        }
    }
    let took = began.elapsed();
    let total = stop_all(loads);
    println!(
        "{shifts} shifts from 0 to 100 % and back in {:.0} s; {} requests meanwhile, {} failed\n\
         a change and two requests on the other side, forth: {}; back: {}",
        took.as_secs_f64(),
        total.answered,
        total.failed,
        spread(&mut forth),
        spread(&mut back)
    );
    assert_eq!(total.failed, 0, "{:?}", total.reasons);
    assert!(median(&mut back) <= BACK, "the middle one of {} ways back", back.len());
    let counts = net.settled();
    assert_eq!(counts.received(), counts.total(Total::Accepted), "each packet counts for one host");
    assert!(counts.total(Total::Left).packets > 0 && counts.total(Total::Decided).packets > 0);
    assert!(counts.total(Total::LookupLeft).packets > 0);
}

#[test]
fn clients_go_back_while_the_process_hangs_or_is_dead() {
    let Some((net, other, _)) = beside_other("shift-back", false) else { return };
    let mut process = Generation::start(&net, "beside", &[]);
    reaches(&net, OURS);
    assert_eq!(
        shift(&net, "0"),
        "0 % of the clients come to xdp-ingress (until it is changed, or the node starts again)\n"
    );
    reaches(&net, OTHER);
    let back = || {
        shift(&net, "100%");
        moved(&net, "0", OTHER)
    };
    for state in ["serves", "hangs", "is dead"] {
        match state {
            "hangs" => process.process.signal(Signal::SIGSTOP).expect("it hangs"),
            "is dead" => process.process.kill().expect("it dies"),
            _ => {}
        }
        let mut times = [(); WAYS_BACK].map(|()| back());
        println!("while the process {state}: {}", spread(&mut times));
        assert!(median(&mut times) <= BACK, "{state}: {times:?}");
    }
    assert!(try_shift(&net, &["100%"]).is_ok());
    reaches(&net, OTHER);
    let _next = Generation::start(&net, "next", &["--initial-share", "0%"]);
    reaches(&net, OURS);
    // Without another listener clients would be refused.
    drop(other);
    let said = try_shift(&net, &["50%"]).expect_err("refused");
    assert!(said.contains("listens on port 80, 443, so"), "{said}");
    reaches(&net, OURS);
    let half = try_shift(&net, &["50%", "--no-listener-check"]).expect("as you like");
    assert!(half.starts_with("50 % of the clients come to xdp-ingress (renewed by the running process"), "{half}");
}

#[test]
fn too_many_errors_of_a_host_end_a_shift() {
    let Some((net, _other, _)) = beside_other("shift-abort", false) else { return };
    // A Service without endpoints.
    net.write("broken.yaml", &net.site("broken", &[]));
    let _process = Generation::start(&net, "beside", &["--initial-share", "0%"]);
    thread::scope(|scope| {
        let watched = scope.spawn(|| try_shift(&net, &["100%", "--abort-on", "5xx>10%", "--for", "10m"]));
        let answer = |host| net.ask(&net.topology.client, http(Family::V4), &Ask::get(host, "/")).0;
        until_within(LIMIT, "the shift", || (answer("web.test").pod() == Some(OURS)).then_some(())).expect("begins");
        until_within(LIMIT, "the way back", || (answer("broken.test").pod() == Some(OTHER)).then_some(()))
            .expect("the share is 0 again");
        let said = watched.join().expect("no panic").expect_err("ends with the reason");
        assert!(said.contains("too many errors of broken.test") && said.contains("the share is 0 % again"), "{said}");
    });
    reaches(&net, OTHER);
}

#[test]
fn slow_responses_end_a_shift() {
    let Some((net, _other, _)) = beside_other("shift-slow", false) else { return };
    let _process = Generation::start(&net, "beside", &["--initial-share", "0%"]);
    let said = try_shift(&net, &["100%", "--abort-on", "p99>2x", "--for", "10m"]).expect_err("refused");
    assert!(said.contains("name its metrics with `--other-metrics`"), "{said}");
    let unread = ["100%", "--abort-on", "p99>2x", "--other-metrics", "http://127.0.0.1:10254/metrics", "--for", "10m"];
    let said = try_shift(&net, &unread).expect_err("refused");
    assert!(said.contains("cannot read the metrics at `http://127.0.0.1:10254/metrics`"), "{said}");
    reaches(&net, OTHER);
    let load = Load::start(&net.topology.client, http(Family::V4), Ask::get("web.test", "/"), 2, Connections::New);
    let load = load.expect("load starts");
    // No response takes less than a microsecond.
    let said = try_shift(&net, &["100%", "--abort-on", "5xx>50%,p99>0.001ms", "--for", "10m"]).expect_err("goes back");
    assert!(said.contains("too slow: p99 is") && said.contains("the share is 0 % again"), "{said}");
    reaches(&net, OTHER);
    assert_eq!(load.stop().expect("load ends").failed, 0);
}

#[test]
fn a_closed_terminal_ends_a_watched_shift() {
    let Some((net, _other, _)) = beside_other("shift-hangup", false) else { return };
    let _process = Generation::start(&net, "beside", &["--initial-share", "0%"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    command.args(["migrate", "shift", "100%", "--abort-on", "5xx>10%", "--for", "10m", "--bpffs"]).arg(&net.bpffs);
    command.env_remove("KUBERNETES_SERVICE_HOST");
    let watch = net.lab.spawn(&net.topology.node, "watch", command).expect("it runs");
    let reached = |pod| {
        let (answer, _) = net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
        (answer.pod() == Some(pod)).then_some(())
    };
    until_within(LIMIT, "the shift", || reached(OURS)).expect("begins");
    watch.signal(Signal::SIGHUP).expect("told");
    until_within(LIMIT, "the way back", || reached(OTHER)).expect("the share is 0 again");
}
