//! Tests of the reader of manifests: texts, and the objects read from them.

use super::*;

fn check(name: &str, text: &str, objects: &[&str], remarks: &[&str]) {
    let path: Arc<Path> = Path::new(name).into();
    let parsed = parse(&path, text);
    let names: Vec<_> = parsed.objects.iter().map(|o| format!("{} {}", o.kind().as_str(), o.id().name)).collect();
    assert_eq!(names, objects, "{text}");
    assert_eq!(parsed.remarks.len(), remarks.len(), "{:?}", parsed.remarks);
    for (remark, expect) in parsed.remarks.iter().zip(remarks) {
        assert!(remark.to_string().contains(expect), "{remark} does not contain {expect}");
    }
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}]}\n";

#[test]
fn documents_are_read_one_by_one() {
    check("a.yaml", &format!("# only a comment\n---\n{SERVICE}---\n---\n{SERVICE}"), &["Service default/a"; 2], &[]);
    check("a.yaml", &format!("{SERVICE}--- # next\n{SERVICE}...\n"), &["Service default/a"; 2], &[]);
    check("a.yaml", &SERVICE.replace('\n', "\r\n"), &["Service default/a"], &[]);
    check("a.yaml", "", &[], &[]);
}

#[test]
fn a_broken_document_does_not_affect_the_others() {
    let broken = format!("{SERVICE}---\nkind: [\n---\n{SERVICE}");
    check("a.yaml", &broken, &["Service default/a"; 2], &["warning InvalidObject File (a.yaml): document 2, line "]);
    let mistyped = "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec:\n  ports:\n  - port: x\n";
    check(
        "a.yaml",
        &format!("{SERVICE}---\n{mistyped}"),
        &["Service default/a"],
        &["warning InvalidObject Service default/b (a.yaml): document 2, line 11: "],
    );
}

#[test]
fn objects_without_kind_or_name_are_reported() {
    check("a.yaml", "a: b", &[], &["`apiVersion` and `kind` are needed"]);
    check("a.yaml", "just text", &[], &["document 1, line 1"]);
    check("a.yaml", "apiVersion: v1\nkind: Service\n", &[], &["`metadata.name` is needed"]);
}

#[test]
fn unknown_kinds_are_noted_once_per_file() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n";
    let old = "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: p}\n";
    check(
        "a.yaml",
        &format!("{pod}---\n{pod}---\n{old}"),
        &[],
        &["note UnknownKind Ingress (a.yaml): objects of `extensions/v1beta1`", "note UnknownKind Pod"],
    );
}

#[test]
fn lists_and_json_hold_the_same_objects() {
    let item = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "n"}}"#;
    check("a.json", item, &["Service n/a"], &[]);
    let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}, {{"kind": "x"}}, {item}]}}"#);
    check("a.json", &list, &["Service n/a"; 2], &["`apiVersion` and `kind` are needed"]);
    check("a.yaml", &list, &["Service n/a"; 2], &["`apiVersion` and `kind` are needed"]);
    check("a.json", "{\n\"a\": }", &[], &["document 1, line 2: "]);
}

#[test]
fn an_alias_bomb_is_refused_quickly() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(", "));
    }
    let bomb = format!("apiVersion: v1\nkind: List\nitems:\n- {}", bomb.replace('\n', "\n  "));
    let started = std::time::Instant::now();
    let path: Arc<Path> = Path::new("a.yaml").into();
    let parsed = parse(&path, &bomb);
    assert!(parsed.objects.is_empty() && !parsed.remarks.is_empty(), "{parsed:?}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn secrets_keep_only_certificates_and_no_text_quotes_them() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {tls.crt: a, password: hunter2}\n";
    let path: Arc<Path> = Path::new("a.yaml").into();
    assert!(!format!("{:?}", parse(&path, secret)).contains("hunter2"));
    let broken = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {tls.key: hunter2!}\n";
    assert!(!format!("{:?}", parse(&path, broken)).contains("hunter2"));
}

