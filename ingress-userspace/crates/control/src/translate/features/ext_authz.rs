//! External authorization: how to call the service that authorizes requests, and its address.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    row::{Row, key},
    scope::{Refusal, Scope},
    url::{self, Author, Url, without_groups},
};
use crate::{
    change::Kind,
    outcome::Reason,
    translate::{
        compiled_expressions::Cost,
        destination::Purpose,
        text::shorten,
        values::{Expected, Read, boolean, location, seconds},
    },
};
use ingress_model::{
    AuthCache, AuthService, CacheTimes, ExpressionCost, ExtAuthz, HeaderEdit, HeaderEdits, PassedField, RequestRules,
    Template, duration,
};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedExtAuthz>] = &[
    key(
        "auth-always-set-cookie",
        "whether clients get the cookies of the service of `auth-url` with error responses, too",
    )
    .default("false")
    .reads(|value, parsed| parsed.own.always_set_cookie(value)),
    key(
        "auth-cache-duration",
        "how long answers of the service of `auth-url` are cached: a list, separated by commas, of statuses with a \
         time; a day is the longest",
    )
    .differs("times up to a day")
    .default("200 202 401 5m")
    .notes(long_cache)
    .reads(|value, parsed| parsed.own.cache_duration(value)),
    key(
        "auth-cache-key",
        "cache key, a text with variables such as `$cookie_session$http_authorization`: requests with the same value \
         share one cached answer. Without it, or if the value is empty, each request asks the service. Answers with \
         cookies, or with a `Cache-Control` that forbids it, are not cached",
    )
    .reads(|value, parsed| parsed.own.cache_key(value)),
    key("auth-method", "method of the requests to the service of `auth-url`")
        .default("GET")
        .or_refuse()
        .reads(|value, parsed| parsed.own.method(value)),
    key("auth-proxy-set-headers", "a ConfigMap with header fields for the requests to the service of `auth-url`")
        .naming(Kind::ConfigMap)
        .or_refuse()
        .reads(|value, parsed| parsed.own.proxy_set_headers(value)),
    key(
        "auth-request-redirect",
        "value of `X-Auth-Request-Redirect` for the service of `auth-url`, with variables; without it, path and query \
         of the request",
    )
    .reads(|value, parsed| parsed.own.request_redirect(value)),
    key(
        "auth-response-headers",
        "fields to copy from answers of the service of `auth-url` to requests for pods, separated by commas, as \
         `X-User` or, specific to xdp-ingress, under another name as `X-User=X-Remote-User`; pods never get these fields \
         from clients",
    )
    .or_refuse()
    .reads(|value, parsed| parsed.own.response_headers(value)),
    key(
        "auth-signin",
        "location that clients are redirected to, with 302, if the service of `auth-url` answers 401; with variables",
    )
    .differs("variables of answers, such as `$auth_resp_x_user`, are refused")
    .reads(|value, parsed| parsed.own.sign_in(value)),
    key(
        "auth-signin-redirect-param",
        "query argument of `auth-signin` for the URL of the original request; it is added if it is missing",
    )
    .default("rd")
    .reads(|value, parsed| parsed.own.redirect_param(value)),
    key(
        "auth-skip-rules",
        "requests that the service of `auth-url` is not asked about, one set of conditions per line, as in `redirect-rules`: \
         `method = OPTIONS`, or `path ~ ^/public/ and method = GET`. Subjects are `path`, `uri` (path and query) and \
         `method`. All forms of a path that a pod may read, for example with `%2f` or `..;`, must meet the conditions, and a path \
         with an escaped escape (`%252f`) is never exempt. A password or a token of the same rule is still required, unless \
         `satisfy` is `any`. At most 64 lines, with 32 expressions. Specific to xdp-ingress",
    )
    .reads(|value, parsed| {
        parsed.own.exempt = RequestRules::exemptions(value)
            .map_err(|error| format!("a set of conditions a line, as `method = OPTIONS` ({error})"))?;
        Ok(())
    }),
    key(
        "auth-timeout",
        "longest time that the service of `auth-url` has for its answer, within `proxy-read-timeout`, in seconds. Specific \
         to xdp-ingress",
    )
    .default("10")
    .reads(|value, parsed| seconds(value, &mut parsed.own.timeout)),
    key(
        "auth-url",
        "a service that authorizes each request, without its body: 2xx admits the request, 401 and 403 go to the \
         client. Any other status, or no answer within `auth-timeout` or `proxy-read-timeout`, becomes 500. The URL \
         names a Service (`http://NAME.NAMESPACE.svc.cluster.local/PATH`; in another namespace only if a ReferenceGrant there \
         or `--allow-cross-namespace-services` allows it), a path of the same host's rules (`https://$host/PATH`), or \
         another host under the rules for external names; that host's certificate is not verified",
    )
    .differs(
        "of variables, its host may be `$host` alone; Services of other namespaces need a \
         ReferenceGrant or `--allow-cross-namespace-services`",
    )
    .or_refuse()
    .leading_to(|value, _namespace| url::service_of(value))
    .reads(|value, parsed| parsed.own.url(value)),
    key("enable-global-auth", "whether the setting `global-auth-url` applies if there is no `auth-url`")
        .default("true")
        .not_on_routes("set `auth-url`, because the setting `global-auth-url` does not hold for routes")
        .reads(|value, parsed| boolean(value, &mut parsed.takes_global)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedExtAuthz>] = &[
    key("global-auth-always-set-cookie", "see the annotation `auth-always-set-cookie`; for `global-auth-url`")
        .default("false")
        .reads(|value, parsed| parsed.global.always_set_cookie(value)),
    key("global-auth-cache-duration", "see the annotation `auth-cache-duration`")
        .differs("times up to a day")
        .default("200 202 401 5m")
        .notes(long_cache)
        .reads(|value, parsed| parsed.global.cache_duration(value)),
    key("global-auth-cache-key", "see the annotation `auth-cache-key`")
        .reads(|value, parsed| parsed.global.cache_key(value)),
    key("global-auth-method", "see the annotation `auth-method`")
        .default("GET")
        .reads(|value, parsed| parsed.global.method(value)),
    key("global-auth-request-redirect", "see the annotation `auth-request-redirect`")
        .reads(|value, parsed| parsed.global.request_redirect(value)),
    key("global-auth-response-headers", "see the annotation `auth-response-headers`")
        .reads(|value, parsed| parsed.global.response_headers(value)),
    key("global-auth-signin", "see the annotation `auth-signin`")
        .differs("variables of answers, such as `$auth_resp_x_user`, are refused")
        .reads(|value, parsed| parsed.global.sign_in(value)),
    key("global-auth-signin-redirect-param", "see the annotation `auth-signin-redirect-param`")
        .default("rd")
        .reads(|value, parsed| parsed.global.redirect_param(value)),
    key(
        "global-auth-url",
        "see the annotation `auth-url`; for rules of Ingresses without it. If a `global-auth-…` setting is invalid, \
         these rules answer 503",
    )
    .differs(
        "of variables, its host may be `$host` alone; Services of other namespaces need a \
         ReferenceGrant or `--allow-cross-namespace-services`",
    )
    .leading_to(|value, _namespace| url::service_of(value))
    .reads(|value, parsed| parsed.global.url(value)),
];

/// The service of an Ingress, and the one for all Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedExtAuthz {
    own: ParsedCall,
    /// From the settings for all Ingresses; applies to an Ingress without an `auth-url` of its own …
    global: ParsedCall,
    /// … or set if a part of it could not be read.
    global_is_unreadable: bool,
    /// Whether `global` applies to this Ingress.
    takes_global: bool,
}

