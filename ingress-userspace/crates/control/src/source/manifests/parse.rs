//! Reads the objects of one manifest file. It opens no files and keeps no state.
//!
//! Each YAML document is read by itself, so that a broken one does not affect the others. Remarks never quote a
//! document that is, or may be, a Secret.

use std::{cell::Cell, fmt, marker::PhantomData, path::Path, sync::Arc};

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use crate::{
    change::{Kind, Object},
    gateway::{
        BackendTlsPolicy, Gateway, GatewayClass, ListenerSet,
        route::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, UdpRoute},
    },
    outcome::{ObjectRef, Origin, Outcome, Reason},
    source::strip,
};

mod yaml;

/// The content of a file.
#[derive(Debug, Default)]
pub struct ParsedFile {
    /// In order of appearance, with their namespaces filled in.
    pub objects: Vec<Object>,
    pub remarks: Vec<Outcome>,
}

/// Namespace of objects without one, as for `kubectl`.
const DEFAULT_NAMESPACE: &str = "default";

/// Maximum number of lines that are looked for in one document. Each line costs another pass over the document, and a `List` may
/// have ten thousand objects that cannot be read.
const MAX_LINES: usize = 20;

/// Maximum number of `List`s inside each other.
const MAX_LISTS: usize = 8;

/// Reads every object of `text`, the content of the file `path`. A name that ends in `.json` means JSON.
#[must_use]
pub fn parse(path: &Arc<Path>, text: &str) -> ParsedFile {
    let mut reader = DocumentReader { origin: Origin::File(Arc::clone(path)), parsed: ParsedFile::default() };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if path.extension().is_some_and(|extension| extension == "json") {
        let (position, lines) = (DocumentPosition { document: 1, line: 1 }, Cell::new(MAX_LINES));
        reader.part(Text { position, yaml: None, json: text, lines: &lines }, text, 0);
    } else {
        for (index, (line, document)) in documents(text).into_iter().enumerate() {
            reader.yaml(DocumentPosition { document: index + 1, line }, document);
        }
    }
    let mut parsed = reader.parsed;
    parsed.remarks.sort();
    parsed.remarks.dedup();
    parsed
}

/// The fields that identify a document.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DocumentHead {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Mapping<HeadMetadata>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HeadMetadata {
    name: Option<String>,
    namespace: Option<String>,
}

/// Fields by name. serde takes a sequence of the values for them, too, and a misplaced one may be that of a Secret.
#[derive(Clone, Debug)]
struct Mapping<T>(T);

#[derive(Deserialize)]
struct List<'t> {
    #[serde(borrow, default)]
    items: Vec<&'t RawValue>,
}

/// Where in the file a document begins; both count from 1.
#[derive(Clone, Copy)]
struct DocumentPosition {
    document: usize,
    line: usize,
}

/// Reason why a document could not be read, and the line if it is known.
struct ParseFailure {
    line: Option<usize>,
    reason: String,
    /// Whether the reason may hold values of the document.
    may_quote: bool,
}

/// The message for every Secret that cannot be read, since the parser's own message may quote its content.
const MALFORMED_SECRET: &str = "`data` and `stringData` must map names to text, base64 in `data`";

/// The message for a document that cannot be read as any object, if the parser's own message may quote values. The
/// document may be a Secret.
const MALFORMED: &str = "it is not an object with text for `apiVersion`, `kind` and `metadata.name`";
const DUPLICATE_KEY: &str = "a mapping holds the same key twice";
const MALFORMED_LIST: &str = "`items` must be a sequence of objects";
const DEEP_LIST: &str = "more than eight `List`s are inside each other; put their objects into one";

/// The message for YAML that cannot be written as JSON, if the parser's own message may quote values.
const NOT_JSON: &str = "keys must be text, and values must exist in JSON: there is no `.inf` or `.nan`";

struct DocumentReader {
    origin: Origin,
    parsed: ParsedFile,
}

/// Returns the documents of a YAML stream with the lines they begin at. A line of `---` always ends a document: no
/// scalar can hold it at the first column (YAML 1.2.2, 9.1.2).
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])) {
            documents.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, index + 1);
        }
        offset += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents.retain(|(_, document)| document.lines().any(is_content));
    documents
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start_matches("---").trim();
    !(line.is_empty() || line.starts_with(['#', '%']) || line == "...")
}

/// Returns the failure of a document that is no YAML.
fn no_yaml(position: DocumentPosition, error: &serde_saphyr::Error) -> ParseFailure {
    let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
    let reason = error.to_string();
    // The text counts lines within the document; the file's line is reported separately.
    let reason = reason.split(" at line ").next().unwrap_or_default().lines().next().unwrap_or_default().trim();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason).to_owned();
    let line = line.map(|line| position.line_in_file(line));
    match error {
        // The message quotes the key, which may be a misplaced value.
        serde_saphyr::Error::DuplicateMappingKey { .. } => ParseFailure { line, ..DUPLICATE_KEY.into() },
        error => ParseFailure { line, reason, may_quote: may_quote(error) },
    }
}

