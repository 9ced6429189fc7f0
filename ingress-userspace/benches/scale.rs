//! Cost of many Ingresses: the first translation, the first snapshot, and the resulting memory. The cost of one change
//! among them is measured by `benches/pure`, which can repeat it: here each number occurs once per process.
//!
//! `cargo bench --bench scale -- 1000 10000 100000` prints Markdown for these numbers of Ingresses, once without TLS
//! and once with TLS for one in ten, with four certificates.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{env, fs, process::Command};

use pipeline::{Pipeline, Times, objects, one_in_ten};

mod pipeline;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    None,
    OneInTen,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Each row runs in a separate process; otherwise, its memory would include that of earlier rows.
    if let [count, tls] = arguments.as_slice()
        && let (Ok(count), Some(tls)) = (count.parse(), Tls::ALL.into_iter().find(|of| of.as_str() == tls))
    {
        return measure(count, tls);
    }
    let counts = if arguments.is_empty() { ["1000", "10000"].map(str::to_owned).into() } else { arguments };
    println!("| Ingresses | TLS | translated | compiled | memory | of which objects |");
    println!("|--:|---|--:|--:|--:|--:|");
    for count in counts {
        for tls in Tls::ALL {
            let mut command = Command::new(env::current_exe().expect("this program"));
            let status = command.args([count.as_str(), tls.as_str()]).status().expect("it starts");
            assert!(status.success(), "{status}");
        }
    }
}

// === impl Tls ===

impl Tls {
    const ALL: [Self; 2] = [Self::None, Self::OneInTen];

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneInTen => "one-in-ten",
        }
    }

    /// Returns the certificate of the Ingress with this number.
    fn certificate(self, number: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::OneInTen => one_in_ten(number),
        }
    }
}

fn measure(count: usize, tls: Tls) {
    let before = resident();
    let changes = objects(count, |number| tls.certificate(number));
    let objects = resident() - before;
    let mut pipeline = Pipeline::new();
    let Times { translated, compiled } = pipeline.step(changes);
    let (translated, compiled) = (translated.as_millis(), compiled.as_millis());
    let [memory, objects] = [resident() - before, objects].map(|bytes| bytes >> 20);
    println!("| {count} | {} | {translated} ms | {compiled} ms | {memory} MiB | {objects} MiB |", tls.as_str());
}

/// Returns the bytes of memory in use.
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}
