//! Figures that tests print for people, and for `cargo xtask bench kernel`, which reads them: rows of a table in
//! Markdown.

use std::time::Duration;

/// Prints a row: the best of all samples, and their median.
pub(crate) fn print(name: &str, samples: impl IntoIterator<Item = u128>, unit: &str) {
    let mut samples: Vec<u128> = samples.into_iter().collect();
    samples.sort_unstable();
    let (best, median) = (samples.first().expect("a sample"), samples[samples.len() / 2]);
    println!("| {name} | {best} | {median} | {unit} |");
}

/// Runs each of `ways` in turn for some rounds, so that other load on the machine affects all alike, and prints the
/// time that each took per packet.
pub(crate) fn print_rounds<W>(rounds: usize, ways: &[(&str, W)], mut run: impl FnMut(&W) -> Duration) {
    let mut samples = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (samples, (_, way)) in samples.iter_mut().zip(ways) {
            samples.push(run(way).as_nanos());
        }
    }
    for (samples, (name, _)) in samples.into_iter().zip(ways) {
        print(name, samples, "ns");
    }
}