#[test]
fn a_secret_that_cannot_be_read_is_never_quoted() {
    /// A distinct value that shares no part with any fixed text.
    const VALUE: &str = "LS0tQkVHSU4hunter2";
    let secret = |rest: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{rest}\n");
    let json = |rest: &str| format!(r#"{{"apiVersion": "v1", "kind": "Secret", "metadata": {{"name": "s"}}, {rest}}}"#);
    let list = |item: &str| format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}]}}"#);
    let malformed = "InvalidObject Secret default/s (a.";
    let unknown = "InvalidObject File (a.";
    let in_json = [
        format!(r#""data": "{VALUE}""#),
        format!(r#""data": ["{VALUE}"]"#),
        format!(r#""data": {{"tls.key": "{VALUE}!"}}"#),
        format!(r#""stringData": {{"tls.key": {{"{VALUE}": 5}}}}"#),
        r#""data": {"tls.key": 12345}"#.to_owned(),
    ];
    let mut cases = Vec::new();
    for data in &in_json {
        let item = json(data);
        cases.push((secret(data), malformed));
        cases.push((list(&item), malformed));
        cases.push((item, malformed));
    }
    cases.extend([
        (secret(&format!("data:\n  tls.key: {VALUE}\n  tls.key: {VALUE}")), unknown),
        (secret(&format!("stringData:\n  {VALUE}: a\n  {VALUE}: b")), unknown),
        (secret(&format!("data: *{VALUE}")), unknown),
        // The kind cannot be known, so it may be a Secret.
        (secret(&format!("metadata: {VALUE}")), unknown),
        (format!("\"{VALUE}\""), unknown),
        (VALUE.to_owned(), unknown),
        (format!("[{VALUE}]"), unknown),
        (format!("kind: Secret\nmetadata: {VALUE}"), unknown),
        (format!("{{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": [\"{VALUE}\"]}}"), unknown),
        (format!("[\"v1\", \"Secret\", {{\"name\": \"{VALUE}\"}}]"), unknown),
        (format!("kind: Secret\nmetadata: {{name: [{VALUE}]}}"), unknown),
        (format!("kind: {{{VALUE}: {VALUE}}}"), unknown),
        (format!("kind: Secret\ndata: {{tls.key: {VALUE}"), unknown),
        (format!("kind: Secret\ndata: \"{VALUE}\\q\""), unknown),
        (format!("kind: List\nitems: {VALUE}"), unknown),
        (list(&format!("\"{VALUE}\"")), unknown),
        (list(&format!(r#"{{"kind": "Secret", "metadata": "{VALUE}"}}"#)), unknown),
        (format!("\"{VALUE}\""), unknown),
        (format!(r#"{{"data": "{VALUE}"#), unknown),
        (format!(r#"{{"data": {VALUE}}}"#), unknown),
    ]);
    for (text, expect) in &cases {
        for name in ["a.yaml", "a.json"] {
            let path: Arc<Path> = Path::new(name).into();
            let parsed = parse(&path, text);
            let debug = format!("{parsed:?}");
            assert!(!debug.contains("hunter2") && !debug.contains("12345"), "{text}: {debug}");
            assert!(parsed.objects.is_empty(), "{text}: {debug}");
            let remark = parsed.remarks.first().map(ToString::to_string).unwrap_or_default();
            if name == "a.yaml" || text.starts_with('{') {
                assert!(remark.contains(expect) && remark.contains(": document 1, line "), "{text}: {remark}");
                assert_eq!(*expect == malformed, remark.contains(MALFORMED_SECRET), "{text}: {remark}");
            }
        }
    }
}

#[test]
fn errors_name_their_line() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  tls.key: [x]\n";
    let expect = format!("Secret default/s (a.yaml): document 2, line 10: {MALFORMED_SECRET}; ");
    check("a.yaml", &format!("{SERVICE}---\n{secret}"), &["Service default/a"], &[&expect]);
    check("a.yaml", "a: b\nmetadata: {name: [x]}\n", &[], &[&format!("document 1, line 2: {MALFORMED}; ")]);
    check("a.yaml", "a: b\nmetadata: x\n", &[], &[&format!("document 1, line 2: {MALFORMED}; ")]);
    check("a.yaml", "a: b\n\nc: d\na: c\n", &[], &[&format!("document 1, line 4: {DUPLICATE_KEY}; ")]);
    check("a.json", r#"{"metadata": "x"}"#, &[], &[&format!("document 1, line 1: {MALFORMED}; ")]);
    check("a.json", "{\n\"a\": }", &[], &["document 1, line 2: expected value; "]);
    check("a.yaml", "\n\nscale: .inf\n", &[], &[&format!("document 1, line 3: {NOT_JSON}; ")]);
    check("a.yaml", "\n? [a, b]\n: c\n", &[], &["document 1, line 2: expected string scalar; "]);
    check("a.yaml", "# none\n~\n", &[], &[]);
    check("a.json", "null", &[], &[&format!("document 1, line 1: {MALFORMED}; ")]);
}

#[test]
fn errors_in_lists_name_the_line_of_their_object() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n\
        - apiVersion: v1\n  kind: Service\n  metadata:\n    name: b\n  spec:\n    selector: [x]\n- null\n";
    let expect = [
        "Service default/b (a.yaml): document 1, line 12: invalid type: sequence, expected a map; ",
        &format!("File (a.yaml): document 1, line 13: {MALFORMED}; "),
    ];
    let sorted = [expect[1], expect[0]];
    check("a.yaml", list, &["Service default/a"], &sorted);
    let list = "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [\n{\"apiVersion\": \"v1\",\n\"kind\": \"Service\",\n\
        \"metadata\": {\"name\": \"b\"},\n\"spec\": {\n\"selector\": 5}}]}";
    let expect = "Service default/b (a.json): document 1, line 6: invalid type: integer `5`, expected a map; ";
    check("a.json", list, &[], &[expect]);
}

#[test]
fn lines_of_a_long_list_are_looked_for_a_few_times() {
    let item = "- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: 5}\n";
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{}", item.repeat(3_000));
    let path: Arc<Path> = Path::new("a.yaml").into();
    let remarks = parse(&path, &list).remarks;
    let lines: Vec<_> = (4..4 + MAX_LINES).map(|line| format!("line {line}: ")).collect();
    let is_of = |line: &str| remarks.iter().any(|remark| remark.to_string().contains(line));
    assert!(lines.iter().all(|line| is_of(line)) && is_of("line 1: ") && is_of("(after this line)"), "{remarks:?}");
    assert_eq!(remarks.len(), MAX_LINES + 1);
}

#[test]
fn deep_documents_are_refused() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nx: ";
    check("a.yaml", &format!("{service}{}", nested(20)), &["Service default/a"], &[]);
    check("a.yaml", &format!("{service}{}", nested(200)), &[], &["File (a.yaml): document 1, line "]);
    check("a.yaml", &format!("{service}{}", nested(100_000)), &[], &["File (a.yaml): document 1, line "]);
    let lists = |depth: usize| {
        let item = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#;
        r#"{"kind": "List", "items": ["#.repeat(depth) + item + &"]}".repeat(depth)
    };
    for name in ["a.yaml", "a.json"] {
        check(name, &lists(MAX_LISTS), &["Service default/a"], &[]);
        check(name, &lists(MAX_LISTS + 1), &[], &[DEEP_LIST]);
    }
    check("a.json", &lists(100_000), &[], &[DEEP_LIST]);
}

#[test]
fn values_have_the_types_of_yaml_1_2() {
    let annotated = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n    x: {value}\n    80: {value}\n"
        )
    };
    for text in ["'5'", "\"true\"", "text", "yes", "n", "!!str 5", "|\n      5\n", "2026-01-01T00:00:00Z", "a\"b"] {
        check("a.yaml", &annotated(text), &["Service default/a"], &[]);
    }
    for (value, expect) in [
        ("5", "invalid type: integer `5`, expected a string"),
        ("true", "invalid type: boolean `true`, expected a string"),
        ("1.5", "invalid type: floating point `1.5`, expected a string"),
        ("[a]", "invalid type: sequence, expected a string"),
    ] {
        check(
            "a.yaml",
            &annotated(value),
            &[],
            &[&format!("Service default/a (a.yaml): document 1, line 6: {expect}; ")],
        );
    }
    let merged = "x: &x {port: 80}\napiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{<<: *x, name: b}, *x]}\n";
    check("a.yaml", merged, &["Service default/a"], &[]);
    for labels in ["{a: ''}", "{a: }", "{a: ~}"] {
        check(
            "a.yaml",
            &format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a, labels: {labels}}}\n"),
            &["Service default/a"],
            &[],
        );
    }
    let empty = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: a}\nspec:\n  rules:\n  parentRefs: 5\n";
    check("a.yaml", &empty.replace(" 5", ""), &["HTTPRoute default/a"], &[]);
    let expect = "HTTPRoute default/a (a.yaml): document 1, line 6: invalid type: integer `5`, expected a sequence; ";
    check("a.yaml", empty, &[], &[expect]);
}

#[test]
fn kinds_of_the_gateway_api_are_read() {
    let kinds = [
        ("GatewayClass", "a"),
        ("Gateway", "default/a"),
        ("ListenerSet", "default/a"),
        ("HTTPRoute", "default/a"),
        ("GRPCRoute", "default/a"),
        ("TLSRoute", "default/a"),
        ("TCPRoute", "default/a"),
        ("UDPRoute", "default/a"),
        ("BackendTLSPolicy", "default/a"),
        ("ReferenceGrant", "default/a"),
    ];
    let text = kinds
        .map(|(kind, _)| format!("apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a}}\n"));
    let objects = kinds.map(|(kind, name)| format!("{kind} {name}"));
    check("a.yaml", &text.join("---\n"), &objects.each_ref().map(String::as_str), &[]);
    let older = "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: HTTPRoute\nmetadata: {name: a}\nspec: {rules: [{filters: [{type: Later}]}]}\n";
    check("a.yaml", older, &["HTTPRoute default/a"], &[]);
    let experimental = "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {name: a}\n";
    check("a.yaml", experimental, &[], &["objects of `gateway.networking.k8s.io/v1alpha2` `TCPRoute` are not read"]);
    let port = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: a}\nspec: {listeners: [{port: x}]}\n";
    check(
        "a.yaml",
        &format!("{port}---\n{SERVICE}"),
        &["Service default/a"],
        &["warning InvalidObject Gateway default/a"],
    );
}

#[test]
fn errors_of_types_say_what_is_expected() {
    let service = |spec: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec:\n{spec}");
    for (spec, expect) in [
        ("  ports:\n  - port: x\n", "line 6: invalid type: string \"x\", expected i32; "),
        ("  ports:\n  - port: 80\n    name: [a]\n", "line 7: invalid type: sequence, expected a string; "),
        ("  ports:\n    port: 80\n", "line 6: invalid type: map, expected a sequence; "),
        ("  ports: 5\n", "line 5: invalid type: integer `5`, expected a sequence; "),
        ("  selector: {a: {b: c}}\n", "line 5: invalid type: map, expected a string; "),
    ] {
        check("a.yaml", &service(spec), &[], &[expect]);
    }
}
