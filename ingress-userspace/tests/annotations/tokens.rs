//! JSON Web Tokens: access, refusals, and fields for pods.

use std::time::SystemTime;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ingress_control::translate::Options;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};

use super::{Ingress, Site, configured, ext_authz::service};
use ingress_proxy_testing::pki::secret;
use ingress_proxy_testing::{Origin, Response};

pub(super) const KEYS: (&str, &str) = ("jwt-jwks-secret", "keys");
pub(super) const SECRET: &[u8] = b"an HMAC secret of thirty-two bytes, or more";

/// An issuer of tokens.
pub(super) struct Issuer {
    pub(super) id: &'static str,
    pub(super) algorithm: Algorithm,
    pub(super) key: EncodingKey,
}

impl Issuer {
    fn rsa(algorithm: Algorithm) -> Self {
        let pkcs8 = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("a key").serialize_der();
        // PKCS #8 is PKCS #1 with 26 bytes before it.
        Self { id: "rsa", algorithm, key: EncodingKey::from_rsa_der(&pkcs8[26..]) }
    }

    pub(super) fn ec() -> Self {
        let pkcs8 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key").serialize_der();
        Self { id: "ec", algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(&pkcs8) }
    }

    fn ed() -> Self {
        let pair = Ed25519KeyPair::generate().expect("a key");
        let pkcs8 = pair.to_pkcs8v1().expect("DER");
        assert_eq!(pair.public_key().as_ref().len(), 32);
        Self { id: "ed", algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(pkcs8.as_ref()) }
    }

    pub(super) fn hmac(id: &'static str, secret: &[u8]) -> Self {
        Self { id, algorithm: Algorithm::HS256, key: EncodingKey::from_secret(secret) }
    }

    /// Returns its public key, valid for any algorithm of its kind.
    fn jwk(&self) -> Value {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).expect("a key")).expect("JSON");
        jwk["kid"] = self.id.into();
        jwk.as_object_mut().expect("an object").remove("alg");
        jwk
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_as(Some(self.id), claims)
    }

    fn sign_as(&self, id: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).expect("signed")
    }
}

pub(super) fn key_set(issuers: &[&Issuer]) -> String {
    secret("keys", &[("jwks", &jwks(issuers))])
}

pub(super) fn jwks(issuers: &[&Issuer]) -> String {
    let keys: Vec<_> = issuers.iter().map(|issuer| issuer.jwk()).collect();
    json!({"keys": keys}).to_string()
}

/// Returns the time `offset` seconds from now, since 1970.
fn at(offset: i64) -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    i64::try_from(now).expect("before long") + offset
}

