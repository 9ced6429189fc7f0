//! A Secret whose values are wiped when it is dropped. Copies that libraries make while they read it are not known
//! here.

use std::ops::Deref;

use k8s_openapi::api::core::v1::Secret;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The only form in which Secrets are kept.
#[derive(Clone, PartialEq)]
pub struct HeldSecret(Secret);

// === impl HeldSecret ===

impl From<Secret> for HeldSecret {
    fn from(secret: Secret) -> Self {
        Self(secret)
    }
}

impl Deref for HeldSecret {
    type Target = Secret;

    fn deref(&self) -> &Secret {
        &self.0
    }
}

impl Zeroize for HeldSecret {
    fn zeroize(&mut self) {
        let Secret { data, string_data, immutable: _, metadata: _, type_: _ } = &mut self.0;
        data.iter_mut().flatten().for_each(|(_, value)| value.0.zeroize());
        string_data.iter_mut().flatten().for_each(|(_, value)| value.zeroize());
    }
}

impl Drop for HeldSecret {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for HeldSecret {}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::cluster::{Cluster, Store};

    /// Compiles only if the memory of Secrets in a cluster is wiped.
    #[test]
    fn secrets_of_a_cluster_are_wiped() {
        fn wiped<T: ZeroizeOnDrop>(_: &Store<T>) {}
        wiped(&Cluster::default().secrets);
        let mut secret = HeldSecret::from(Secret {
            data: Some([("tls.key".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
            string_data: Some([("auth".to_owned(), "hunter2".to_owned())].into()),
            ..Secret::default()
        });
        secret.zeroize();
        let Secret { data, string_data, .. } = &*secret;
        assert!(data.iter().flatten().all(|(_, value)| value.0.is_empty()));
        assert!(string_data.iter().flatten().all(|(_, value)| value.is_empty()));
    }
}
