//! Instructions in user mode, by function: valgrind runs the peer, and prints its counts on request.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::counts::{Counter, Counts};
use xtask_tools::process;

/// Returns the words before the command line of a peer. Threads take turns fairly, because busy workers would starve
/// the others otherwise.
pub(super) fn words(folder: &Path) -> Vec<String> {
    vec![
        "valgrind".into(),
        "--quiet".into(),
        "--tool=callgrind".into(),
        "--fair-sched=yes".into(),
        gate(folder),
        format!("--callgrind-out-file={}/callgrind.%p", folder.display()),
    ]
}

/// Returns the option for the pipes between valgrind and vgdb: the prefix of their names.
fn gate(folder: &Path) -> String {
    format!("--vgdb-prefix={}/vgdb", folder.display())
}

/// Counts a process that valgrind runs.
#[derive(Debug)]
pub(super) struct Callgrind {
    pid: u32,
    folder: PathBuf,
    /// Number of dumps requested so far.
    dumps: u32,
}

impl Callgrind {
    pub(super) fn of(pid: u32, folder: &Path) -> Self {
        Self { pid, folder: folder.to_owned(), dumps: 0 }
    }

    /// Returns the counts since the last dump, in valgrind's format.
    fn dump(&mut self) -> anyhow::Result<String> {
        let mut told = Command::new("vgdb");
        told.arg(gate(&self.folder)).arg(format!("--pid={}", self.pid)).arg("dump");
        process::capture(&mut told)?;
        self.dumps += 1;
        let path = self.folder.join(format!("callgrind.{}.{}", self.pid, self.dumps));
        let text = fs::read_to_string(&path).with_context(|| format!("callgrind left no `{}`", path.display()))?;
        fs::remove_file(&path).with_context(|| format!("cannot remove `{}`", path.display()))?;
        Ok(text)
    }
}

impl Counter for Callgrind {
    fn begin(&mut self) -> anyhow::Result<()> {
        self.dump().map(drop)
    }

    fn end(&mut self) -> anyhow::Result<Counts> {
        counts(&self.dump()?)
    }
}

/// Returns the exclusive cost of each function ("Callgrind Format Specification" of valgrind's manual). Names appear
/// once and later as numbers. The line after `calls=` has the cost of the callee, which is counted there.
fn counts(text: &str) -> anyhow::Result<Counts> {
    let (mut counts, mut names, mut function, mut of_callee) = (Counts::default(), HashMap::new(), "", false);
    let mut total = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("fn=") {
            function = named(&mut names, value)?;
        } else if let Some(value) = line.strip_prefix("cfn=") {
            named(&mut names, value)?;
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if let Some(value) = line.strip_prefix("totals: ") {
            total = Some(value.parse::<u64>().with_context(|| format!("a total of `{value}`"))?);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            && !std::mem::take(&mut of_callee)
        {
            // A cost of zero is left out.
            let count = line.split(' ').nth(1).map_or(Ok(0), str::parse::<u64>);
            counts.add(function, count.with_context(|| format!("costs of `{line}`"))?);
        }
    }
    let total = total.context("callgrind has written no total")?;
    let sum = counts.total();
    ensure!(sum == total, "functions took {sum} instructions and all together {total}: has the format changed?");
    Ok(counts)
}

/// Returns the name for `(7) name`, which appears first, or for `(7)` later.
fn named<'t>(names: &mut HashMap<&'t str, &'t str>, value: &'t str) -> anyhow::Result<&'t str> {
    if let Some((number, name)) = value.split_once(") ") {
        names.insert(number, name);
        return Ok(name);
    }
    let number = value.trim_end_matches(')');
    names.get(number).copied().with_context(|| format!("callgrind speaks of function `{value}` without its name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of callgrind 3.19, shortened.
    const DUMP: &str = "# callgrind format\nversion: 1\npid: 17578\npart: 1\n\ndesc: Trigger: dump\n\npositions: line\n\
        events: Ir\nsummary: 1207\n\nob=(4) libm.so.6\nfl=(150) ???\nfn=(562) 0x102f0\n0 12\n\nfl=(125) s_fma.c\n\
        fn=(450) fma\n49 5\n+1 2\nfi=(121) s_sin.c\n-6 1\nfe=(119)\ncfn=(500) poll<A, B>\ncalls=1 -7 \n* 1166\n+3\n\n\
        fn=(500)\n10 1166\n\nfn=(562)\n* 21\n\ntotals: 1207\n";

    #[test]
    fn each_function_has_its_own_cost() {
        let mut expect = Counts::default();
        for (name, count) in [("0x102f0", 33), ("fma", 8), ("poll<A, B>", 1166)] {
            expect.add(name, count);
        }
        assert_eq!(counts(DUMP).expect("a dump"), expect);
    }

    #[test]
    fn an_inconsistent_dump_is_refused() {
        for (text, expect) in [
            (DUMP.replace("totals: 1207", "totals: 1208"), "has the format changed"),
            (DUMP.replace("totals: 1207\n", ""), "no total"),
            (DUMP.replace("cfn=(500) poll<A, B>", "cfn=(500)"), "without its name"),
        ] {
            let error = counts(&text).expect_err("no counts");
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        }
    }
}