/// Returns `true` if the text of `error` may hold values of the document, beyond the one character that breaks the
/// syntax.
fn may_quote(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error::{Budget, Eof, ExternalMessage, Unexpected};
    // `ExternalMessage` is the scanner's message about the syntax.
    !matches!(error, Budget { .. } | Eof { .. } | ExternalMessage { .. } | Unexpected { .. })
}

/// A document.
#[derive(Clone, Copy)]
struct Text<'t> {
    position: DocumentPosition,
    /// As it is in the file, unless that is JSON.
    yaml: Option<&'t str>,
    json: &'t str,
    /// Number of lines that may still be looked for.
    lines: &'t Cell<usize>,
}

impl<'t> Text<'t> {
    /// Decodes `part` of the document's JSON.
    fn decode<T: Deserialize<'t>>(self, part: &'t str) -> Result<T, ParseFailure> {
        serde_json::from_str(part).map_err(|error| {
            let reason = error.to_string();
            let position = format!(" at line {} column {}", error.line(), error.column());
            let reason = reason.strip_suffix(&position).unwrap_or(&reason);
            let line = self.line(part, &error);
            ParseFailure {
                line,
                reason: if line.is_some() { reason.to_owned() } else { format!("{reason} (after this line)") },
                // For syntax errors, `serde_json` reports the expected text, and not the text found.
                may_quote: error.is_data(),
            }
        })
    }

    /// Returns the line in the file at which `part` cannot be decoded.
    fn line(self, part: &str, error: &serde_json::Error) -> Option<usize> {
        self.lines.set(self.lines.get().checked_sub(1)?);
        let start = part.as_ptr().addr().checked_sub(self.json.as_ptr().addr())?;
        let line = match self.yaml {
            // The JSON has one line. A value that is refused for its first byte begins after the last byte that was read.
            Some(yaml) => {
                let read = start + error.column().checked_sub(1)?;
                let is_before = matches!(self.json.as_bytes().get(read), Some(b':' | b',' | b'['));
                yaml::line_at(yaml, read + usize::from(is_before))?
            }
            None => self.json.get(..start)?.matches('\n').count() + error.line(),
        };
        Some(self.position.line_in_file(line))
    }
}

/// Reads an object of `kind`. Fills in the default namespace, and drops fields that are never used.
fn decode(kind: Kind, text: Text<'_>, part: &str) -> Result<Object, ParseFailure> {
    match kind {
        Kind::Ingress => read(kind, text, part, strip::ingress),
        Kind::IngressClass => read(kind, text, part, strip::ingress_class),
        Kind::Service => read(kind, text, part, strip::service),
        Kind::EndpointSlice => read(kind, text, part, strip::endpoint_slice),
        Kind::ConfigMap => read(kind, text, part, strip::config_map),
        Kind::Node => read(kind, text, part, strip::node),
        Kind::Namespace => read(kind, text, part, strip::namespace),
        // Both versions have the same fields.
        Kind::ReferenceGrant => read(kind, text, part, strip::reference_grant::<false>),
        Kind::GatewayClass => read(kind, text, part, strip::gateway_api::<GatewayClass>),
        Kind::Gateway => read(kind, text, part, strip::gateway_api::<Gateway>),
        Kind::ListenerSet => read(kind, text, part, strip::gateway_api::<ListenerSet>),
        Kind::HttpRoute => read(kind, text, part, strip::gateway_api::<HttpRoute>),
        Kind::GrpcRoute => read(kind, text, part, strip::gateway_api::<GrpcRoute>),
        Kind::TlsRoute => read(kind, text, part, strip::gateway_api::<TlsRoute>),
        Kind::TcpRoute => read(kind, text, part, strip::gateway_api::<TcpRoute>),
        Kind::UdpRoute => read(kind, text, part, strip::gateway_api::<UdpRoute>),
        Kind::BackendTlsPolicy => read(kind, text, part, strip::gateway_api::<BackendTlsPolicy>),
        Kind::Secret => read(kind, text, part, strip::secret).map_err(|failure| ParseFailure {
            reason: MALFORMED_SECRET.into(),
            may_quote: false,
            ..failure
        }),
    }
}

fn read<K: DeserializeOwned + Metadata<Ty = ObjectMeta>>(
    kind: Kind,
    text: Text<'_>,
    part: &str,
    keep: fn(K) -> Object,
) -> Result<Object, ParseFailure> {
    let mut object: K = text.decode(part)?;
    namespace(kind, object.metadata_mut());
    Ok(keep(object))
}

