//! Certificates that last as long as the lab: an authority, and Secrets with what it signed. Keys never leave the lab's
//! own directory.

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::client::Trust;

/// An authority that clients of the lab trust and nobody else.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What an authority has signed, and the key to it, which no `Debug` shows.
pub struct Signed {
    certificate: String,
    key: String,
}

// === impl Authority ===

impl Authority {
    /// Makes one with a new key.
    ///
    /// # Errors
    /// If no key can be made.
    pub fn generate() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "xdp-ingress lab");
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok(Self(CertifiedIssuer::self_signed(params, key).context("cannot make an authority")?))
    }

    /// The authority's certificate, for `curl --cacert`.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// What a client needs in order to trust it.
    ///
    /// # Errors
    /// If the certificate is unusable.
    pub fn trust(&self) -> anyhow::Result<Trust> {
        Trust::authority(self.0.der())
    }

    /// A Secret of type `kubernetes.io/tls` for these names, as YAML.
    ///
    /// # Errors
    /// If a name is no DNS name.
    pub fn secret(&self, namespace: &str, name: &str, hosts: &[&str]) -> anyhow::Result<String> {
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok(self.sign(hosts, &key)?.secret(namespace, name))
    }

    /// A certificate of `key` for these names.
    ///
    /// # Errors
    /// If a name is no DNS name.
    pub fn sign(&self, hosts: &[&str], key: &KeyPair) -> anyhow::Result<Signed> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let params = CertificateParams::new(hosts).context("unusable names for a certificate")?;
        let certificate = params.signed_by(key, &self.0).context("cannot sign a certificate")?;
        Ok(Signed { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

// === impl Signed ===

impl Signed {
    /// The certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its key, as PEM.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Both as a Secret of type `kubernetes.io/tls`, as YAML.
    #[must_use]
    pub fn secret(&self, namespace: &str, name: &str) -> String {
        let Self { certificate, key } = self;
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {namespace}\ntype: kubernetes.io/tls\n\
             stringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
            indented(certificate),
            indented(key),
        )
    }
}

fn indented(pem: &str) -> String {
    pem.lines().map(|line| format!("    {line}\n")).collect()
}
