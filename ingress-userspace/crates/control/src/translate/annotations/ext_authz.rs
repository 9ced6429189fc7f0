//! Reads how to call an external authorization service, and finds its address.

use std::sync::Arc;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    super::{
        destination::{Asker, Purpose},
        values::{Read, boolean, location},
    },
    Context,
    url::{Author, without_groups},
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        parsed_annotations::{ParsedExtAuthz, Url},
        text::{own_object, shorten},
    },
};
use ingress_model::{AuthCache, AuthService, CacheTimes, ExtAuthz, HeaderEdit, HeaderEdits, Template};

// === impl ParsedExtAuthz ===

/// Each method reads the value of one key, an annotation or a setting.
impl ParsedExtAuthz {
    pub(in crate::translate) fn url(&mut self, value: &str) -> Read {
        self.url = match value {
            "" => None,
            _ => Some(
                Url::parse(value)
                    .map_err(|why| format!("a URL as `http://NAME.NAMESPACE.svc.cluster.local/PATH` ({why})"))?,
            ),
        };
        Ok(())
    }

    pub(in crate::translate) fn method(&mut self, value: &str) -> Read {
        self.method = match value {
            "" | "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "DELETE" => Method::DELETE,
            "OPTIONS" => Method::OPTIONS,
            _ => return Err("a method, as `GET` or `POST`".into()),
        };
        Ok(())
    }

    pub(in crate::translate) fn sign_in(&mut self, value: &str) -> Read {
        if !value.is_empty() {
            location(value)?;
        }
        self.sign_in = Some(value.to_owned()).filter(|value| !value.is_empty());
        Ok(())
    }

    pub(in crate::translate) fn redirect_param(&mut self, value: &str) -> Read {
        if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) {
            return Err("the name of an argument of a query".into());
        }
        value.clone_into(&mut self.redirect_param);
        Ok(())
    }

    pub(in crate::translate) fn response_headers(&mut self, value: &str) -> Read {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        let removals = HeaderEdits::setting(names.map(|name| (name, "")))
            .map_err(|error| format!("names of header fields, separated by commas ({error})"))?;
        self.response_headers = removals.iter().map(HeaderEdit::name).cloned().collect();
        Ok(())
    }

    pub(in crate::translate) fn request_redirect(&mut self, value: &str) -> Read {
        self.request_redirect = match value {
            "" => None,
            _ => Some(without_groups(location(value)?)?),
        };
        Ok(())
    }

    pub(in crate::translate) fn always_set_cookie(&mut self, value: &str) -> Read {
        boolean(value, &mut self.always_set_cookie)
    }

    pub(in crate::translate) fn proxy_set_headers(&mut self, value: &str) -> Read {
        self.proxy_set_headers = Some(value.to_owned());
        Ok(())
    }

    pub(in crate::translate) fn cache_key(&mut self, value: &str) -> Read {
        self.cache_key = key(value)?;
        Ok(())
    }

    pub(in crate::translate) fn cache_duration(&mut self, value: &str) -> Read {
        self.cache_times = CacheTimes::parse(value)
            .map_err(|error| format!("statuses with a time of at most a day, as `200 202 401 5m` ({error})"))?;
        Ok(())
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.url.is_some()
    }
}

/// Parses the cache key of requests; `None` if it is empty.
fn key(value: &str) -> Read<Option<Template>> {
    if value.is_empty() {
        return Ok(None);
    }
    let template = Template::parse(value).map_err(|error| format!("a text with variables ({error})"))?;
    // With a constant key, the first client's response would be used for all clients.
    if template.literal().is_some() {
        return Err("a text with variables that differ between requests".into());
    }
    without_groups(template).map(Some).map_err(Into::into)
}

