//! Certificates that live as long as the lab: an authority, and Secrets with certificates that it signed. Keys never
//! leave the lab's own directory.

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::client::Trust;

/// An authority that only clients of the lab trust.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A signed certificate and its key, which `Debug` does not show.
pub struct Signed {
    certificate: String,
    key: String,
}

// === impl Authority ===

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// Fails if no key can be generated.
    pub fn generate() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "xdp-ingress lab");
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok(Self(CertifiedIssuer::self_signed(params, key).context("cannot make an authority")?))
    }

    /// Returns the authority's certificate, for `curl --cacert`.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the trust store of a client that trusts this authority.
    ///
    /// # Errors
    /// Fails if the certificate is unusable.
    pub fn trust(&self) -> anyhow::Result<Trust> {
        Trust::authority(self.0.der())
    }

    /// Returns a Secret of type `kubernetes.io/tls` for these names, as YAML.
    ///
    /// # Errors
    /// Fails if a name is not a DNS name.
    pub fn secret(&self, namespace: &str, name: &str, hosts: &[&str]) -> anyhow::Result<String> {
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok(self.sign(hosts, &key)?.secret(namespace, name))
    }

    /// Signs a certificate of `key` for these names.
    ///
    /// # Errors
    /// Fails if a name is not a DNS name.
    pub fn sign(&self, hosts: &[&str], key: &KeyPair) -> anyhow::Result<Signed> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let params = CertificateParams::new(hosts).context("unusable names for a certificate")?;
        let certificate = params.signed_by(key, &self.0).context("cannot sign a certificate")?;
        Ok(Signed { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

// === impl Signed ===

impl Signed {
    /// Returns the certificate as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns its key as PEM.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns both as a Secret of type `kubernetes.io/tls`, as YAML.
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
