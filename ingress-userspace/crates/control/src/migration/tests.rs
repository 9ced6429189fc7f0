//! Laws of the verdicts, and the pages that are made from them.

use std::collections::BTreeMap;

use super::*;

const SURFACES: [Surface; 4] = [Surface::Annotations, Surface::Settings, Surface::Flags, Surface::Values];

#[test]
fn every_name_of_ingress_nginx_has_a_verdict() {
    for (surface, count) in SURFACES.into_iter().zip([138, 192, 73, 341]) {
        let names: Vec<_> = surface.names().collect();
        assert_eq!(names.len(), count, "{surface:?}");
        assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]), "{surface:?}");
        let without: Vec<_> = names.into_iter().filter(|name| surface.verdict(name).is_none()).collect();
        assert!(without.is_empty(), "{surface:?}: {without:?}");
    }
}

#[test]
fn unknown_names_have_no_verdict() {
    for surface in SURFACES {
        for name in ["", "surprise", "proxy-body-sizes", "controller", "controller.surprise"] {
            let expect = (surface == Surface::Values && name == "controller").then_some(Verdict::FULL);
            assert_eq!(surface.verdict(name), expect, "{surface:?} {name}");
        }
    }
}

#[test]
fn verdicts_are_clauses_without_a_full_stop() {
    for surface in SURFACES {
        for name in surface.names() {
            let Verdict { kind, text, instead } = surface.verdict(name).expect(name);
            assert_eq!(kind == Kind::Full, text.is_empty(), "{surface:?} {name}: {text}");
            assert!(kind != Kind::Full || instead.is_empty(), "{surface:?} {name}: {instead}");
            for clause in [text, instead] {
                assert!(!clause.ends_with('.') && clause.trim() == clause, "{surface:?} {name}: {clause}");
            }
        }
    }
}

#[test]
fn foreign_flags_are_sorted_and_known_to_ingress_nginx() {
    assert!(foreign_flags().is_sorted_by_key(|flag| flag.name));
    for Flag { name, .. } in foreign_flags() {
        assert!(Surface::Flags.names().any(|known| known == *name), "{name}");
    }
}

/// The goals of the project, so that a change cannot lose honoured names without notice.
#[test]
fn few_annotations_are_refused() {
    let counts = counts(Surface::Annotations);
    let of = |kind| counts.get(&kind).copied().unwrap_or_default();
    assert!(of(Kind::Full) + of(Kind::Differs) >= 95, "{counts:?}");
    assert!(of(Kind::Refused) <= 18, "{counts:?}");
}

fn counts(surface: Surface) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    for verdict in surface.names().filter_map(|name| surface.verdict(name)) {
        *counts.entry(verdict.kind).or_default() += 1;
    }
    counts
}

/// Returns the page of `surface`: the counts, and a row for each name.
fn page(surface: Surface) -> String {
    let (heading, about, noun) = match surface {
        Surface::Annotations => (
            "Annotations of ingress-nginx",
            "This page lists each annotation of ingress-nginx v1.15.1, with its effect here. They have the prefix\n\
             `nginx.ingress.kubernetes.io/`. The [reference of annotations](../annotations.md) has values and defaults.",
            "annotation",
        ),
        Surface::Settings => (
            "ConfigMap of ingress-nginx",
            "This page lists each key of the ConfigMap of ingress-nginx v1.15.1, with its effect here. The\n\
             [reference of settings](../settings.md) has values and defaults.",
            "key",
        ),
        Surface::Flags => (
            "Flags of ingress-nginx",
            "This page lists each flag of ingress-nginx v1.15.1, with its effect here. `xdp-ingress run --help` lists the flags\n\
             of this controller. `run` also accepts the others of this page, and reports each in the log without its value. A flag\n\
             with an empty value is as if not set. Switches take each boolean of Go, such as `=true` or `=f`.",
            "flag",
        ),
        Surface::Values => (
            "Chart values of ingress-nginx",
            "This page lists the values of the chart of ingress-nginx (4.12 and 4.15), with their effect in the chart of\n\
             xdp-ingress. The [reference of values](../../deploy/chart/README.md) has meanings and defaults.",
            "value",
        ),
    };
    let mut page = format!("# {heading}\n\n{about}\n\n| verdict | {noun}s |\n|---|--:|\n");
    for (kind, count) in counts(surface) {
        page += &format!("| {} | {count} |\n", kind.word());
    }
    page += &format!(
        "\n[The overview](README.md) explains the verdicts.\n\n| {noun} | verdict | difference or reason | instead |\n|---|---|---|---|\n"
    );
    for name in surface.names() {
        let Some(Verdict { kind, text, instead }) = surface.verdict(name) else { continue };
        let dashes = if surface != Surface::Flags {
            ""
        } else if name.len() == 1 {
            "-"
        } else {
            "--"
        };
        page += &format!("| `{dashes}{name}` | {} | {text} | {instead} |\n", kind.word());
    }
    page
}

/// `UPDATE_EXPECT=1` rewrites the pages.
#[test]
fn the_pages_list_the_verdicts() {
    expect_test::expect_file!["../../../../../docs/migrate/annotations.md"].assert_eq(&page(Surface::Annotations));
    expect_test::expect_file!["../../../../../docs/migrate/configmap.md"].assert_eq(&page(Surface::Settings));
    expect_test::expect_file!["../../../../../docs/migrate/flags.md"].assert_eq(&page(Surface::Flags));
    expect_test::expect_file!["../../../../../docs/migrate/values.md"].assert_eq(&page(Surface::Values));
}
