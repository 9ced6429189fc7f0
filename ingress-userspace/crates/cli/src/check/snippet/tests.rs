//! The corpus: bodies of snippets by kind of application, each with its result.

use std::fmt::Write as _;

use expect_test::expect_file;

use super::*;

/// Bodies, each behind a line `=== ANNOTATION: application: purpose`.
const CORPUS: &str = include_str!("corpus.txt");

pub(super) fn facts() -> Facts {
    let service = Some(("api".into(), "80".into()));
    Facts {
        namespace: "shop".into(),
        name: "web".into(),
        service,
        hosts: vec!["shop.example.com".into()],
        paths: vec![HostPath { path: "/".into(), is_exact: false, is_own: true }],
        ..Facts::default()
    }
}

fn bodies() -> impl Iterator<Item = (Place, &'static str, &'static str)> {
    CORPUS.split("=== ").skip(1).map(|entry| {
        let (title, body) = entry.split_once('\n').expect("a title and a body");
        let (place, title) = title.split_once(": ").expect("an annotation before the title");
        let place = Place::ALL.into_iter().find(|known| known.annotation().starts_with(place)).expect("an annotation");
        (place, title, body)
    })
}

pub(super) fn shown(conversion: &Conversion) -> String {
    let Conversion { annotations, settings, auth_fields, dropped, differences, rest } = conversion;
    let mut text = String::new();
    let mut line = |mark: &str, name: &str, value: &str| {
        let _written = writeln!(text, "  {mark} {name}: {}", value.replace('\n', "\n      "));
    };
    annotations.iter().for_each(|(name, value)| line("+", name, value));
    settings.iter().for_each(|(name, value)| line("+ setting", name, value));
    auth_fields.iter().for_each(|(name, value)| line("+ auth field", name, value));
    dropped.iter().for_each(|remark| line("-", &remark.subject, &remark.text));
    differences.iter().for_each(|remark| line("~", &remark.subject, &remark.text));
    rest.iter().for_each(|remark| line("!", &format!("{} {}", remark.line, remark.subject), &remark.text));
    text
}

#[test]
fn bodies_of_the_corpus_convert_as_expected() {
    let (mut text, mut whole, mut count) = (String::new(), 0, 0);
    for (place, title, body) in bodies() {
        let conversion = convert([(place, body)], &facts());
        count += 1;
        whole += usize::from(conversion.is_whole());
        let mark = if conversion.is_whole() { "" } else { "REFUSED " };
        let _written = writeln!(text, "{mark}{}: {title}\n{}", place.annotation(), shown(&conversion));
    }
    let _written = writeln!(text, "{whole} of {count} bodies convert");
    expect_file!["corpus.expected.txt"].assert_eq(&text);
    assert!(count >= 150, "{count}");
}

#[test]
fn torn_bodies_are_findings() {
    for (_, title, body) in bodies() {
        for at in (0..body.len()).step_by(7).filter(|at| body.is_char_boundary(*at)) {
            let conversion = convert([(Place::Location, &body[..at]), (Place::Server, &body[at..])], &facts());
            // Each end is a result; torn text is named by its annotation.
            assert!(conversion.rest.iter().all(|remark| remark.line > 0), "{title} at {at}");
        }
    }
}

#[test]
fn a_mebibyte_is_converted_in_linear_time() {
    let body = "more_set_headers \"X-A: 1\";\n";
    let whole = body.repeat(parse::MAX_BYTES / body.len());
    let conversion = convert([(Place::Location, whole.as_str())], &facts());
    assert_eq!(conversion.annotations.get("response-headers").map(String::as_str), Some("X-A: 1"));
    let conversion = convert([(Place::Location, format!("{whole}{whole}").as_str())], &facts());
    assert_eq!(conversion.rest.len(), 1);
    assert!(conversion.rest[0].text.contains("larger than 1 MiB"));
    let many = "location /a { deny all; }\n".repeat(40_000);
    assert!(convert([(Place::Server, many.as_str())], &facts()).is_whole());
}