/// Returns the call of the service at the URL in `parsed`, or the reason why it cannot be made. Problems of its
/// destination are also reported on `object`, because the rules work again as soon as they are solved elsewhere.
pub(super) fn make(
    parsed: ParsedExtAuthz,
    author: Author,
    ingress: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Result<Option<ExtAuthz>, (Reason, String)> {
    let ParsedExtAuthz {
        url,
        method,
        sign_in,
        redirect_param,
        response_headers,
        request_redirect,
        always_set_cookie,
        proxy_set_headers,
        cache_key,
        cache_times,
    } = parsed;
    let Some(url) = url else { return Ok(None) };
    let service = find(&url, author, ingress, object, context)?;
    let headers = match proxy_set_headers {
        Some(value) => fields(&value, ingress, context)?,
        None => HeaderEdits::default(),
    };
    let invalid = |error: String| (Reason::InvalidAnnotation, format!("{error}; its rules answer 503, correct it"));
    let parse = |text: &str| Template::parse(text).map_err(|error| invalid(format!("`auth-signin`: {error}")));
    Ok(Some(ExtAuthz {
        service,
        target: url.into_target(),
        method,
        sign_in: sign_in.map(|location| parse(&returning(&location, &redirect_param))).transpose()?,
        response_headers: response_headers.into(),
        request_redirect: match request_redirect {
            Some(template) => template,
            None => parse("$request_uri")?,
        },
        always_set_cookie,
        headers,
        cache: cache_key.map(|key| AuthCache { key, times: cache_times }),
    }))
}

/// Adds an argument with the URL to come back to, unless the location has one.
fn returning(location: &str, param: &str) -> String {
    let query = location.split_once('?').map(|(_, query)| query);
    let has_param = |query: &str| query.split('&').any(|pair| pair.split('=').next() == Some(param));
    match query {
        Some(query) if has_param(query) => location.to_owned(),
        _ => {
            let separator = if query.is_some() { '&' } else { '?' };
            format!("{location}{separator}{param}=$pass_access_scheme://$http_host$escaped_request_uri")
        }
    }
}

fn find(
    url: &Url,
    author: Author,
    ingress: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Result<AuthService, (Reason, String)> {
    if url.is_of_request() {
        return Ok(AuthService::SameHost);
    }
    let asker = Asker { purpose: Purpose::Auth, namespace: Arc::clone(&ingress.namespace) };
    let (key, host) = url.upstream("auth-url", author, &asker, object, context).ok_or_else(|| {
        let shown = shorten(url.shown());
        let message = format!(
            "the service at `{shown}` of `auth-url` cannot be reached; its rules answer 503, correct the URL or the problem reported for its host"
        );
        (Reason::InvalidAnnotation, message)
    })?;
    Ok(AuthService::Upstream { key, host })
}

/// Returns the header fields in the ConfigMap `value`, or the reason why they are not available.
fn fields(value: &str, ingress: &ObjectName, context: &mut Context<'_>) -> Result<HeaderEdits, (Reason, String)> {
    let Some(name) = own_object(value, &ingress.namespace) else {
        let message = format!(
            "annotation `auth-proxy-set-headers` names `{}`, which is in another namespace; its rules answer 503, name a ConfigMap of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.config_map(&name) else {
        let message =
            format!("ConfigMap `{name}` of `auth-proxy-set-headers` does not exist; its rules answer 503, create it");
        return Err((Reason::ConfigMapNotFound, message));
    };
    let ConfigMap { data, .. } = &*stored.object;
    let fields = data.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
    HeaderEdits::setting(fields).map_err(|error| {
        let message = format!(
            "ConfigMap `{name}` of `auth-proxy-set-headers`: {error}; its rules answer 503, correct the ConfigMap"
        );
        (Reason::InvalidAnnotation, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_url_has_one_return_parameter() {
        const BACK: &str = "$pass_access_scheme://$http_host$escaped_request_uri";
        for (location, param, expect) in [
            ("https://b.test/start", "rd", format!("https://b.test/start?rd={BACK}")),
            ("https://b.test/start?a=b", "back", format!("https://b.test/start?a=b&back={BACK}")),
            ("https://b.test/start?rd=$request_uri", "rd", "https://b.test/start?rd=$request_uri".into()),
            ("https://b.test/start?card=1", "rd", format!("https://b.test/start?card=1&rd={BACK}")),
        ] {
            assert_eq!(returning(location, param), expect);
        }
    }
}
