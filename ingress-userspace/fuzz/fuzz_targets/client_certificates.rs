//! Certificates of clients, authorities and revocation lists: raw bytes, and modifications that clients and tenants can
//! make to valid ones. The target checks that nothing panics, that no unsigned or revoked certificate is accepted, and
//! that the fields for pods are a few lines of visible ASCII.
#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use ingress_model::{Authorities, ClientCertificates, Demand, tls::revocation_lists};
use ingress_proxy::fields_for_pods;
use libfuzzer_sys::fuzz_target;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ED25519, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivatePkcs8KeyDer};

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Raw { bytes: &'a [u8], intermediates: Vec<&'a [u8]> },
    Edited(Edited<'a>),
    Named(Vec<Named<'a>>),
}

/// Valid objects with edits.
#[derive(Arbitrary, Debug)]
struct Edited<'a> {
    is_revoked: bool,
    is_passed: bool,
    leaf: Vec<Edit<'a>>,
    authority: Vec<Edit<'a>>,
    list: Vec<Edit<'a>>,
}

/// Bytes that replace others.
#[derive(Arbitrary, Debug)]
struct Edit<'a> {
    at: u16,
    length: u8,
    by: &'a [u8],
}

/// An attribute of a subject: its type, the tag of its value, and the value.
#[derive(Arbitrary, Debug)]
struct Named<'a> {
    of: &'a [u8],
    known: u8,
    tag: u8,
    value: &'a [u8],
    /// Whether the attribute has a separate set.
    is_alone: bool,
}

/// Objects signed by an authority.
struct Sound {
    authority: Vec<u8>,
    /// A revoked certificate and a valid one.
    leaves: [Vec<u8>; 2],
    list: Vec<u8>,
}

const FIELDS: [&str; 4] = ["ssl-client-verify", "ssl-client-subject-dn", "ssl-client-issuer-dn", "ssl-client-cert"];

/// Keys and signatures are identical in each process, so that an input is reproducible.
static SOUND: LazyLock<Sound> = LazyLock::new(|| {
    let key = |seed: u8| {
        let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        der.resize(der.len() + 32, seed);
        KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519).expect("a key")
    };
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.serial_number = Some(SerialNumber::from(1));
    let authority = params.self_signed(&key(1)).expect("an authority").der().to_vec();
    let issuer = Issuer::new(params, key(1));
    let leaf = |serial: u64| {
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, "a \"client\", of, many + words");
        params.distinguished_name.push(DnType::OrganizationName, "Österreich\\#<>;=");
        params.serial_number = Some(SerialNumber::from(serial));
        params.signed_by(&key(2), &issuer).expect("a leaf").der().to_vec()
    };
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(3),
        revocation_time: date_time_ymd(2026, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2026, 1, 1),
        next_update: date_time_ymd(2096, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&issuer).expect("a list").der().to_vec();
    Sound { authority, leaves: [leaf(2), leaf(3)], list }
});

fn edit(sound: &[u8], edits: &[Edit<'_>]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for Edit { at, length, by } in edits.iter().take(8) {
        let at = usize::from(*at) % (bytes.len() + 1);
        let end = (at + usize::from(*length)).min(bytes.len());
        bytes.splice(at..end, by.iter().copied());
    }
    bytes
}

fn policy(authority: Vec<u8>, lists: Vec<Vec<u8>>, passed: bool) -> Arc<ClientCertificates> {
    let authorities = Authorities { origin: "n/s".into(), certificates: vec![CertificateDer::from(authority)] };
    Arc::new(ClientCertificates {
        authorities: authorities.into(),
        revoked: lists.into_iter().map(CertificateRevocationListDer::from).collect(),
        demand: Demand::Required,
        depth: 1,
        passed,
        name: None,
        error_page: None,
    })
}

