//! Answers of name servers that no resolver expects: they write no log lines of their own.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ingress_lab::{Lab, capability, until_within};

use crate::net::{CLASS, ingress};

/// Where `/etc/resolv.conf` of the product leads.
const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 53);
/// Datagrams for each question.
const BURST: usize = 100;
/// Answers that are given before the log is read.
const ANSWERS: usize = 5_000;
/// A failed name is looked up again after pauses of 5 and 10 s.
const LIMIT: Duration = Duration::from_secs(60);
/// Kinds of answers; each is given about a name of its own.
const KINDS: [&str; 8] =
    ["empty", "garbage", "oversized", "unsolicited", "foreign", "misplaced", "broken", "truncated"];

/// Returns the labels of the name in question, and the question of a message.
fn question(message: &[u8]) -> Option<(String, &[u8])> {
    let (mut labels, mut rest) = (Vec::new(), message.get(12..)?);
    while let [length, tail @ ..] = rest
        && *length > 0
    {
        let (label, tail) = tail.split_at_checked(usize::from(*length))?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        rest = tail;
    }
    // The root, the type and the class.
    let end = message.len() - rest.len() + 5;
    Some((labels.join("."), message.get(12..end)?))
}

/// Returns a response with one answer, of which `data` is everything behind the class.
fn response(id: &[u8], flags: [u8; 2], question: &[u8], data: &[u8]) -> Vec<u8> {
    // The name is that of the question.
    let answer = [&[0xc0, 12, 0, 1, 0, 1], data].concat();
    [id, &flags, &[0, 1, 0, 1, 0, 0, 0, 0], question, &answer].concat()
}

/// Returns the datagram `number` of those that answer this question.
fn odd(kind: &str, number: usize, message: &[u8], question: &[u8]) -> Vec<u8> {
    const ANSWERED: [u8; 2] = [0x81, 0x80];
    /// An hour, four bytes, an address.
    const ADDRESS: [u8; 10] = [0, 0, 14, 16, 0, 4, 192, 0, 2, 1];
    let id = &message[..2];
    let other = |id: &[u8]| id.iter().map(|byte| !byte ^ u8::try_from(number).unwrap_or_default()).collect::<Vec<_>>();
    match kind {
        "empty" => vec![0; number % 12],
        "garbage" => [id, &[0xff; 64]].concat(),
        "oversized" => [response(id, ANSWERED, question, &ADDRESS), vec![b'x'; 60_000]].concat(),
        "unsolicited" => response(&other(id), ANSWERED, question, &ADDRESS),
        "misplaced" => response(id, ANSWERED, b"\x05other\x04test\0\0\x01\0\x01", &ADDRESS),
        // Its data would end behind the message.
        "broken" => response(id, ANSWERED, question, &[0, 0, 14, 16, 0xff, 0xff, 192, 0]),
        "truncated" => response(id, [0x83, 0x80], question, &ADDRESS),
        _ => response(id, ANSWERED, question, &ADDRESS),
    }
}

/// Names that the server was asked about, and the number of its answers.
#[derive(Clone, Default)]
struct Served {
    names: Arc<Mutex<BTreeSet<String>>>,
    answers: Arc<AtomicUsize>,
}

/// Answers each question by a burst of odd datagrams, and each connection by odd messages. The threads live as long as
/// the test's process.
fn serve(udp: UdpSocket, stranger: UdpSocket, tcp: TcpListener, served: &Served) {
    let (Served { names, answers }, by_tcp) = (served.clone(), Arc::clone(&served.answers));
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
            let message = &buffer[..length];
            let Some((name, question)) = question(message) else { continue };
            let kind = name.split('.').next().unwrap_or_default();
            let from = if kind == "foreign" { &stranger } else { &udp };
            for number in 0..BURST {
                // The port may be closed already.
                if from.send_to(&odd(kind, number, message, question), peer).is_ok() {
                    answers.fetch_add(1, Relaxed);
                }
            }
            names.lock().expect("unpoisoned").insert(name);
        }
    });
    thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let answers = Arc::clone(&by_tcp);
            thread::spawn(move || {
                while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                    for number in 0..BURST {
                        // Lengths of 0 to 99 before text that is no message.
                        let length = u16::try_from(number).unwrap_or_default().to_be_bytes();
                        if stream.write_all(&[&length[..], &vec![b'x'; number]].concat()).is_ok() {
                            answers.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
        }
    });
}

/// Returns the command of the product with `resolv` in place of its `/etc/resolv.conf`.
fn product(manifests: &Path, resolv: &Path) -> Command {
    let mut command = Command::new("unshare");
    // The process keeps its number, so that the lab can end it.
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\""]).arg(resolv);
    command.arg(PathBuf::from(env!("CARGO_BIN_EXE_xdp-ingress"))).args(["run", "--manifests"]).arg(manifests);
    command.args(["--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--allow-svc-external-name"]);
    command.env("NO_COLOR", "1");
    command
}

#[test]
fn answers_of_name_servers_write_no_log_lines() {
    if !capability::required_or_skip("names").expect("the machine has what is required") {
        return;
    }
    let lab = Lab::open("xd-names").expect("lab opens");
    let node = lab.namespace("node").expect("a namespace");
    let served = Served::default();
    let sockets = node.run(|| {
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok((UdpSocket::bind(SERVER)?, stranger, TcpListener::bind(SERVER)?))
    });
    let (udp, stranger, tcp) = sockets.expect("port 53 of the namespace");
    serve(udp, stranger, tcp, &served);

    let (manifests, resolv) = (lab.home().join("manifests"), lab.home().join("resolv.conf"));
    fs::create_dir(&manifests).expect("a directory");
    let object = |kind: &str| {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: NAME, namespace: default}\n\
                       spec: {type: ExternalName, externalName: NAME.odd.test, ports: [{port: 80}]}\n";
        format!("{}---\n{}---\n", service.replace("NAME", kind), ingress(kind, &format!("{kind}.test"), kind))
    };
    fs::write(manifests.join("names.yaml"), format!("{CLASS}---\n{}", KINDS.map(object).concat())).expect("written");
    fs::write(&resolv, format!("nameserver {}\n", SERVER.0)).expect("written");
    let process = lab.spawn(&node, "xdp-ingress", product(&manifests, &resolv)).expect("it starts");

    // A name that fails is news twice: when it cannot be resolved, and when its Ingress has no endpoints. A name that
    // is resolved may be news once.
    let enough = || (served.answers.load(Relaxed) >= ANSWERS && reported(&process.log())).then_some(());
    until_within(LIMIT, "the names are looked up", enough)
        .unwrap_or_else(|error| panic!("{error:#}: {} answers\n{}", served.answers.load(Relaxed), process.log()));
    let names = served.names.lock().expect("unpoisoned").clone();
    assert_eq!(names, KINDS.map(|kind| format!("{kind}.odd.test")).into());
    let log = process.log();
    let lines = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count();
    println!("{} answers, {lines} warnings", served.answers.load(Relaxed));
    assert!(lines <= 3 * KINDS.len(), "{lines} lines for {} answers:\n{log}", served.answers.load(Relaxed));
}

/// Returns whether a name has failed twice.
fn reported(log: &str) -> bool {
    log.lines().any(|line| line.contains("cannot resolve"))
}