impl Default for ParsedExtAuthz {
    fn default() -> Self {
        Self {
            own: ParsedCall::default(),
            global: ParsedCall::default(),
            global_is_unreadable: false,
            takes_global: true,
        }
    }
}

/// The values of `auth-url` and the keys that belong to it, or of their settings for all Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ParsedCall {
    url: Option<Url>,
    method: Method,
    timeout: Duration,
    sign_in: Option<String>,
    redirect_param: String,
    response_headers: Vec<PassedField>,
    request_redirect: Option<Template>,
    always_set_cookie: bool,
    proxy_set_headers: Option<String>,
    cache_key: Option<Template>,
    cache_times: CacheTimes,
    exempt: RequestRules,
}

impl Default for ParsedCall {
    fn default() -> Self {
        Self {
            url: None,
            method: Method::GET,
            timeout: Duration::from_secs(10),
            sign_in: None,
            redirect_param: "rd".into(),
            response_headers: Vec::new(),
            request_redirect: None,
            always_set_cookie: false,
            proxy_set_headers: None,
            cache_key: None,
            cache_times: CacheTimes::default(),
            exempt: RequestRules::default(),
        }
    }
}

// === impl ParsedExtAuthz ===

impl ParsedExtAuthz {
    /// Records that the value of setting `key` could not be read: if it belongs to the service for all Ingresses, rules
    /// that need the service must not be served without it.
    pub(crate) fn note_unreadable(&mut self, key: &str) {
        self.global_is_unreadable |= key.starts_with("global-auth-");
    }