/// Returns the fields for pods, which are valid for any certificate.
fn told(chain: &[&[u8]], policy: &Arc<ClientCertificates>) -> String {
    let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(*der)).collect();
    let fields = fields_for_pods(&chain, policy);
    let lines: Vec<&str> = fields.strip_suffix("\r\n").expect("lines that end").split("\r\n").collect();
    for line in &lines {
        let (name, value) = line.split_once(": ").expect("a name and a value");
        assert!(FIELDS.contains(&name), "{line}");
        assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
    }
    let names: std::collections::BTreeSet<_> = lines.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names.len(), lines.len(), "{fields}");
    let shown = chain.first().map_or(0, |leaf| leaf.len());
    assert!(fields.len() <= 16 * shown + 256, "{} bytes of a certificate of {shown}", fields.len());
    fields
}

/// Encodes an element in DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = match content.len() {
        length @ 0..128 => vec![length as u8],
        length => [&[0x83][..], &(length as u32).to_be_bytes()[1..]].concat(),
    };
    [&[tag], &length[..], content].concat()
}

/// Encodes an unsigned certificate of version 3 with this subject and issuer.
fn named(names: &[Named<'_>]) -> Vec<u8> {
    let (mut sets, mut open) = (Vec::new(), Vec::new());
    for Named { of, known, tag, value, is_alone } in names.iter().take(16) {
        // Attribute types: X.500 (2.5.4.x), arbitrary bytes, or a domain component.
        let of = match known % 4 {
            0 => of.to_vec(),
            1 => vec![9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
            _ => vec![0x55, 4, of.first().copied().unwrap_or(3) % 80],
        };
        open.extend(element(0x30, &[element(6, &of), element(*tag, value)].concat()));
        if *is_alone {
            sets.extend(element(0x31, &std::mem::take(&mut open)));
        }
    }
    sets.extend(element(0x31, &open));
    let name = element(0x30, &sets);
    let algorithm = element(0x30, &element(6, &[0x2b, 0x65, 0x70]));
    let validity = element(0x30, &[element(23, b"250101000000Z"), element(23, b"450101000000Z")].concat());
    let key = element(0x30, &[&algorithm[..], &element(3, &[0; 33])].concat());
    let version = element(0xa0, &element(2, &[2]));
    let body = [version, element(2, &[1]), algorithm.clone(), name.clone(), validity, name, key].concat();
    element(0x30, &[element(0x30, &body), algorithm, element(3, &[0; 65])].concat())
}

fuzz_target!(|input: Input<'_>| {
    let Sound { authority, leaves: [valid, revoked], list } = &*SOUND;
    match input {
        Input::Raw { bytes, intermediates } => {
            let chain: Vec<&[u8]> = std::iter::once(bytes).chain(intermediates.into_iter().take(4)).collect();
            told(&chain, &policy(authority.clone(), vec![list.clone()], true));
            told(&[valid], &policy(bytes.to_vec(), vec![bytes.to_vec()], false));
            if let Ok(authorities) = Authorities::from_pem("n/s", bytes) {
                assert!(!authorities.certificates.is_empty());
            }
            drop(revocation_lists(bytes));
        }
        Input::Edited(Edited { is_revoked, is_passed, leaf, authority: anchor, list: edits }) => {
            let sound = if is_revoked { revoked } else { valid };
            let (leaf, edited) = (edit(sound, &leaf), edit(list, &edits));
            let anchor = edit(authority, &anchor);
            let is_untouched = leaf == *sound && edited == *list && anchor == *authority;
            let fields = told(&[&leaf], &policy(anchor, vec![edited.clone()], is_passed));
            let is_valid = fields.starts_with("ssl-client-verify: SUCCESS\r\n");
            if is_untouched {
                assert_eq!(is_valid, !is_revoked, "{fields}");
            }
            assert!(!is_valid || (leaf == *sound && edited == *list && !is_revoked), "{fields}");
        }
        Input::Named(names) => {
            let fields = told(&[&named(&names)], &policy(authority.clone(), Vec::new(), false));
            assert!(!fields.contains("SUCCESS"), "{fields}");
        }
    }
});
