//! Tests of panics, each in a process of its own.

use std::process;

/// Same as [`install`](crate::install), for a test that [`in_own_process`] runs: the output appears if it fails.
pub fn install_for_test() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    crate::install();
}

/// Environment variable with the role of a test in a separate process.
const ROLE: &str = "XDP_INGRESS_TEST_ROLE";

/// Returns the role of this process in a test, if [`in_own_process`] started it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs `test` of this binary again in a separate process with a `role`, because a panic may end the whole process.
#[track_caller]
pub fn in_own_process(test: &str, role: &str) -> process::ExitStatus {
    let own = std::env::current_exe().expect("the program's path");
    let output = process::Command::new(own).args(["--exact", test]).env(ROLE, role).output().expect("started");
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // Without a test of that name it would have succeeded, too.
    assert!(said.contains("running 1 test\n"), "no test `{test}`: {said}");
    // Shown if the caller fails.
    eprintln!("{said}{complained}");
    output.status
}
