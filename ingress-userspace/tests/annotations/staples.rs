//! OCSP responses of issuers, stapled to handshakes as long as they are valid.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::STANDARD};
use ingress_control::translate::Options;
use rustls::{
    ClientConfig,
    client::danger::ServerCertVerifier,
    version::{TLS12, TLS13},
};
use x509_cert::{
    Certificate,
    der::{Decode, Encode},
};

use super::{Ingress, handshakes::get};
use ingress_proxy_testing::Origin;
use ingress_proxy_testing::pki::{Authority, Issued};
use ingress_proxy_testing::tls::{AnyCertificate, config_of};

const PAST: &str = "20200101000000Z";
const NEAR: &str = "20210101000000Z";
const FUTURE: &str = "40960101000000Z";
/// Beyond `NEAR`, by the hour.
const TODAY: Duration = Duration::from_secs(470_000 * 3600);

/// A client without session resumption, with certificates recorded by `seen`.
fn client(seen: &Arc<AnyCertificate>, version: &'static rustls::SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut config = config_of(&[version], None);
    config.resumption = rustls::client::Resumption::disabled();
    config.dangerous().set_certificate_verifier(Arc::clone(seen) as Arc<dyn ServerCertVerifier>);
    Arc::new(config)
}

/// Builds the OCSP response of `says` about `about`: DER by hand, as a responder makes it, except for the signature,
/// which only the client verifies.
fn response(says: &Authority, about: &Issued, status: &[u8], from: &str, until: Option<&str>) -> Vec<u8> {
    fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let length = u16::try_from(body.len()).expect("short").to_be_bytes();
        let length: &[u8] = match body.len() {
            0..128 => &length[1..],
            128..256 => &[0x81, length[1]],
            _ => &[0x82, length[0], length[1]],
        };
        [&[tag], length, &body].concat()
    }
    let sha1 = |bytes: &[u8]| digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec();
    let issuer = Certificate::from_der(&says.chain()[0]).expect("a certificate");
    let leaf = Certificate::from_der(&about.chain()[0]).expect("a certificate");
    let name = issuer.tbs_certificate().subject().to_der().expect("DER");
    let key = issuer.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes();
    let serial = leaf.tbs_certificate().serial_number().to_der().expect("DER");
    let algorithm = tlv(0x30, &[b"\x06\x05\x2b\x0e\x03\x02\x1a\x05\x00"]);
    let id = tlv(0x30, &[&algorithm, &tlv(4, &[&sha1(&name)]), &tlv(4, &[&sha1(key)]), &serial]);
    let time = |text: &str| tlv(0x18, &[text.as_bytes()]);
    let until = until.map(|until| tlv(0xa0, &[&time(until)])).unwrap_or_default();
    let single = tlv(0x30, &[&id, status, &time(from), &until]);
    let data = tlv(0x30, &[&tlv(0xa2, &[&tlv(4, &[&sha1(key)])]), &time(from), &tlv(0x30, &[&single])]);
    let signature = tlv(0x30, &[b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02"]);
    let basic = tlv(0x30, &[&data, &signature, &tlv(3, &[b"\0signature"])]);
    let bytes = tlv(0x30, &[b"\x06\x09\x2b\x06\x01\x05\x05\x07\x30\x01\x01", &tlv(4, &[&basic])]);
    tlv(0x30, &[b"\x0a\x01\x00", &tlv(0xa0, &[&bytes])])
}

const GOOD: &[u8] = b"\x80\x00";
/// On 1 January 2020.
const REVOKED: &[u8] = b"\xa1\x11\x18\x0f20200101000000Z";
const UNKNOWN: &[u8] = b"\x82\x00";

/// A host with this certificate and this response.
fn with(chain: &str, key: &str, staple: &[u8], hour: Duration) -> Ingress {
    let staple = STANDARD.encode(staple);
    let held = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: web, namespace: default}}\n\
         stringData:\n  tls.crt: {chain:?}\n  tls.key: {key:?}\ndata:\n  tls.ocsp-staple: {staple}"
    );
    let mut ingress = Ingress::with(&[]).beside(&held);
    ingress.tls = "  tls: [{hosts: [a.test], secretName: web}]\n";
    ingress.hour = hour;
    ingress
}

