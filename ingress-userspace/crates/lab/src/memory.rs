//! Memory use of a process. Memory shared with other processes counts in proportion (`Pss_Anon` and `Pss_Shmem`,
//! proc_pid_smaps_rollup(5)), so that a sum over processes counts nothing twice. Pages of files are excluded: their
//! share changes with other processes that use the same libraries.

use std::fs;

use anyhow::Context as _;

/// Returns the bytes that the process uses now.
///
/// # Errors
/// Fails if there is no such process, or it belongs to another user.
pub fn of(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: has the process ended?"))?;
    parse(&text).with_context(|| format!("no Pss_Anon and Pss_Shmem in {path}"))
}

/// Returns the bytes of each of `count` objects, from the memory of a process before and with them.
///
/// # Errors
/// Fails if the process uses less memory with them.
pub fn each(before: u64, with: u64, count: usize) -> anyhow::Result<u64> {
    let all = with.checked_sub(before).with_context(|| {
        format!("{before} bytes before, and {with} with {count} more, say nothing of these: measure more of them")
    })?;
    Ok(all / count as u64)
}

fn parse(rollup: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let value = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some((kib("Pss_Anon:")? + kib("Pss_Shmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_divided_and_shrinkage_is_an_error() {
        assert_eq!(each(1000, 3000, 2).expect("more"), 1000);
        assert!(each(3000, 1000, 2).is_err());
    }

    #[test]
    fn memory_is_the_proportional_share_without_files() {
        for (pss, of_files) in [(8000, 1000), (7250, 250)] {
            let text = format!(
                "00400000-7ff00000 ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss:    {pss} kB\n\
                 Pss_Anon:   6900 kB\nPss_File:   {of_files} kB\nPss_Shmem:   100 kB\n"
            );
            assert_eq!(parse(&text), Some(7000 * 1024), "{text}");
        }
        for text in ["Rss: 9000 kB\nPss: 8000 kB\n", "Pss_Anon: 6900 kB\n", "Pss_Anon: 6900 kB\nPss_Shmem: much kB\n"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(of(std::process::id()).expect("this process") > 0);
    }
}
