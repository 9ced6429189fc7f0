//! Tests of claims. Signatures are tested over sockets, in `ingress-userspace/tests/annotations/tokens.rs`.

use serde_json::json;

use super::{keys::KEYS_MAX, *};

fn claims(value: Value) -> Map<String, Value> {
    let Value::Object(claims) = value else { return Map::new() };
    claims
}

fn values(values: &[&str]) -> Box<[Box<str>]> {
    values.iter().map(|value| Box::from(*value)).collect()
}

#[test]
fn expiry_and_not_before_are_checked() {
    let now = Duration::from_secs(1_000_000);
    for (value, expect) in [
        (json!({"exp": 1_000_001}), true),
        (json!({"exp": 999_971}), true),
        (json!({"exp": 999_970}), false),
        (json!({"exp": 1_000_000.5}), true),
        (json!({"exp": "1000001"}), false),
        (json!({"exp": null}), false),
        (json!({}), false),
        (json!({"exp": 2e6, "nbf": 1_000_030}), true),
        (json!({"exp": 2e6, "nbf": 1_000_031}), false),
        (json!({"exp": 2e6, "nbf": "0"}), false),
        (json!({"exp": 1e300, "nbf": -1}), true),
    ] {
        assert_eq!(is_in_time(&claims(value.clone()), now), expect, "{value}");
    }
}

#[test]
fn issuers_and_audiences_are_compared_exactly() {
    for (iss, known, expect) in [
        (json!("https://i.test"), &["https://i.test"][..], true),
        (json!("https://i.test/"), &["https://i.test"], false),
        (json!("https://i.test"), &["a", "https://i.test"], true),
        (json!(["https://i.test"]), &["https://i.test"], false),
        (json!(null), &["https://i.test"], false),
        (json!(7), &[], true),
    ] {
        assert_eq!(is_from(&claims(json!({"iss": iss})), &values(known)), expect, "{iss} {known:?}");
    }
    for (aud, known, expect) in [
        (json!("api"), &["api"][..], true),
        (json!(["web", "api"]), &["api"], true),
        (json!(["web"]), &["api"], false),
        (json!("api web"), &["api"], false),
        (json!([["api"]]), &["api"], false),
        (json!({"api": true}), &["api"], false),
        (json!(null), &["api"], false),
        (json!(null), &[], true),
    ] {
        assert_eq!(is_for(&claims(json!({"aud": aud})), &values(known)), expect, "{aud} {known:?}");
    }
}

#[test]
fn required_claims_match_strings_lists_and_words() {
    let token = claims(json!({
        "scope": "read write", "groups": ["admin", "dev"], "email_verified": true, "level": 3, "name": "read write",
        "realm_access": {"roles": ["editor"]}, "https://a.test/roles": ["owner"], "none": null, "a.b": "dotted",
        "a": {"b": "nested"}, "empty": "",
    }));
    for (claim, wanted, expect) in [
        ("scope", &["write"][..], true),
        ("scope", &["wri"], false),
        ("scope", &["admin", "read"], true),
        ("scope", &["read write"], false),
        ("name", &["write"], false),
        ("name", &["read write"], true),
        ("groups", &["dev"], true),
        ("groups", &["ops"], false),
        ("email_verified", &["true"], true),
        ("email_verified", &["false"], false),
        ("level", &["3"], true),
        ("realm_access.roles", &["editor"], true),
        ("realm_access", &["editor"], false),
        ("https://a.test/roles", &["owner"], true),
        ("a.b", &["dotted"], true),
        ("a.b", &["nested"], false),
        ("a.b.c", &[], false),
        ("empty", &[], true),
        ("none", &[], false),
        ("missing", &[], false),
        ("realm_access", &[], true),
    ] {
        let demanded = Demanded { claim: ClaimPath(claim.into()), values: values(wanted) };
        assert_eq!(is_met(&demanded, &token), expect, "{claim} {wanted:?}");
    }
}

#[test]
fn claims_become_headers_if_they_are_text() {
    for (claim, expect) in [
        (json!("ann"), Some("ann")),
        (json!(7), Some("7")),
        (json!(true), Some("true")),
        (json!(["a", "b"]), Some("a,b")),
        (json!(["a,b"]), None),
        (json!([1]), None),
        (json!({"a": 1}), None),
        (json!("a\r\nx: y"), None),
        (json!(null), None),
    ] {
        assert_eq!(field(&claim), expect.map(|text| HeaderValue::from_str(text).expect("valid")), "{claim}");
    }
}

#[test]
fn keys_are_used_only_for_their_algorithm_and_purpose() {
    let secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U";
    for (key, expect) in [
        (json!({"kty": "oct", "k": secret}), 3),
        (json!({"kty": "oct", "k": secret, "alg": "HS512"}), 1),
        (json!({"kty": "oct", "k": secret, "alg": "RS256"}), 0),
        (json!({"kty": "oct", "k": secret, "use": "sig"}), 3),
        (json!({"kty": "oct", "k": secret, "use": "enc"}), 0),
        (json!({"kty": "oct", "k": secret, "key_ops": ["verify"]}), 3),
        (json!({"kty": "oct", "k": secret, "key_ops": ["encrypt"]}), 0),
        (json!({"kty": "oct", "k": "c2hvcnQ"}), 0),
        (json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"}), 6),
        (json!({"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"}), 1),
        (json!({"kty": "EC", "crv": "P-521", "x": "AQAB", "y": "AQAB"}), 0),
        (json!({"kty": "OKP", "crv": "Ed25519", "x": "AQAB"}), 1),
        (json!({"kty": "OKP", "crv": "P-256", "x": "AQAB"}), 0),
        (json!({"kty": "new"}), 0),
    ] {
        let keys = Keys::parse(&json!({"keys": [key]}).to_string());
        assert_eq!(keys.0.iter().map(|key| key.algorithms.len()).sum::<usize>(), expect, "{key}");
    }
    // Neither a malformed key nor many unusable ones prevent another from being used.
    let good = json!({"kty": "oct", "k": secret});
    let (malformed, useless) = (json!({"kty": "RSA", "n": 7}), json!({"kty": "oct", "k": "c2hvcnQ"}));
    for bad in [vec![malformed], vec![json!(7)], vec![useless; 2 * KEYS_MAX]] {
        let keys = [&bad[..], std::slice::from_ref(&good)].concat();
        assert_eq!(Keys::parse(&json!({"keys": keys}).to_string()).0.len(), 1, "{}", bad[0]);
    }
    let many = vec![good; 2 * KEYS_MAX];
    assert_eq!(Keys::parse(&json!({"keys": many}).to_string()).0.len(), KEYS_MAX);
    for text in ["", "[]", "{}", "{\"keys\": 7}"] {
        assert!(Keys::parse(text).0.is_empty(), "{text}");
    }
}
