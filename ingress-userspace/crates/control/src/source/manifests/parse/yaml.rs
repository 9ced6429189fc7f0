//! Writes a YAML document as JSON. Types are decoded from JSON alone, as the API server does. A decoder for YAML would be
//! compiled for each of the hundreds of types that objects have.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Number;

/// Maximum number of nodes in one document, and half the maximum of events: enough for a `List` of some ten thousand
/// objects. A file far beyond is a mistake or an attack.
const MAX_NODES: usize = 8_000_000;

/// Limits on aliases (`*anchor`) of one document and the events they may repeat: enough for people, too few for an
/// alias bomb.
const MAX_ALIASES: usize = 1_000;
const MAX_ALIASED_EVENTS: usize = 100_000;

/// Returns the only document of `text` as JSON without line breaks. Numbers and booleans that are keys become texts. Keys
/// without a value are left out: for the API server, a field without one is absent.
///
/// # Errors
/// Fails if `text` breaks YAML's syntax, exceeds a limit, or has a value that JSON lacks, such as `.inf`.
pub(super) fn to_json(text: &str) -> Result<String, serde_saphyr::Error> {
    write(text, usize::MAX)
}

/// Returns the line of `text`, from 1, whose value [`to_json`] writes at `offset`; `None` if it is not known.
pub(super) fn line_at(text: &str, offset: usize) -> Option<usize> {
    // The decoder says where it was when the visitor gave up.
    let location = write(text, offset).err()?.location()?;
    usize::try_from(location.line()).ok()
}

fn write(text: &str, stop: usize) -> Result<String, serde_saphyr::Error> {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_nodes = MAX_NODES;
    budget.max_events = 2 * MAX_NODES;
    budget.max_aliases = MAX_ALIASES;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = MAX_ALIASED_EVENTS;
    options.with_snippet = false;
    // As in YAML 1.2: a namespace may be called `n`, and the value of an annotation `yes`.
    options.strict_booleans = true;
    let mut writer = Writer { json: String::with_capacity(text.len()), stop, is_field: false };
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| writer.deserialize(yaml))?;
    Ok(writer.json)
}

struct Writer {
    json: String,
    /// Length at which it gives up.
    stop: usize,
    /// Whether the next value is that of a field.
    is_field: bool,
}

impl Writer {
    fn put<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        self.json.push_str(text);
        if self.json.len() > self.stop { Err(E::custom("stopped")) } else { Ok(()) }
    }

    /// Ends a sequence or a mapping, without the comma after its last value.
    fn close<E: serde::de::Error>(&mut self, bracket: &str) -> Result<(), E> {
        if self.json.ends_with(',') {
            self.json.pop();
        }
        self.put(bracket)
    }
}

fn text_of<E: serde::de::Error>(text: &str) -> Result<String, E> {
    serde_json::to_string(text).map_err(E::custom)
}

impl<'de> DeserializeSeed<'de> for &mut Writer {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Writer {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON has")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.is_field {
            // The field is taken back.
            self.json.push_str("null");
            return Ok(());
        }
        self.put("null")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.put(if value { "true" } else { "false" })
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        let number = Number::from_f64(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))?;
        self.put(&number.to_string())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.put(&text_of(value)?)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        self.put("[")?;
        loop {
            self.is_field = false;
            if values.next_element_seed(&mut *self)?.is_none() {
                return self.close("]");
            }
            self.json.push(',');
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.put("{")?;
        while let Some(key) = entries.next_key::<String>()? {
            let begin = self.json.len();
            self.json.push_str(&text_of(&key)?);
            self.json.push(':');
            let value = self.json.len();
            self.is_field = true;
            entries.next_value_seed(&mut *self)?;
            if self.json.get(value..) == Some("null") {
                self.json.truncate(begin);
            } else {
                self.json.push(',');
            }
        }
        self.close("}")
    }
}