    /// Returns the cost of the expressions of `auth-skip-rules`.
    pub(super) fn cost(&self) -> Cost {
        let ExpressionCost { count, bytes } = self.own.exempt.cost();
        Cost { count, bytes }
    }

    /// Returns the call of the service that applies, if any, or the reason why it cannot be made.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Result<Option<ExtAuthz>, Refusal> {
        let Self { own, global, global_is_unreadable, takes_global } = self;
        if own.is_wanted() || !takes_global {
            return own.build(Author::Ingress, scope);
        }
        if global_is_unreadable {
            let message = "a setting `global-auth-…` is invalid; its rules answer 503 until it is corrected, or set \
             `enable-global-auth: \"false\"`";
            return Err((Reason::InvalidSetting, message.into()));
        }
        global.build(Author::Operator, scope)
    }
}

// === impl ParsedCall ===

/// Each method reads the value of one key, an annotation or a setting.
impl ParsedCall {
    fn url(&mut self, value: &str) -> Read {
        self.url = match value {
            "" => None,
            _ => Some(
                Url::parse(value)
                    .map_err(|why| format!("a URL as `http://NAME.NAMESPACE.svc.cluster.local/PATH` ({why})"))?,
            ),
        };
        Ok(())
    }

    fn method(&mut self, value: &str) -> Read {
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

    fn sign_in(&mut self, value: &str) -> Read {
        if !value.is_empty() {
            location(value)?;
        }
        self.sign_in = Some(value.to_owned()).filter(|value| !value.is_empty());
        Ok(())
    }

    fn redirect_param(&mut self, value: &str) -> Read {
        if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) {
            return Err("the name of an argument of a query".into());
        }
        value.clone_into(&mut self.redirect_param);
        Ok(())
    }

    fn response_headers(&mut self, value: &str) -> Read {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        let pairs: Vec<_> = names.map(|name| name.split_once('=').unwrap_or((name, name))).collect();
        let named = |names: Vec<&str>| {
            HeaderEdits::setting(names.into_iter().map(|name| (name.trim(), "")))
                .map_err(|error| format!("names of header fields, separated by commas ({error})"))
        };
        let from = named(pairs.iter().map(|(from, _)| *from).collect())?;
        let to = named(pairs.iter().map(|(_, to)| *to).collect())?;
        let both = from.iter().map(HeaderEdit::name).zip(to.iter().map(HeaderEdit::name));
        self.response_headers = both.map(|(from, to)| PassedField { from: from.clone(), to: to.clone() }).collect();
        Ok(())
    }

    fn request_redirect(&mut self, value: &str) -> Read {
        self.request_redirect = match value {
            "" => None,
            _ => Some(without_groups(location(value)?)?),
        };
        Ok(())
    }

