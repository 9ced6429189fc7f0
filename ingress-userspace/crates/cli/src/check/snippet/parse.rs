//! Parses text in the syntax of nginx' configuration into directives, in linear time. The meaning of directives is unknown
//! here, and no file is included.
//!
//! Syntax: <https://nginx.org/en/docs/beginners_guide.html#conf_structure>. Bodies of Lua blocks are skipped.

/// A directive with its arguments, and its block if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Line of its name; the first one is 1.
    pub line: usize,
    pub name: String,
    pub arguments: Vec<String>,
    pub block: Option<Vec<Self>>,
}

/// Reason why a text cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    pub line: usize,
    pub reason: &'static str,
}

/// Maximum nesting depth of blocks; real snippets have three.
const MAX_DEPTH: usize = 16;
/// Maximum size of a text in bytes. An object of Kubernetes may have 1.5 MiB, and its annotations 256 KiB.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Ends of the names of directives with a block of Lua.
const LUA: [&str; 2] = ["_by_lua_block", "_lua_block"];

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Semicolon,
    Open,
    Close,
    End,
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

/// A block that is not closed yet, and the directive that it belongs to.
struct OpenBlock {
    line: usize,
    words: Vec<String>,
    outer: Vec<Directive>,
}

/// Parses `text` into its directives.
///
/// # Errors
/// Names the first line that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Directive>, ParseError> {
    if text.len() > MAX_BYTES {
        return Err(ParseError { line: 1, reason: "the text is larger than 1 MiB" });
    }
    let mut lexer = Lexer { text, at: 0, line: 1 };
    let (mut open, mut directives, mut words, mut first) = (Vec::<OpenBlock>::new(), Vec::new(), Vec::new(), 1);
    loop {
        let token = lexer.next()?;
        let error = |reason| Err(ParseError { line: lexer.line, reason });
        match token {
            Token::Word(word) => {
                if words.is_empty() {
                    first = lexer.line;
                }
                words.push(word);
            }
            Token::Semicolon if words.is_empty() => return error("a `;` ends no directive"),
            Token::Semicolon => directives.push(Directive::of(first, std::mem::take(&mut words), None)),
            Token::Open if words.is_empty() => return error("a `{` follows no directive"),
            Token::Open if LUA.iter().any(|end| words[0].ends_with(end)) => {
                lexer.skip_block()?;
                directives.push(Directive::of(first, std::mem::take(&mut words), Some(Vec::new())));
            }
            Token::Open if open.len() >= MAX_DEPTH => return error("blocks are nested too deeply"),
            Token::Open => open.push(OpenBlock {
                line: first,
                words: std::mem::take(&mut words),
                outer: std::mem::take(&mut directives),
            }),
            Token::Close if !words.is_empty() => return error("a `}` follows a directive without `;`"),
            Token::Close => {
                let Some(OpenBlock { line, words, outer }) = open.pop() else {
                    return error("a `}` closes no block");
                };
                let block = std::mem::replace(&mut directives, outer);
                directives.push(Directive::of(line, words, Some(block)));
            }
            Token::End if !words.is_empty() => return error("the last directive has no `;`"),
            Token::End => match open.pop() {
                Some(OpenBlock { line, .. }) => return Err(ParseError { line, reason: "a `{` is not closed" }),
                None => return Ok(directives),
            },
        }
    }
}

// === impl Directive ===

impl Directive {
    fn of(line: usize, mut words: Vec<String>, block: Option<Vec<Self>>) -> Self {
        let name = if words.is_empty() { String::new() } else { words.remove(0) };
        Self { line, name, arguments: words, block }
    }
}

// === impl Lexer ===

