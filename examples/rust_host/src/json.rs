//! As much of JSON as a library's description needs: a checked text becomes a tree.

use std::str::FromStr;

const DEPTH: usize = 64;

#[derive(Debug)]
pub enum Value {
    /// `null`, `true`, `false` or a number, as it is written.
    Word(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    /// None for a text that is not JSON.
    pub fn parse(text: &str) -> Option<Value> {
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

    /// A string, or a word as it is written.
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
            '{' => Value::Object(self.row(depth, '}', Reader::member)?),
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
        let digits =
            word.strip_prefix('-').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit());
        let known =
            matches!(word, "null" | "true" | "false") || (digits && word.parse::<f64>().is_ok());
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
                if !(0xd800..0xdc00).contains(&unit) || !self.rest.starts_with("\\u") {
                    return Some(char::from_u32(unit).unwrap_or('\u{fffd}'));
                }
                self.rest = &self.rest[2..];
                let low = self.unit()?.wrapping_sub(0xdc00) & 0x3ff;
                char::from_u32(0x10000 + ((unit - 0xd800) << 10) + low)?
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        self.rest = &self.rest[4..];
        u32::from_str_radix(digits, 16).ok()
    }
}
