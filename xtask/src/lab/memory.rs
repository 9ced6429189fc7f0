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

/// Bytes of each of `count`, by what a process took before them and takes with them.
///
/// # Errors
/// If it takes less with them.
pub fn each(before: u64, with: u64, count: usize) -> anyhow::Result<u64> {
    let all = with.checked_sub(before).with_context(|| {
        format!("{before} bytes before, and {with} with {count} more, say nothing of these: measure more of them")
    })?;
    Ok(all / count as u64)
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
    fn what_is_more_is_shared_and_what_is_less_is_an_error() {
        assert_eq!(each(1000, 3000, 2).expect("more"), 1000);
        assert!(each(3000, 1000, 2).is_err());
    }

    #[test]
    fn a_process_takes_its_share() {
        let text =
            "00400000-7ff00000 ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss:    8000 kB\nPss_Anon: 7 kB\n";
        assert_eq!(parse(text), Some(8000 * 1024));
        assert_eq!(parse("Rss: 9000 kB\n"), None);
        assert!(of(std::process::id()).expect("this process") > 0);
    }
}
