//! A JSON parser for library descriptions.

use std::collections::HashSet;
use std::str::FromStr;

const DEPTH: usize = 64;
// Limits as in the package's base/json_text.py, so that a small text cannot demand much memory.
pub(crate) const MOST_BYTES: usize = 8 << 20;
const MOST_VALUES: usize = 1 << 18;
const MOST_NAMES: usize = 256;

#[derive(Debug)]
pub enum Value {
    /// `null`, `true`, `false` or a number, as its JSON text.
    Word(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    /// `None` for a text that is not valid JSON, or exceeds the limits.
    pub fn parse(text: &str) -> Option<Value> {
        let values = text.bytes().filter(|b| b"[{,:".contains(b)).count();
        if text.len() > MOST_BYTES || values > MOST_VALUES {
            return None;
        }
        let mut reader = Reader { rest: text };
        let value = reader.value(DEPTH)?;
        reader.rest.is_empty().then_some(value)
    }

    pub fn member(&self, name: &str) -> Option<&Value> {
        self.object()?.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    pub fn object(&self) -> Option<&[(String, Value)]> {
        match self {
            Value::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn list(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// A string, or the JSON text of a word; `None` for lists and objects.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Text(text) | Value::Word(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Word(word) => i64::from_str(word).ok(),
            _ => None,
        }
    }
}

/// Whether a word is a JSON number such as `-0.5e+10`: no part lacks digits, no leading zeros.
fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let word = word.strip_prefix('-').unwrap_or(word);
    let (mantissa, exponent) = word.split_once(['e', 'E']).unwrap_or((word, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let led = whole.len() > 1 && whole.starts_with('0');
    digits(whole) && digits(fraction) && digits(exponent) && !led
}

/// Rejects duplicate names, because JSON readers differ in which one they use, and too many
/// members.
fn different(members: Vec<(String, Value)>) -> Option<Vec<(String, Value)>> {
    let names: HashSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    let all = names.len() == members.len() && members.len() <= MOST_NAMES;
    all.then_some(members)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\t', '\r']);
    }

    fn eat(&mut self, c: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(c)?;
        Some(())
    }

    /// A value and the white space around it.
    fn value(&mut self, depth: usize) -> Option<Value> {
        self.space();
        let value = match self.rest.chars().next()? {
            '"' => Value::Text(self.string()?),
            '[' => Value::List(self.row(depth, ']', |r, d| r.value(d))?),
            '{' => Value::Object(different(self.row(depth, '}', Reader::member)?)?),
            _ => Value::Word(self.word()?),
        };
        self.space();
        Some(value)
    }

    fn member(&mut self, depth: usize) -> Option<(String, Value)> {
        self.space();
        let key = self.string()?;
        self.space();
        self.eat(':')?;
        Some((key, self.value(depth)?))
    }

    /// Items between brackets.
    fn row<T>(
        &mut self,
        depth: usize,
        close: char,
        item: impl Fn(&mut Self, usize) -> Option<T>,
    ) -> Option<Vec<T>> {
        let depth = depth.checked_sub(1)?;
        let mut items = Vec::new();
        self.rest = &self.rest[1..];
        self.space();
        while !self.rest.starts_with(close) {
            if !items.is_empty() {
                self.eat(',')?;
            }
            items.push(item(self, depth)?);
        }
        self.eat(close)?;
        Some(items)
    }

    fn word(&mut self) -> Option<String> {
        let end = self.rest.find([',', ']', '}', ' ', '\n', '\t', '\r']);
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        let known = matches!(word, "null" | "true" | "false") || is_number(word);
        known.then(|| word.to_string())
    }

    fn string(&mut self) -> Option<String> {
        self.eat('"')?;
        let mut made = String::new();
        loop {
            let mut chars = self.rest.chars();
            let c = chars.next()?;
            self.rest = chars.as_str();
            match c {
                '"' => return Some(made),
                '\\' => made.push(self.escape()?),
                c if c < ' ' => return None,
                c => made.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(match c {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '"' | '\\' | '/' => c,
            'u' => {
                let unit = self.unit()?;
                let low = self.rest.strip_prefix("\\u").map(|rest| Reader { rest });
                let low = low.and_then(|mut reader| reader.unit());
                match low.filter(|low| unit >> 10 == 0x36 && low >> 10 == 0x37) {
                    Some(low) => {
                        self.rest = &self.rest[6..];
                        char::from_u32(0x10000 + ((unit & 0x3ff) << 10) + (low & 0x3ff))?
                    }
                    None => char::from_u32(unit).unwrap_or('\u{fffd}'),
                }
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        self.rest = &self.rest[4..];
        u32::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn values_are_found() {
        let text = r#" {"a": [1, -2.5e3, true, null], "b\u00e9\ud83d\ude00\n": {"c": "\"\\/"}} "#;
        let value = Value::parse(text).unwrap();
        assert_eq!(value.member("a").unwrap().list().unwrap()[0].number(), Some(1));
        assert_eq!(value.member("a").unwrap().list().unwrap()[1].number(), None);
        let inner = value.member("bé😀\n").unwrap();
        assert_eq!(inner.member("c").unwrap().text().unwrap(), "\"\\/");
        assert!(value.member("d").is_none());
        let lone = Value::parse(r#""\ud83dx\ude00\ud83d\ud83d\ude00""#).unwrap();
        assert_eq!(lone.text().unwrap(), "\u{fffd}x\u{fffd}\u{fffd}😀");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":1,}",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "nul",
            "-",
            "+1",
            "01",
            "1.",
            ".5",
            "1e",
            "inf",
            "NaN",
            "\"\n\"",
            "1 1",
            &deep,
        ] {
            assert!(Value::parse(text).is_none(), "{text}");
        }
    }
}
