//! How much memory a process takes. What it shares with others counts in proportion (`Pss`, proc_pid_smaps_rollup(5)),
//! so that a sum over processes counts nothing twice.

use std::fs;

use anyhow::Context as _;

/// Bytes that the process takes now.
///
/// # Errors
/// If there is no such process, or it is another user's.
pub fn of(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: has the process ended?"))?;
    parse(&text).with_context(|| format!("no Pss in {path}"))
}

fn parse(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_its_share() {
        let text =
            "00400000-7ff00000 ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss:    8000 kB\nPss_Anon: 7 kB\n";
        assert_eq!(parse(text), Some(8000 * 1024));
        assert_eq!(parse("Rss: 9000 kB\n"), None);
        assert!(of(std::process::id()).expect("this process") > 0);
    }
}
