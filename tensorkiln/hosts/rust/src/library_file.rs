//! Reads the description of a library from the ELF file, without running any of its code.

use crate::digest;
use crate::error::{self, Error, Result};
use crate::json::{Value, MOST_BYTES};
use crate::tensor::DType;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const METADATA_VERSION: i64 = 6;
const SECTION: &[u8] = b".kiln.meta\0";
const ARTIFACTS: &[u8] = b".kiln.artifacts\0";
const WEIGHTS: &[u8] = b".kiln.weights\0";
const O_NONBLOCK: i32 = 0o4000; // the value on Linux

/// A dimension: a constant, or an expression of symbols such as `n * 4`, whose values depend on the
/// inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    Fixed(i64),
    Open(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(out, "{size}"),
            Dim::Open(text) => out.write_str(text),
        }
    }
}

/// A parameter of a function.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    /// The element type, `float32`; a type that is not a tensor's or number's in words.
    pub dtype: String,
    /// `in`, `out`, `inout` or `scalar`.
    pub role: String,
    /// `None` for a scalar, a value that is not a tensor, and a tensor of unknown rank.
    pub shape: Option<Vec<Dim>>,
}

impl Param {
    /// `None` unless the parameter is a tensor or number of a known element type.
    pub fn element_type(&self) -> Option<DType> {
        DType::named(&self.dtype)
    }
}

impl fmt::Display for Param {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.dtype)?;
        match &self.shape {
            Some(shape) => write!(out, " [{}]", join(shape)),
            None => Ok(()),
        }
    }
}

/// A function of a library.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// `graph`; `tensor`, whose `inputs` are all its parameters; or `outer`, which takes values.
    pub kind: String,
    pub inputs: Vec<Param>,
    pub outputs: Vec<Param>,
}

/// The items as text, separated by commas.
pub fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

pub fn no_library(path: &str, what: &str) -> Error {
    Error::new(error::ERROR_LIBRARY, format!("'{path}' is not a Tensorkiln library: {what}"))
}

fn unreadable(path: &str, reason: &std::io::Error) -> Error {
    if reason.kind() == ErrorKind::NotFound {
        return Error::new(error::ERROR_FILE, format!("no such file: '{path}'"));
    }
    let text = reason.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    Error::new(error::ERROR_FILE, format!("cannot read '{path}': {words}"))
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// An open file, whose first bytes may be in memory.
struct Bytes {
    file: File,
    size: u64,
    held: Vec<u8>,
}

impl Bytes {
    fn has(&self, at: u64, size: u64) -> bool {
        at <= self.size && size <= self.size - at
    }

    fn starts_with(&mut self, at: u64, wanted: &[u8]) -> std::io::Result<bool> {
        Ok(self.read(at, wanted.len() as u64)?.as_deref() == Some(wanted))
    }

    /// `None` if the file is shorter.
    fn read(&mut self, at: u64, size: u64) -> std::io::Result<Option<Vec<u8>>> {
        if !self.has(at, size) {
            return Ok(None);
        }
        if let Some(bytes) = self.held.get(at as usize..(at + size) as usize) {
            return Ok(Some(bytes.to_vec()));
        }
        let mut bytes = vec![0; size as usize];
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut bytes)?;
        Ok(Some(bytes))
    }
}

/// Reads all that the digest covers into memory; the inner error says how the file is damaged.
/// Without a digest nothing is read.
fn check_digest(bytes: &mut Bytes) -> std::io::Result<std::result::Result<(), String>> {
    let head = match bytes.read(0, 64)? {
        Some(head) if head.starts_with(b"\x7fELF\x02\x01") => head,
        _ => return Ok(Ok(())),
    };
    let (entry, count) = (number(&head, 58, 2), number(&head, 60, 2));
    let place = number(&head, 40, 8).checked_add(entry * count).unwrap_or(u64::MAX - 7);
    let place = place.div_ceil(8) * 8;
    if count == 0 || !bytes.has(place, digest::BYTES) {
        return Ok(Ok(()));
    }
    match bytes.read(place, digest::NAME.len() as u64)? {
        Some(name) if digest::is_named(&name) => (),
        _ => return Ok(Ok(())),
    }
    let covered = bytes.read(0, place + digest::BYTES)?.unwrap_or_default();
    if let Some(fault) = digest::damage(&covered, bytes.size) {
        return Ok(Err(fault));
    }
    bytes.held = covered;
    Ok(Ok(()))
}