    fn always_set_cookie(&mut self, value: &str) -> Read {
        boolean(value, &mut self.always_set_cookie)
    }

    fn proxy_set_headers(&mut self, value: &str) -> Read {
        self.proxy_set_headers = Some(value.to_owned());
        Ok(())
    }

    fn cache_key(&mut self, value: &str) -> Read {
        self.cache_key = cache_key(value)?;
        Ok(())
    }

    fn cache_duration(&mut self, value: &str) -> Read {
        self.cache_times =
            CacheTimes::parse(value).map_err(|error| format!("statuses with a time, as `200 202 401 5m` ({error})"))?;
        Ok(())
    }

    fn is_wanted(&self) -> bool {
        self.url.is_some()
    }

    /// Returns the call of the service at the URL, or the reason why it cannot be made. Problems of its destination are
    /// also reported, because the rules work again as soon as they are solved elsewhere.
    fn build(self, author: Author, scope: &mut Scope<'_, '_>) -> Result<Option<ExtAuthz>, Refusal> {
        let Self {
            url,
            method,
            timeout,
            sign_in,
            redirect_param,
            response_headers,
            request_redirect,
            always_set_cookie,
            proxy_set_headers,
            cache_key,
            cache_times,
            exempt,
        } = self;
        let Some(url) = url else { return Ok(None) };
        let service = find(&url, author, scope)?;
        let headers = match proxy_set_headers {
            Some(value) => fields(&value, scope)?,
            None => HeaderEdits::default(),
        };
        let invalid = |error: String| (Reason::InvalidAnnotation, format!("{error}; its rules answer 503, correct it"));
        let parse = |text: &str| Template::parse(text).map_err(|error| invalid(format!("`auth-signin`: {error}")));
        Ok(Some(ExtAuthz {
            service,
            target: url.into_target(),
            method,
            timeout,
            sign_in: sign_in.map(|location| parse(&returning(&location, &redirect_param))).transpose()?,
            response_headers: response_headers.into(),
            request_redirect: match request_redirect {
                Some(template) => template,
                None => parse("$request_uri")?,
            },
            always_set_cookie,
            headers,
            cache: cache_key.map(|key| AuthCache { key, times: cache_times }),
            exempt,
        }))
    }
}

/// Explains times that are longer than the longest one.
fn long_cache(value: &str) -> Option<Expected> {
    let mut times = value.split(',').filter_map(|part| duration::parse(part.split_whitespace().next_back()?));
    times.any(|time| time > CacheTimes::MAX).then(|| "longer than a day, which applies".into())
}

/// Parses the cache key of requests; `None` if it is empty.
fn cache_key(value: &str) -> Read<Option<Template>> {
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

fn find(url: &Url, author: Author, scope: &mut Scope<'_, '_>) -> Result<AuthService, Refusal> {
    if url.is_of_request() && scope.is_of_route() {
        let message = "annotation `auth-url` names the host of the request, whose rules a listener does not share; its \
                       rules answer 503, name a Service as `http://NAME.NAMESPACE.svc.cluster.local/PATH`";
        return Err((Reason::InvalidAnnotation, message.to_owned()));
    }
    if url.is_of_request() {
        return Ok(AuthService::SameHost);
    }
    let (key, host) = url.upstream("auth-url", author, Purpose::Auth, scope).ok_or_else(|| {
        let shown = shorten(url.shown());
        let message = format!(
            "the service at `{shown}` of `auth-url` cannot be reached; its rules answer 503, \
         correct the URL or the problem reported for its host"
        );
        (Reason::InvalidAnnotation, message)
    })?;
    Ok(AuthService::Upstream { key, host })
}

/// Returns the header fields in the ConfigMap `value`, or the reason why they are not available.
fn fields(value: &str, scope: &mut Scope<'_, '_>) -> Result<HeaderEdits, Refusal> {
    let name = scope.own("auth-proxy-set-headers", value, "ConfigMap")?;
    let Some(stored) = scope.lookup.config_map(&name) else {
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
