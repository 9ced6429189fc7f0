//! Costs that the tests of the kernel programs print: instructions, nanoseconds per packet, and those of nft.

use std::process::Stdio;

use anyhow::{Context as _, bail};

use super::figure::Spread;
use xtask_setup::build;
use xtask_tools::{process, progress};

/// A row as printed by `tests/kernel/figures.rs`.
#[derive(Debug, PartialEq)]
struct Cost {
    name: String,
    spread: Spread,
    unit: String,
}

#[derive(Debug)]
pub(super) struct Costs(Vec<Cost>);

impl Costs {
    /// Runs the tests one after the other, so that they do not disturb each other.
    pub(super) fn take() -> anyhow::Result<Self> {
        let mut cargo = build::test(&["kernel"]);
        cargo
            .args(["--", "--nocapture", "--test-threads=1", "measure::", "drops::", "pool::", "announce::the_cost"])
            .env("REQUIRE_KERNEL", "1")
            .stderr(Stdio::inherit());
        progress::note(&format!("$ {}", process::show(&cargo)));
        Ok(Self(process::capture(&mut cargo)?.lines().filter_map(parse).collect()))
    }

    pub(super) fn get(&self, name: &str) -> anyhow::Result<Spread> {
        let found = self.0.iter().find(|cost| cost.name == name).map(|cost| cost.spread);
        found.with_context(|| format!("the tests of the kernel programs print no `{name}`"))
    }

    /// Returns the largest difference of a packet's cost between two states of the pool of addresses.
    pub(super) fn more(&self, with: &str, without: &str) -> anyhow::Result<Spread> {
        let frames = self.0.iter().filter_map(|cost| cost.name.strip_prefix("pool, ")?.strip_suffix(without));
        let most = frames.map(|frame| {
            let [with, without] = [with, without].map(|state| self.get(&format!("pool, {frame}{state}")));
            let (with, without) = (with?, without?);
            Ok(Spread { best: with.best - without.best, median: with.median - without.median })
        });
        let most = most.reduce(|one, other| {
            let (one, other): (Spread, Spread) = (one?, other?);
            Ok(Spread { best: one.best.max(other.best), median: one.median.max(other.median) })
        });
        most.unwrap_or_else(|| bail!("the tests of the kernel programs print no cost `{without}`"))
    }

    /// Returns all costs as a table.
    pub(super) fn table(&self) -> String {
        let rows = self.0.iter().map(|Cost { name, spread: Spread { best, median }, unit }| {
            format!("| {name} | {best} | {median} | {unit} |\n")
        });
        format!("| figure | best | median | unit |\n|---|---:|---:|---|\n{}", rows.collect::<String>())
    }
}

/// Parses a row; the first row follows the name of the test on the same line.
fn parse(line: &str) -> Option<Cost> {
    let (_, row) = line.split_once("| ")?;
    let cells: Vec<&str> = row.strip_suffix(" |")?.split(" | ").collect();
    let [name, best, median, unit] = cells[..] else { return None };
    let spread = Spread { best: best.parse().ok()?, median: median.parse().ok()? };
    Some(Cost { name: name.into(), spread, unit: unit.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_written() {
        let spread = Spread { best: 31.0, median: 33.0 };
        let cost = Cost { name: "drop, XDP".into(), spread, unit: "ns".into() };
        for line in ["| drop, XDP | 31 | 33 | ns |", "test drops::a_law ... | drop, XDP | 31 | 33 | ns |"] {
            assert_eq!(parse(line).as_ref(), Some(&cost));
        }
        for line in ["ok", "test result: ok. 2 passed", "| a | b | c | d |", "| a | 1 | 2 |"] {
            assert_eq!(parse(line), None);
        }
        let pool = |name: &str, best, median| Cost {
            name: format!("pool, {name}"),
            spread: Spread { best, median },
            unit: "ns".into(),
        };
        let costs = [("a, on", 30.0, 35.0), ("a, off", 29.0, 31.0), ("b, off", 10.0, 12.0), ("b, on", 12.0, 12.0)];
        let costs = Costs(costs.map(|(name, best, median)| pool(name, best, median)).into());
        assert_eq!(costs.more(", on", ", off").expect("four costs"), Spread { best: 2.0, median: 4.0 });
        assert!(costs.more(", on", ", none").is_err() && costs.more(", none", ", off").is_err());
        let table = Costs(vec![cost]).table();
        assert!(table.ends_with("\n| drop, XDP | 31 | 33 | ns |\n"), "{table}");
    }
}