/// What is read from the ELF header and its sections.
struct Sections {
    machine: u64,
    metadata: Vec<u8>,
    needs_name: bool,
}

type Found = std::io::Result<std::result::Result<Sections, &'static str>>;

/// What a file says of itself; the inner error says what is wrong with it.
fn read_sections(bytes: &mut Bytes) -> Found {
    let head = match bytes.read(0, 64)? {
        Some(head) if head.starts_with(b"\x7fELF") => head,
        _ => return Ok(Err("not an ELF shared library")),
    };
    if head[4] != 2 || head[5] != 1 {
        return Ok(Err("not a 64-bit little-endian ELF file"));
    }
    let (table, count, names) = (number(&head, 40, 8), number(&head, 60, 2), number(&head, 62, 2));
    let table = match bytes.read(table, 64 * count)? {
        Some(table) if number(&head, 58, 2) == 64 && (1..=4096).contains(&count) => table,
        _ => return Ok(Err("its section table is damaged or cut off")),
    };
    if names >= count {
        return Ok(Err("its section names are damaged"));
    }
    let start = number(&table, 64 * names as usize + 24, 8);
    let (mut found, mut needs_name) = (None, false);
    for row in table.chunks_exact(64).filter(|row| number(row, 4, 4) != 8) {
        let name = start.saturating_add(number(row, 0, 4));
        let (offset, size) = (number(row, 24, 8), number(row, 32, 8));
        if number(row, 4, 4) == 3 && number(row, 8, 8) & 2 != 0 {
            let names = bytes.read(offset, size)?.unwrap_or_default(); // for the dynamic loader
            needs_name |= names.windows(6).any(|word| word == b"ORIGIN");
        }
        let is_whole = bytes.has(offset, size);
        if !is_whole && bytes.starts_with(name, ARTIFACTS)? {
            return Ok(Err("its section .kiln.artifacts is cut off"));
        }
        if !is_whole && bytes.starts_with(name, WEIGHTS)? {
            return Ok(Err("its section .kiln.weights is cut off"));
        }
        if found.is_none() && bytes.starts_with(name, SECTION)? {
            if !is_whole {
                return Ok(Err("its section .kiln.meta is cut off"));
            }
            if size > MOST_BYTES as u64 {
                return Ok(Err("its metadata is not JSON")); // as a longer text would be
            }
            found = bytes.read(offset, size)?;
        }
    }
    let machine = number(&head, 18, 2);
    Ok(found
        .map(|metadata| Sections { machine, metadata, needs_name })
        .ok_or("it has no section .kiln.meta"))
}

fn check_machine(path: &str, machine: u64) -> Result<()> {
    let name = match machine {
        3 => "i386".to_string(),
        40 => "arm".to_string(),
        62 => "x86_64".to_string(),
        183 => "aarch64".to_string(),
        243 => "riscv64".to_string(),
        other => format!("ELF machine {other}"),
    };
    let here = std::env::consts::ARCH;
    if name == here {
        return Ok(());
    }
    let sentence = format!("'{path}' is compiled for {name}, this machine is {here}");
    Err(Error::new(error::ERROR_MACHINE, sentence))
}

fn read_param(value: &Value, role: &str) -> Option<Param> {
    let dim = |d: &Value| match d {
        Value::Text(text) => Some(Dim::Open(text.clone())),
        other => other.number().map(Dim::Fixed),
    };
    let shape = match value.member("shape").and_then(Value::list) {
        Some(dims) => Some(dims.iter().map(dim).collect::<Option<Vec<Dim>>>()?),
        None => None,
    };
    Some(Param {
        name: value.member("name")?.text()?,
        dtype: value.member("dtype")?.text()?,
        role: value.member("role").map_or(Some(role.to_string()), Value::text)?,
        shape,
    })
}

fn read_function(value: &Value) -> Option<Function> {
    let params = |key: &str, role: &str| -> Option<Vec<Param>> {
        value.member(key)?.list()?.iter().map(|p| read_param(p, role)).collect()
    };
    Some(Function {
        name: value.member("name")?.text()?,
        kind: value.member("kind")?.text()?,
        inputs: params("inputs", "in")?,
        outputs: params("outputs", "out")?,
    })
}

/// Other software that a library needs.
pub struct Dependency {
    /// Name, version, license and place, for messages.
    pub what: String,
    /// File names of the shared libraries that come with it.
    pub libraries: Vec<String>,
}