impl Lexer<'_> {
    fn next(&mut self) -> Result<Token, ParseError> {
        loop {
            let Some(character) = self.peek() else { return Ok(Token::End) };
            match character {
                '#' => self.skip_line(),
                character if character.is_ascii_whitespace() => self.bump(character),
                ';' | '{' | '}' => {
                    self.bump(character);
                    return Ok(match character {
                        ';' => Token::Semicolon,
                        '{' => Token::Open,
                        _ => Token::Close,
                    });
                }
                quote @ ('"' | '\'') => return self.quoted(quote).map(Token::Word),
                _ => return Ok(Token::Word(self.word())),
            }
        }
    }

    /// Reads an unquoted word. `${` begins a variable and no block.
    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(character) = self.peek() {
            let is_variable = character == '{' && word.ends_with('$');
            if character.is_ascii_whitespace() || character == ';' || (character == '{' && !is_variable) {
                break;
            }
            self.bump(character);
            match character {
                '\\' => word.push_str(&self.escaped()),
                _ => word.push(character),
            }
        }
        word
    }

    fn quoted(&mut self, quote: char) -> Result<String, ParseError> {
        let begin = self.line;
        self.bump(quote);
        let mut word = String::new();
        while let Some(character) = self.peek() {
            self.bump(character);
            match character {
                '\\' => word.push_str(&self.escaped()),
                _ if character == quote => {
                    // nginx demands a separator here, so that text in two quotations is no surprise.
                    return match self.peek() {
                        Some(next) if !next.is_ascii_whitespace() && !";{)".contains(next) => {
                            Err(ParseError { line: self.line, reason: "text follows a quotation mark directly" })
                        }
                        _ => Ok(word),
                    };
                }
                _ => word.push(character),
            }
        }
        Err(ParseError { line: begin, reason: "a quotation mark is not closed" })
    }

    /// Returns the text of an escape whose `\` has been read. nginx removes the `\` before quotation marks and another `\`,
    /// and keeps it before other characters, which are parts of expressions.
    fn escaped(&mut self) -> String {
        let Some(character) = self.peek() else { return "\\".to_owned() };
        self.bump(character);
        match character {
            '"' | '\'' | '\\' => character.to_string(),
            't' => "\t".to_owned(),
            'r' => "\r".to_owned(),
            'n' => "\n".to_owned(),
            other => format!("\\{other}"),
        }
    }

    /// Skips the rest of a block whose `{` has been read, up to its `}`.
    fn skip_block(&mut self) -> Result<(), ParseError> {
        let (begin, mut depth) = (self.line, 1_usize);
        while let Some(character) = self.peek() {
            self.bump(character);
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(ParseError { line: begin, reason: "a `{` is not closed" })
    }

    fn skip_line(&mut self) {
        while let Some(character) = self.peek().filter(|character| *character != '\n') {
            self.bump(character);
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self, character: char) {
        self.at += character.len_utf8();
        self.line += usize::from(character == '\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(directives: &[Directive]) -> String {
        directives
            .iter()
            .map(|Directive { line, name, arguments, block }| {
                let block = block.as_ref().map(|block| format!(" {{ {}}}", text(block))).unwrap_or_default();
                format!("{line}:{name}{arguments:?}{block} ")
            })
            .collect()
    }

    #[test]
    fn words_quotations_comments_and_blocks_are_read() {
        for (source, expect) in [
            ("", ""),
            ("a;", "1:a[] "),
            ("# only\n\n a b  c; # end", "3:a[\"b\", \"c\"] "),
            ("a \"b c\" 'd\"e' f\\ g;", "1:a[\"b c\", \"d\\\"e\", \"f\\\\ g\"] "),
            ("a \"b;{}#\" ${c}d;", "1:a[\"b;{}#\", \"${c}d\"] "),
            ("location ~ \\.git$ {\n deny all; }", "1:location[\"~\", \"\\\\.git$\"] { 2:deny[\"all\"] } "),
            ("if ($a = \"b\") { return 403; }", "1:if[\"($a\", \"=\", \"b\", \")\"] { 1:return[\"403\"] } "),
            ("a 'b\nc';d;", "1:a[\"b\\nc\"] 2:d[] "),
            ("x_by_lua_block { if a then { } end 'it' } y;", "1:x_by_lua_block[] { } 1:y[] "),
            ("a b#c;", "1:a[\"b#c\"] "),
        ] {
            assert_eq!(parse(source).map(|directives| text(&directives)), Ok(expect.to_owned()), "{source}");
        }
    }

    #[test]
    fn torn_text_names_its_line() {
        for (source, line, reason) in [
            ("a", 1, "no `;`"),
            ("a;\nb {", 2, "not closed"),
            ("}", 1, "closes no block"),
            (";", 1, "ends no directive"),
            ("{", 1, "follows no directive"),
            ("a { b }", 1, "without `;`"),
            ("a \"b", 1, "not closed"),
            ("a\n'", 2, "not closed"),
            ("a \"b\"c;", 1, "directly"),
            ("a\\", 1, "no `;`"),
            ("content_by_lua_block { {", 1, "not closed"),
            (&"a {".repeat(20), 1, "too deeply"),
            (&"a;\n".repeat(400_000), 1, "larger"),
        ] {
            let error = parse(source).expect_err(source);
            assert!(error.line == line && error.reason.contains(reason), "{source:.20}: {error:?}");
        }
    }

    #[test]
    fn text_of_a_mebibyte_is_read() {
        for piece in ["a b;", "a {}", "\\", "\"x\" ", "# \n", "${", "é;"] {
            // An end in any state is a result.
            let _result = parse(&piece.repeat(MAX_BYTES / piece.len())).is_ok();
        }
    }
}
