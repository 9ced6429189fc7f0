//! Waits for a part of the cluster, with a deadline and visible progress.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use xtask_tools::progress::Progress;

/// Much longer than a check, which starts a program each time.
const INTERVAL: Duration = Duration::from_millis(150);
/// Number of lines of a log that an error repeats.
const TAIL: usize = 12;

/// Calls `ready` until it returns `true`, under a progress line called `label`.
///
/// # Errors
/// Returns the errors of `ready`. Also fails if `ready` has not returned `true` within `limit`.
pub(super) fn until(label: &str, limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut progress = Progress::begin(label);
    loop {
        match ready() {
            Ok(true) => {
                progress.end("done");
                return Ok(());
            }
            Ok(false) if progress.elapsed() < limit => {}
            Ok(false) => {
                progress.end("gave up");
                bail!("{label}: not so within {} s", limit.as_secs());
            }
            Err(error) => {
                progress.end("failed");
                return Err(error);
            }
        }
        progress.tick();
        thread::sleep(INTERVAL);
    }
}

/// Returns the end of a log, for an error.
pub(super) fn log_tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("`{}` ends with\n{}", path.display(), lines[lines.len().saturating_sub(TAIL)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_on_success_deadline_or_error() {
        let mut asked = 0;
        let third = || {
            asked += 1;
            Ok(asked == 3)
        };
        assert!(until("x", Duration::from_secs(60), third).is_ok());
        assert_eq!(asked, 3);
        assert!(until("x", Duration::ZERO, || Ok(false)).unwrap_err().to_string().contains("within 0 s"));
        assert_eq!(until("x", Duration::from_secs(60), || bail!("ended")).unwrap_err().to_string(), "ended");
    }
}