fn read_dependency(row: &Value) -> Dependency {
    let text = |key: &str| row.member(key).and_then(Value::text).unwrap_or_default();
    let mut what = format!("'{}'", text("short_name"));
    let (version, license) = (text("version_spec"), text("license"));
    if !version.is_empty() {
        what += &format!(" {version}");
    }
    if !license.is_empty() && license != "NOASSERTION" {
        what += &format!(" ({license})");
    }
    what += &format!(" from {}", text("url"));
    let files = row.member("libraries").and_then(Value::list).unwrap_or(&[]);
    Dependency { what, libraries: files.iter().filter_map(Value::text).collect() }
}

/// What is read from the metadata of a library.
pub struct Described {
    pub functions: Vec<Function>,
    pub dependencies: Vec<Dependency>,
}

/// The file that was read, still open.
pub struct Opened {
    pub file: File,
    pub which: Identity,
    /// It needs libraries beside it, by `$ORIGIN`.
    pub needs_name: bool,
}

impl Opened {
    /// Whether the file was written into since it was read.
    pub fn is_changed(&self) -> bool {
        self.file.metadata().map_or(true, |now| Identity::of(&now) != self.which)
    }
}

fn read_metadata(path: &str, text: &[u8]) -> Result<Described> {
    let text = std::str::from_utf8(text).unwrap_or("").trim_end_matches('\0');
    let metadata =
        Value::parse(text).ok_or_else(|| no_library(path, "its metadata is not JSON"))?;
    let functions = metadata
        .member("functions")
        .and_then(Value::list)
        .ok_or_else(|| no_library(path, "its metadata lists no functions"))?;
    let format = metadata.member("format");
    let version = format.and_then(Value::number).unwrap_or(0);
    if !(1..=METADATA_VERSION).contains(&version) {
        let found = format.and_then(Value::text).unwrap_or_else(|| "None".to_string());
        let sentence = format!(
            "'{path}' has metadata version {found}, this Tensorkiln reads versions 1 to {METADATA_VERSION}"
        );
        return Err(Error::new(error::ERROR_VERSION, sentence));
    }
    let all: Option<Vec<Function>> = functions.iter().map(read_function).collect();
    let functions = all.ok_or_else(|| no_library(path, "its metadata is damaged"))?;
    let rows = metadata.member("dependencies").and_then(Value::list).unwrap_or(&[]);
    Ok(Described { functions, dependencies: rows.iter().map(read_dependency).collect() })
}

/// Identifies the file that was read: device, inode, size and modification time.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(file: &Metadata) -> Identity {
        let changed = (file.mtime(), file.mtime_nsec());
        Identity { device: file.dev(), inode: file.ino(), size: file.len(), changed }
    }

    /// Whether the path now leads to another file, or to none.
    pub fn is_replaced(&self, path: &Path) -> bool {
        std::fs::metadata(path).map_or(true, |now| Identity::of(&now) != *self)
    }
}

/// Opens a regular file: reading a FIFO or a device might block or never end. The type is checked
/// before, because opening a device may have side effects, and again after; `O_NONBLOCK` prevents
/// blocking on a FIFO that replaces the file in between.
fn open_plain(path: &Path) -> std::io::Result<(File, Metadata)> {
    require_plain(&std::fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let status = file.metadata()?;
    require_plain(&status)?;
    Ok((file, status))
}

fn require_plain(status: &Metadata) -> std::io::Result<()> {
    if status.is_file() {
        Ok(())
    } else if status.is_dir() {
        Err(std::io::Error::from_raw_os_error(21))
    } else {
        Err(std::io::Error::other("it is not a plain file"))
    }
}

/// Reads the description of a library, whose file stays open; `ERROR_MACHINE` if it is compiled for
/// another machine.
pub fn read(path: &Path) -> Result<(Described, Opened)> {
    let name = path.display().to_string();
    let open = || {
        let (file, status) = open_plain(path)?;
        let mut bytes = Bytes { file, size: status.len(), held: Vec::new() };
        if let Err(fault) = check_digest(&mut bytes)? {
            let sentence = format!("'{name}' is damaged: {fault}");
            return Ok(Err(Error::new(error::ERROR_LIBRARY, sentence)));
        }
        let sections = read_sections(&mut bytes)?.map_err(|what| no_library(&name, what));
        Ok(sections.map(|sections| (sections, bytes.file, Identity::of(&status))))
    };
    let (sections, file, which) = open().map_err(|reason| unreadable(&name, &reason))??;
    let described = read_metadata(&name, &sections.metadata)?;
    check_machine(&name, sections.machine)?;
    Ok((described, Opened { file, which, needs_name: sections.needs_name }))
}
