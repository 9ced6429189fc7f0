//! Golden translations: each `<case>/in.yaml` beside this file and each file of `deploy/examples` against its expected
//! table and outcomes. `UPDATE_EXPECT=1 cargo test --test translate` rewrites the expectations; read the difference
//! before keeping it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use expect_test::expect_file;

use crate::case::{Translated, directory, translated};

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a readable directory");
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    entries.sort();
    entries
}

#[test]
fn cases_translate_as_expected() {
    let mut count = 0;
    for case in entries(&directory()).into_iter().filter(|case| case.join("in.yaml").is_file()) {
        let text = fs::read_to_string(case.join("in.yaml")).expect("a readable case");
        let Translated { table, outcomes, statuses } = translated("in.yaml", &text);
        expect_file![case.join("table.txt")].assert_eq(&table);
        expect_file![case.join("outcomes.txt")].assert_eq(&outcomes);
        let expected = case.join("statuses.txt");
        // Only cases with Gateways have statuses.
        if !statuses.is_empty() || expected.is_file() {
            expect_file![expected].assert_eq(&statuses);
        }
        count += 1;
    }
    assert!(count >= 60, "only {count} cases found");
}

#[test]
fn examples_translate_as_expected() {
    let expected = directory().join("examples");
    for example in entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/examples")) {
        if example.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = example.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let text = fs::read_to_string(&example).expect("a readable example");
        let Translated { table, outcomes, statuses } = translated(name, &text);
        let parts = [table, outcomes, statuses].into_iter().filter(|part| !part.is_empty());
        let text = parts.collect::<Vec<_>>().join("\n");
        expect_file![expected.join(name.replace(".yaml", ".table.txt"))].assert_eq(&text);
    }
}
