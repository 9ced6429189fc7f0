//! Cost of many Ingresses or HTTPRoutes: the first translation, the first snapshot, and the resulting memory. The cost of one change
//! among them is measured by `benches/pure`, which can repeat it: here each number occurs once per process.
//!
//! `cargo bench --bench scale -- 1000 10000 100000` prints Markdown for these numbers of Ingresses, once without TLS
//! and once with TLS for one in ten, with four certificates, and of HTTPRoutes.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{env, fs, process::Command};

use ingress_control::change::Change;
use pipeline::{Pipeline, Times, objects, one_in_ten, routes};

mod pipeline;

/// Objects of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    OneInTen,
    Routes,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Each row runs in a separate process; otherwise, its memory would include that of earlier rows.
    if let [count, kind] = arguments.as_slice()
        && let (Ok(count), Some(kind)) = (count.parse(), Kind::ALL.into_iter().find(|of| of.as_str() == kind))
    {
        return measure(count, kind);
    }
    let counts = if arguments.is_empty() { ["1000", "10000"].map(str::to_owned).into() } else { arguments };
    println!("| objects | kind | translated | compiled | memory | of which objects |");
    println!("|--:|---|--:|--:|--:|--:|");
    for count in counts {
        for kind in Kind::ALL {
            let mut command = Command::new(env::current_exe().expect("this program"));
            let status = command.args([count.as_str(), kind.as_str()]).status().expect("it starts");
            assert!(status.success(), "{status}");
        }
    }
}

// === impl Kind ===

impl Kind {
    const ALL: [Self; 3] = [Self::Plain, Self::OneInTen, Self::Routes];

    fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "ingresses",
            Self::OneInTen => "ingresses-tls-one-in-ten",
            Self::Routes => "httproutes",
        }
    }

    fn objects(self, count: usize) -> Vec<Change> {
        match self {
            Self::Plain => objects(count, |_| None),
            Self::OneInTen => objects(count, one_in_ten),
            Self::Routes => routes(count),
        }
    }
}

fn measure(count: usize, kind: Kind) {
    let before = resident();
    let changes = kind.objects(count);
    let objects = resident() - before;
    let mut pipeline = Pipeline::new();
    let Times { translated, compiled } = pipeline.step(changes);
    let (translated, compiled) = (translated.as_millis(), compiled.as_millis());
    let [memory, objects] = [resident() - before, objects].map(|bytes| bytes >> 20);
    println!("| {count} | {} | {translated} ms | {compiled} ms | {memory} MiB | {objects} MiB |", kind.as_str());
}

/// Returns the bytes of memory in use.
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}