/// Returns the claims of a valid token of the tests, with changes.
pub(super) fn claims(changes: Value) -> Value {
    let mut claims =
        json!({"iss": "https://login.test", "aud": ["web", "api"], "sub": "ann", "exp": at(600), "scope": "read"});
    for (name, value) in changes.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

pub(super) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[track_caller]
pub(super) fn check_refused(response: &Response, status: u16, challenge: Option<&str>) {
    assert_eq!((response.status, response.header("www-authenticate")), (status, challenge), "{response:?}");
}

pub(super) const MISSING: Option<&str> = Some("bearer");
pub(super) const INVALID: Option<&str> = Some("bearer error=\"invalid_token\"");
const INSUFFICIENT: Option<&str> = Some("bearer error=\"insufficient_scope\"");

fn verified(site: &Site) -> u64 {
    site.proxy.shared.stats().tokens_verified
}

#[test]
fn only_valid_tokens_are_accepted() {
    let (rsa, ec, ed, hmac) = (Issuer::rsa(Algorithm::RS256), Issuer::ec(), Issuer::ed(), Issuer::hmac("hmac", SECRET));
    let origin = Origin::mirror();
    let site = Ingress::with(&[
        KEYS,
        ("jwt-issuer", "https://other.test, https://login.test"),
        ("jwt-audience", "api"),
        ("jwt-required-claims", "scope=read|admin"),
        ("jwt-claims-to-headers", "sub=X-User, missing=X-Missing"),
    ])
    .beside(&key_set(&[&rsa, &ec, &ed, &hmac]))
    .serve(&origin)
    .in_order();
    let good = claims(json!({}));
    let pss = Issuer { algorithm: Algorithm::PS384, key: rsa.key.clone(), ..rsa };
    let rsa = Issuer { algorithm: Algorithm::RS256, key: rsa.key, ..rsa };
    for issuer in [&rsa, &pss, &ec, &ed, &hmac] {
        for token in [issuer.sign(&good), issuer.sign_as(None, &good)] {
            let response =
                site.ask("/", &format!("{}X-User: root\r\nx_user: root\r\nX-Missing: 1\r\n", bearer(&token)));
            assert_eq!(response.status, 200, "{:?}: {response:?}", issuer.algorithm);
            let text = response.text();
            assert!(text.contains("\r\nx-user: ann\r\n") && !text.contains("root"), "{text}");
            assert!(!text.contains("x-missing"), "{text}");
        }
    }
    let served = origin.heads().len();
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = |header: Value| format!("{}.{}.", encoded(&header), encoded(&good));
    let public = rsa.jwk();
    let modulus = URL_SAFE_NO_PAD.decode(public["n"].as_str().expect("a modulus")).expect("base64");
    let confused = |secret: &[u8]| Issuer::hmac("rsa", secret).sign(&good);
    let token = ec.sign(&good);
    let (message, signature) = token.rsplit_once('.').expect("a signature");
    let (header, _) = message.split_once('.').expect("a header");
    let says = |changes| ec.sign(&claims(changes));
    let critical = encode(
        &Header { kid: Some("ec".into()), crit: Some(vec!["b64".into()]), ..Header::new(Algorithm::ES256) },
        &good,
        &ec.key,
    );
    for (why, fields, status, challenge) in [
        ("no token", String::new(), 401, MISSING),
        ("another scheme", "Authorization: Basic YW5uOnNlY3JldA==\r\n".into(), 401, MISSING),
        ("the scheme alone", "Authorization: Bearer\r\n".into(), 401, MISSING),
        ("in a cookie", format!("Cookie: token={token}\r\n"), 401, MISSING),
        ("in another field", format!("X-Token: {token}\r\n"), 401, MISSING),
        ("no JWT", bearer("hunter2"), 401, INVALID),
        ("too many parts", bearer(&format!("{token}.x.y")), 401, INVALID),
        ("too long", bearer(&format!("{token}{}", "A".repeat(9000))), 401, INVALID),
        ("two fields", bearer(&token) + &bearer(&token), 401, INVALID),
        ("not signed", bearer(&unsigned(json!({"alg": "none"}))), 401, INVALID),
        ("not signed, in other words", bearer(&unsigned(json!({"alg": "NONE", "kid": "ec"}))), 401, INVALID),
        ("a public key as a secret", bearer(&confused(&modulus)), 401, INVALID),
        ("a key set as a secret", bearer(&confused(public.to_string().as_bytes())), 401, INVALID),
        ("a secret for another key", bearer(&confused(SECRET)), 401, INVALID),
        ("a key that is not known", bearer(&Issuer { id: "new", ..Issuer::ec() }.sign(&good)), 401, INVALID),
        ("a key that claims to be known", bearer(&Issuer::ec().sign(&good)), 401, INVALID),
        ("a key that names itself", bearer(&ec.sign_as(Some("rsa"), &good)), 401, INVALID),
        (
            "other claims",
            bearer(&format!("{header}.{}.{signature}", encoded(&claims(json!({"sub": "root"}))))),
            401,
            INVALID,
        ),
        ("half a signature", bearer(&format!("{message}.{}", &signature[..40])), 401, INVALID),
        ("no signature", bearer(&format!("{message}.")), 401, INVALID),
        ("an extension", bearer(&critical.expect("signed")), 401, INVALID),
        ("expired", bearer(&says(json!({"exp": at(-60)}))), 401, INVALID),
        ("without an end", bearer(&says(json!({"exp": null}))), 401, INVALID),
        ("not yet", bearer(&says(json!({"nbf": at(600)}))), 401, INVALID),
        ("another audience", bearer(&says(json!({"aud": "web"}))), 401, INVALID),
        ("no audience", bearer(&says(json!({"aud": null}))), 401, INVALID),
        ("another issuer", bearer(&says(json!({"iss": "https://login.test/"}))), 401, INVALID),
        ("another scope", bearer(&says(json!({"scope": "write"}))), 403, INSUFFICIENT),
        ("no scope", bearer(&says(json!({"scope": null}))), 403, INSUFFICIENT),
    ] {
        let response = site.ask("/", &fields);
        assert_eq!((response.status, response.header("www-authenticate")), (status, challenge), "{why}");
    }
    assert_eq!(origin.heads().len(), served, "no pod hears of them");
    let late = says(json!({"exp": at(-10), "nbf": at(10)}));
    assert_eq!(site.ask("/", &bearer(&late)).status, 200, "clocks differ");
}

#[test]
fn tokens_are_read_from_the_configured_place() {
    let ec = Issuer::ec();
    let origin = Origin::mirror();
    let token = ec.sign(&claims(json!({})));
    let cookie = |text: &str| format!("Cookie: {text}\r\n");
    for (place, fields, expect) in [
        (("jwt-cookie", "session"), cookie(&format!("a=b; session={token}; c=d")), Ok(())),
        (("jwt-cookie", "session"), cookie(&format!("session={token}; session={token}")), Err(INVALID)),
        (("jwt-cookie", "session"), cookie(&format!("session={token}")) + &cookie("session=x"), Err(INVALID)),
        (("jwt-cookie", "session"), cookie(&format!("Session={token}")), Err(MISSING)),
        (("jwt-cookie", "session"), bearer(&token), Err(MISSING)),
        (("jwt-cookie", "session"), bearer("x") + &cookie(&format!("session={token}")), Ok(())),
        (("jwt-header", "X-Token"), format!("X-Token: {token}\r\n"), Ok(())),
        (("jwt-header", "X-Token"), format!("X-Token: {token}\r\nx-token: x\r\n"), Err(INVALID)),
        (("jwt-header", "X-Token"), bearer(&token), Err(MISSING)),
        (("jwt-header", "Authorization"), bearer(&token), Ok(())),
        (("jwt-header", "Authorization"), format!("Authorization: bEARER  {token}\r\n"), Ok(())),
        (("jwt-header", "Authorization"), format!("Authorization: {token}\r\n"), Err(MISSING)),
    ] {
        let site = Ingress::with(&[KEYS, place]).beside(&key_set(&[&ec])).serve(&origin).in_order();
        let response = site.ask("/", &fields);
        match expect {
            Ok(()) => assert_eq!(response.status, 200, "{place:?} {fields}"),
            Err(challenge) => check_refused(&response, 401, challenge),
        }
    }
}

#[test]
fn verified_signatures_are_cached_no_longer_than_their_key() {
    let (one, other) = (Issuer { id: "one", ..Issuer::ec() }, Issuer { id: "other", ..Issuer::ec() });
    let origin = Origin::answering("pod");
    let ingress =
        |issuers: &[&Issuer], audience| Ingress::with(&[KEYS, ("jwt-audience", audience)]).beside(&key_set(issuers));
    let site = ingress(&[&one], "api").serve(&origin).in_order();
    let (first, second) = (bearer(&one.sign(&claims(json!({})))), bearer(&other.sign(&claims(json!({})))));
    let publish = |issuers: &[&Issuer], audience| {
        let (table, outcomes) = ingress(issuers, audience).translated(&[origin.address], &Options::for_manifests());
        assert_eq!(outcomes, "");
        site.proxy.publish(&table);
    };
    for (fields, status, count) in [(&first, 200, 1), (&first, 200, 1), (&second, 401, 2), (&second, 401, 3)] {
        assert_eq!((site.ask("/", fields).status, verified(&site)), (status, count));
    }
    publish(&[&one, &other], "api");
    for (fields, status, count) in [(&first, 200, 3), (&second, 200, 4), (&second, 200, 4)] {
        assert_eq!((site.ask("/", fields).status, verified(&site)), (status, count));
    }
    publish(&[&one, &other], "elsewhere");
    assert_eq!((site.ask("/", &first).status, verified(&site)), (401, 4), "what is remembered is the signature alone");
    publish(&[&other], "api");
    assert_eq!((site.ask("/", &first).status, site.ask("/", &second).status), (401, 200));
}

#[test]
fn requests_are_refused_without_usable_keys() {
    let ec = Issuer::ec();
    let origin = Origin::answering("pod");
    let fields = bearer(&ec.sign(&claims(json!({}))));
    let short = json!({"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}).to_string();
    let held = |json: &str| Some(secret("keys", &[("jwks", json)]));
    for (annotations, held, remark) in [
        (&[KEYS][..], None, "SecretNotFound"),
        (&[("jwt-jwks-secret", "other/keys")], None, "which is in another namespace"),
        (&[("jwt-issuer", "https://login.test")], None, "there is neither `jwt-jwks-secret` nor `jwt-jwks-url`"),
        (&[("jwt-required-claims", "sub")], None, "there is neither `jwt-jwks-secret` nor `jwt-jwks-url`"),
        (&[KEYS, ("jwt-audience", "")], held("{}"), "write audiences"),
        (&[KEYS, ("jwt-cookie", "a;b")], held("{}"), "write the name of a cookie"),
        (&[KEYS, ("jwt-claims-to-headers", "sub=Host")], held("{}"), "write claims with names"),
        (&[KEYS], Some(secret("keys", &[("keys", "{}")])), "no JSON Web Key Set"),
        (&[KEYS], held("{\"keys\": []}"), "no JSON Web Key Set"),
        (&[KEYS], held("hunter2"), "no JSON Web Key Set"),
        (&[KEYS], held(&short), ""),
        (&[KEYS, ("auth-secret", "users")], held(&short), "SecretNotFound"),
    ] {
        let ingress = held.iter().fold(Ingress::with(annotations), |ingress, held| ingress.beside(held));
        let site = ingress.serve(&origin);
        assert!(site.outcomes.contains(remark), "{annotations:?}: {}", site.outcomes);
        assert!(!site.outcomes.contains("hunter2"), "{}", site.outcomes);
        for fields in ["", &fields] {
            let expect = if remark.is_empty() && fields.is_empty() { 401 } else { 503 };
            assert_eq!(site.ask("/", fields).status, expect, "{annotations:?}");
        }
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn tokens_combine_with_other_conditions() {
    const USERS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\n\
                         stringData: {auth: 'ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ='}";
    const PASSWORD: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    let ec = Issuer::ec();
    let origin = Origin::answering("pod");
    let token = ec.sign(&claims(json!({})));
    let (basic, any, nobody) =
        (("auth-secret", "users"), ("satisfy", "any"), ("allowlist-source-range", "192.0.2.0/24"));
    let cookie = format!("Cookie: t={token}\r\n");
    for (annotations, cases) in [
        (&[KEYS, basic][..], &[(String::new(), 503), (bearer(&token), 503), (PASSWORD.into(), 503)][..]),
        (
            &[KEYS, basic, any],
            &[(String::new(), 401), (bearer(&token), 200), (PASSWORD.into(), 200), (bearer("x"), 401)],
        ),
        (
            &[KEYS, basic, ("jwt-cookie", "t")],
            &[
                (cookie.clone(), 401),
                (PASSWORD.into(), 401),
                (format!("{PASSWORD}{cookie}"), 200),
                (format!("{PASSWORD}Cookie: t=x\r\n"), 401),
            ],
        ),
        (&[KEYS, nobody], &[(bearer(&token), 403), (String::new(), 403)]),
        (&[KEYS, nobody, any], &[(bearer(&token), 200), (String::new(), 401)]),
        (&[KEYS, ("allowlist-source-range", "127.0.0.1"), any], &[(String::new(), 200), (bearer("x"), 200)]),
    ] {
        let site = Ingress::with(annotations).beside(USERS).beside(&key_set(&[&ec])).serve(&origin);
        for (fields, status) in cases {
            assert_eq!(site.ask("/", fields).status, *status, "{annotations:?} {fields}: {}", site.outcomes);
        }
    }
}

#[test]
fn the_authorization_service_gets_claims_of_the_token_only() {
    let ec = Issuer::ec();
    let (sso, pod) = (Origin::answering(""), Origin::mirror());
    let annotations = [
        KEYS,
        ("jwt-claims-to-headers", "sub=X-User, missing=X-Missing"),
        ("auth-url", "http://sso.auth.svc.cluster.local/verify"),
        ("auth-cache-key", "$uri"),
    ];
    let ingress = Ingress::with(&annotations).beside(&key_set(&[&ec])).beside(&service(sso.address));
    let site = ingress.serve(&pod).in_order();
    // The answer for one token does not apply to another, though the key is the same.
    for (user, questions) in [("ann", 1), ("ben", 2), ("ann", 2)] {
        let token = bearer(&ec.sign(&claims(json!({"sub": user}))));
        let response = site.ask("/", &format!("{token}X-User: root\r\nX_User: root\r\nX-Missing: root\r\n"));
        assert_eq!((response.status, sso.heads().len()), (200, questions), "{user}");
    }
    for (head, user) in sso.heads().iter().zip(["ann", "ben"]) {
        assert!(head.contains(&format!("\r\nx-user: {user}\r\n")), "{head}");
        assert!(!head.contains(": root") && !head.contains("x-missing"), "{head}");
    }
}

#[test]
fn claim_headers_are_removed_on_unauthenticated_paths() {
    let ec = Issuer::ec();
    let origin = Origin::mirror();
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\ndata: {no-auth-locations: /open}";
    let ingress = Ingress::with(&[KEYS, ("jwt-claims-to-headers", "sub=X-User"), ("request-headers", "X-A: 1")])
        .path("/open", "Prefix")
        .path("/", "Prefix")
        .beside(&key_set(&[&ec]))
        .beside(settings);
    let site = ingress.serve_with(&[origin.address], &configured()).in_order();
    assert_eq!(site.get("/").status, 401);
    let response = site.ask("/open", "X-User: root\r\n");
    assert_eq!(response.status, 200);
    assert!(!response.text().contains("root") && response.text().contains("x-a: 1"), "{}", response.text());
}