fn namespace(kind: Kind, metadata: &mut ObjectMeta) {
    let namespace = metadata.namespace.take().filter(|namespace| !namespace.is_empty());
    metadata.namespace = kind.is_namespaced().then(|| namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.into()));
}

// === impl DocumentReader ===

impl DocumentReader {
    fn yaml(&mut self, position: DocumentPosition, text: &str) {
        match yaml::to_json(text) {
            Ok(json) if json == "null" => {}
            Ok(json) => {
                let lines = Cell::new(MAX_LINES);
                self.part(Text { position, yaml: Some(text), json: &json, lines: &lines }, &json, 0);
            }
            Err(error) => {
                let failure = no_yaml(position, &error).or(NOT_JSON);
                self.fail(&DocumentHead::default(), position, failure);
            }
        }
    }

    /// Reads `part` of a document: all of it, or an object in so many `lists`.
    fn part(&mut self, text: Text<'_>, part: &str, lists: usize) {
        let position = text.position;
        let head: DocumentHead = match text.decode(part) {
            Ok(Mapping(head)) => head,
            Err(failure) => return self.fail(&DocumentHead::default(), position, failure.or(MALFORMED)),
        };
        if head.kind.as_deref() == Some("List") {
            if lists == MAX_LISTS {
                return self.fail(&head, position, DEEP_LIST.into());
            }
            match text.decode::<List<'_>>(part) {
                Ok(List { items }) => items.iter().for_each(|item| self.part(text, item.get(), lists + 1)),
                Err(failure) => self.fail(&head, position, failure.or(MALFORMED_LIST)),
            }
            return;
        }
        let (Some(api_version), Some(kind)) = (head.api_version.as_deref(), head.kind.as_deref()) else {
            return self.fail(&head, position, "`apiVersion` and `kind` are needed".into());
        };
        let Some(kind) = Kind::parse(api_version, kind) else {
            let object =
                ObjectRef { kind: kind.into(), namespace: "".into(), name: "".into(), origin: self.origin.clone() };
            let message = format!("objects of `{api_version}` `{kind}` are not read");
            self.parsed.remarks.push(Outcome::new(object, Reason::UnknownKind, message));
            return;
        };
        if head.metadata.as_ref().and_then(|Mapping(metadata)| metadata.name.as_deref()).is_none_or(str::is_empty) {
            return self.fail(&head, position, "`metadata.name` is needed".into());
        }
        match decode(kind, text, part) {
            Ok(object) => self.parsed.objects.push(object),
            Err(failure) => self.fail(&head, position, failure),
        }
    }

    /// Reports the object as far as its head is known, else the file.
    fn fail(&mut self, head: &DocumentHead, position: DocumentPosition, failure: ParseFailure) {
        let DocumentHead { api_version: _, kind, metadata } = head;
        let HeadMetadata { name, namespace } = metadata.clone().map(|Mapping(metadata)| metadata).unwrap_or_default();
        let object = match (kind, name) {
            (Some(kind), Some(name)) => ObjectRef {
                kind: kind.as_str().into(),
                namespace: namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE).into(),
                name: name.into(),
                origin: self.origin.clone(),
            },
            _ => file(&self.origin),
        };
        let ParseFailure { line, reason, may_quote: _ } = failure;
        let DocumentPosition { document, line: first } = position;
        let message = format!(
            "document {document}, line {}: {reason}; its last valid content stays in use until it is corrected",
            line.unwrap_or(first)
        );
        self.parsed.remarks.push(Outcome::new(object, Reason::InvalidObject, message));
    }
}

/// Refers to the file itself, if no object in it can be named.
pub(super) fn file(origin: &Origin) -> ObjectRef {
    ObjectRef { kind: "File".into(), namespace: "".into(), name: "".into(), origin: origin.clone() }
}

// === impl Mapping ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Mapping<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Mapping<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Mapping)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

// === impl DocumentPosition ===

impl DocumentPosition {
    /// Returns the line of the file for a `line` of the document, from 1.
    fn line_in_file(self, line: usize) -> usize {
        self.line + line.saturating_sub(1)
    }
}

// === impl ParseFailure ===

impl ParseFailure {
    /// Returns this failure, with `reason` in place of a text that may quote the document.
    fn or(self, reason: &str) -> Self {
        if self.may_quote { Self { reason: reason.into(), may_quote: false, ..self } } else { self }
    }
}

impl From<&str> for ParseFailure {
    fn from(reason: &str) -> Self {
        Self { line: None, reason: reason.into(), may_quote: false }
    }
}

#[cfg(test)]
mod tests;
