//! Reads the authentication that an Ingress asks for, with the Secrets that hold its users.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Secret;

use super::{Context, ext_authz, token, url::Author};
use crate::{
    change::{Kind, ObjectName},
    outcome::{ObjectRef, Reason},
    translate::{
        parsed_annotations::{Layout, ParsedAuthentication, ParsedBasicAuth},
        text::{own_object, shorten},
    },
};
use ingress_model::{Access, Authentication, Basic, Filter, Satisfy, Users};

/// Key of the Secret with the htpasswd file.
const FILE: &str = "auth";

/// Returns the filters for clients' addresses and for authentication, or the reason why they cannot be made.
pub(super) fn make(
    parsed: ParsedAuthentication,
    access: Access,
    ingress: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Result<(Option<Filter>, Option<Filter>), (Reason, String)> {
    let ParsedAuthentication { basic, token, ext_authz, global, global_is_unreadable, takes_global, satisfy_any } =
        parsed;
    let is_basic = basic.is_wanted || basic.secret.is_some();
    let basic = is_basic.then(|| self::basic(&basic, ingress, context)).transpose()?;
    if basic.is_some() && token.is_wanted() && token.reads_authorization() && !satisfy_any {
        let message = "a request cannot have both a password and a token in `Authorization`; its rules answer 503, take \
         the token from another field with `jwt-header` or `jwt-cookie`, or set `satisfy: any`";
        return Err((Reason::InvalidAnnotation, message.into()));
    }
    let token = token.is_wanted().then(|| token::make(&token, ingress, object, context)).transpose()?;
    let (ext_authz, author) = match ext_authz.is_wanted() || !takes_global {
        true => (ext_authz, Author::Ingress),
        false if global_is_unreadable => {
            let message = "a setting `global-auth-…` is invalid; its rules answer 503 until it is corrected, or set \
             `enable-global-auth: \"false\"`";
            return Err((Reason::InvalidSetting, message.into()));
        }
        false => (global, Author::Operator),
    };
    let ext_authz = ext_authz::make(ext_authz, author, ingress, object, context)?;
    let asks = basic.is_some() || token.is_some() || ext_authz.is_some();
    let (access, satisfy) = match satisfy_any && asks {
        true => (None, Satisfy::Any(access)),
        false => (Some(access).filter(|access| !access.is_open()), Satisfy::All),
    };
    let authentication =
        asks.then(|| Filter::Authentication(Arc::new(Authentication { basic, token, ext_authz, satisfy })));
    Ok((access.map(|access| Filter::Access(Arc::new(access))), authentication))
}

fn basic(parsed: &ParsedBasicAuth, ingress: &ObjectName, context: &mut Context<'_>) -> Result<Basic, (Reason, String)> {
    let ParsedBasicAuth { is_wanted: _, secret, layout, realm } = parsed;
    let Some(value) = secret else {
        let message = "annotation `auth-type` requires a password, but there is no `auth-secret`; its rules answer 503, name a Secret";
        return Err((Reason::InvalidAnnotation, message.into()));
    };
    let Some(name) = own_object(value, &ingress.namespace) else {
        let message = format!(
            "annotation `auth-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.secret(&name) else {
        let message = format!("secret `{name}` of `auth-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let data = data(&stored.object);
    let (users, problems) = match layout {
        Layout::File => {
            let Some(text) = data.get(FILE) else {
                let message = format!(
                    "secret `{name}` of `auth-secret` has no `{FILE}` with the text of an htpasswd file; its rules answer 503, add it or set `auth-secret-type: auth-map`"
                );
                return Err((Reason::InvalidCredentials, message));
            };
            let (users, problems) = Users::of_file(text);
            let line = |(number, error)| format!("line {number} of `{FILE}`: {error}");
            (users, problems.into_iter().map(line).collect::<Vec<_>>())
        }
        Layout::Map => {
            let (users, problems) = Users::of_entries(data.iter().map(|(name, hash)| (*name, &**hash)));
            let user = |(name, error)| format!("user `{}`: {error}", shorten(name));
            (users, problems.into_iter().map(user).collect())
        }
    };
    for problem in problems.iter().take(MAX_REPORTS) {
        let message = format!("{problem}; that user has no access until then");
        context.report(&stored.refer(Kind::Secret, &name), Reason::InvalidCredentials, message);
    }
    if users.is_empty() {
        let message = format!("secret `{name}` of `auth-secret` has no user; its rules answer 503, add one");
        return Err((Reason::InvalidCredentials, message));
    }
    let malformed =
        || (Reason::InvalidAnnotation, "annotation `auth-realm` is not a valid header field value".to_owned());
    Basic::new(realm, &ingress.namespace, Arc::new(users)).ok_or_else(malformed)
}

/// Maximum number of problems reported per Secret. If the file is no htpasswd file at all, a report for every line
/// would not help.
const MAX_REPORTS: usize = 5;

/// Returns the content of a Secret as text. The API server lets `stringData` overwrite `data`.
fn data(secret: &Secret) -> BTreeMap<&str, Cow<'_, str>> {
    let stored = secret.data.iter().flatten().map(|(key, value)| (key.as_str(), String::from_utf8_lossy(&value.0)));
    let written = secret.string_data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().into()));
    stored.chain(written).collect()
}