#[test]
fn valid_ocsp_responses_for_the_certificate_are_stapled() {
    let (authority, other) = (Authority::new("issuer"), Authority::new("issuer"));
    let (own, another) = (authority.issue("a.test"), authority.issue("a.test"));
    let origin = Origin::answering("pod");
    let says = |status, from, until| response(&authority, &own, status, from, until);
    let good = says(GOOD, PAST, Some(FUTURE));
    let truncated = &good[..good.len() - 1];
    for (staple, hour, is_stapled, remark) in [
        (good.clone(), Duration::ZERO, true, ""),
        (good.clone(), TODAY, true, ""),
        (says(GOOD, PAST, Some(NEAR)), TODAY, false, "`tls.ocsp-staple` is out of date; renew it"),
        (says(GOOD, FUTURE, Some(FUTURE)), TODAY, false, ""),
        (says(GOOD, PAST, None), TODAY, false, "does not state when it expires"),
        (says(REVOKED, PAST, Some(FUTURE)), TODAY, false, "does not report the certificate as good"),
        (says(UNKNOWN, PAST, Some(FUTURE)), TODAY, false, "does not report the certificate as good"),
        (response(&authority, &another, GOOD, PAST, Some(FUTURE)), TODAY, false, "is about another certificate"),
        // The same name, but with another key.
        (response(&other, &own, GOOD, PAST, Some(FUTURE)), TODAY, false, "is about another certificate"),
        (b"\x30\x03\x0a\x01\x03".to_vec(), TODAY, false, "reports that the responder had no answer"),
        (b"\x30\x00".to_vec(), TODAY, false, "is not an OCSP response"),
        (b"text".to_vec(), TODAY, false, "is not an OCSP response"),
        (truncated.to_vec(), TODAY, false, "is not an OCSP response"),
        (vec![0x30; 20_000], TODAY, false, "is longer than 16384 bytes"),
    ] {
        let ingress = with(&format!("{}{}", own.cert, authority.pem), &own.key, &staple, hour);
        let site = ingress.serve(&origin);
        assert_eq!(site.outcomes.contains("InvalidStaple Secret default/web"), !remark.is_empty(), "{}", site.outcomes);
        assert!(site.outcomes.contains(remark), "{remark}: {}", site.outcomes);
        for version in [&TLS12, &TLS13] {
            let seen = AnyCertificate::new();
            get(site.proxy.https, &client(&seen, version), "a.test").expect("a handshake");
            let stapled = seen.staple().expect("a certificate");
            assert_eq!(stapled, if is_stapled { &staple[..] } else { b"" }, "{remark} {version:?}");
        }
    }
}

#[test]
fn the_name_of_the_issuer_suffices_without_its_certificate() {
    let authority = Authority::new("issuer");
    let own = authority.issue("a.test");
    let origin = Origin::answering("pod");
    for (says, is_stapled) in [(&authority, true), (&Authority::new("another"), false)] {
        let staple = response(says, &own, GOOD, PAST, Some(FUTURE));
        let site = with(&own.cert, &own.key, &staple, TODAY).serve(&origin);
        assert_eq!(site.outcomes.is_empty(), is_stapled, "{}", site.outcomes);
    }
}

#[test]
fn a_renewed_ocsp_response_takes_effect() {
    let authority = Authority::new("issuer");
    let own = authority.issue("a.test");
    let origin = Origin::answering("pod");
    let says = |until| response(&authority, &own, GOOD, PAST, Some(until));
    let ingress = |staple: &[u8]| with(&own.cert, &own.key, staple, TODAY);
    let (first, renewed) = (says("40950101000000Z"), says(FUTURE));
    let site = ingress(&first).serve(&origin).in_order();
    let seen = AnyCertificate::new();
    let config = client(&seen, &TLS13);
    let stapled = || {
        get(site.proxy.https, &config, "a.test").expect("a handshake");
        seen.staple().expect("a certificate")
    };
    assert_eq!(stapled(), first);
    for (staple, expect) in [(&renewed, &renewed), (&says(NEAR), &Vec::new()), (&first, &first)] {
        site.proxy.publish(&ingress(staple).translated(&[origin.address], &Options::for_manifests()).0);
        assert_eq!(&stapled(), expect);
    }
}
